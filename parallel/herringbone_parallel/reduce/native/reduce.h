/* The native core's functions for other languages: one I/O thread that owns a process's connections and sums buffers.
 *
 * Python calls these functions through ctypes and declares the same structures. Addresses are of this process. The
 * caller owns every structure and its memory; the library reads them during the call only. Any thread may call any
 * function, except that a core is freed when no other call is under way. Linux, little-endian.
 *
 * Only functions declared between the visibility pragmas leave the library. All of them begin with `hb_`, so that no
 * function of a host program can replace one of ours.
 */
#ifndef HERRINGBONE_REDUCE_H
#define HERRINGBONE_REDUCE_H

#include <stdint.h>

/* Changes with every structure and function of this header. */
#define HB_ABI 4

enum hb_element { HB_F32 = 1, HB_F16, HB_BF16, HB_F64, HB_I32, HB_I64, HB_U8 };
enum hb_role { HB_HELPER, HB_PEER, HB_LOCAL };

struct hb_link_spec {
    int32_t descriptor, role, index, unused;
    const char *label;
    uint64_t outbox, inbox;
};

struct hb_config {
    const char *label;
    int32_t member, members, helpers, local_rank, local_ranks, lanes;
    /* Bytes and chunks that may be under way on a link between hosts, and (local_) between two ranks of this host. */
    uint32_t chunk_bytes, ring_bytes, max_chunks, local_ring_bytes, local_max_chunks, links;
    double silence, late;
    const struct hb_link_spec *specs;
};

struct hb_shard {
    uint32_t lane, server;
    uint64_t offset, count;
};

struct hb_submission {
    uint64_t address, count;
    uint32_t element, wire, chunk; /* chunk: elements of the largest chunk */
    uint32_t window;               /* bytes that may be under way to a server */
    uint32_t host_divisor;         /* a host's sum is divided by this before it goes over the network */
    float divisor;                 /* the last sum is divided by this */
    const struct hb_shard *cut;             /* by lane, in the order of the shards */
    uint64_t shards;
};

struct hb_count {
    uint64_t sent_bytes, received_bytes, sent_chunks, received_chunks;
};

struct hb_core;

#pragma GCC visibility push(default)

/* Return HB_ABI of the library. */
int hb_abi(void);
/* Start a core. Takes the links' descriptors over in any case: closes them when it fails. NULL: the system has too
 * little memory, no descriptor or thread left, or the configuration contradicts itself. */
struct hb_core *hb_new(const struct hb_config *config);
/* Queue a buffer; return its number, or -1 if the core has ended or is closing, or if there is no memory. The buffer's
 * memory is the core's until the buffer is done. Waits while 4096 buffers are under way. */
int64_t hb_submit(struct hb_core *core, const struct hb_submission *submission);
/* Wait until a buffer is done. Return 1 if it is; 0 after `seconds`, or when the core has ended without it. */
int hb_wait(struct hb_core *core, uint64_t sequence, double seconds);
/* Return 1 if a buffer is done. */
int hb_done(struct hb_core *core, uint64_t sequence);
/* Return 1 if the core has ended: no further buffer will be done. */
int hb_ended(struct hb_core *core);
/* Return 1 and write the reason if an error ended the core; else return 0. */
int hb_failure(struct hb_core *core, char *text, uint32_t size);
/* Return the descriptor of an eventfd that is readable when a buffer is done or the core has ended. */
int hb_completions(struct hb_core *core);
/* Write one count per link. */
void hb_counts(struct hb_core *core, struct hb_count *counts);
/* Leave in order, as far as the others take part in that within seconds, and join the thread. */
void hb_close(struct hb_core *core);
/* Free a core that is closed. */
void hb_free(struct hb_core *core);

#pragma GCC visibility pop

#endif
