/* The native core: one I/O thread that owns a process's connections, as fallback.py is in Python.
 *
 * This part is the flat ABI that native.py calls by ctypes; structures are laid out alike there. Addresses are of
 * this process. All functions but hb_new may be called from any thread. Linux, little-endian.
 */
#ifndef HERRINGBONE_REDUCE_H
#define HERRINGBONE_REDUCE_H

#include <stdint.h>

/* Changes with every structure and function of this header. */
#define HB_ABI 3

enum hb_element { HB_F32 = 1, HB_F16, HB_BF16, HB_F64, HB_I32, HB_I64, HB_U8 };
enum hb_role { HB_HELPER, HB_PEER, HB_LOCAL };

struct hb_link_spec {
    int32_t descriptor, role, index, unused;
    const char *label;
    uint64_t outbox, inbox;
};

struct hb_config {
    const char *label;
    int32_t member, members, helpers, local, locals, lanes;
    /* What may be under way on a link between hosts, and on one to a rank of this host: bytes, and chunks. */
    uint32_t chunk_bytes, ring, most, local_ring, local_most, links;
    double silence, late;
    const struct hb_link_spec *specs;
};

struct hb_shard {
    uint32_t lane, server;
    uint64_t offset, count;
};

struct hb_submission {
    uint64_t address, count;
    uint32_t element, wire, divisor, chunk; /* chunk: the elements of the largest */
    uint32_t window, unused;                /* window: bytes that may be under way to a server */
    const struct hb_shard *cut;             /* by lane, in the order of shards */
    uint64_t shards;
};

struct hb_count {
    uint64_t sent_bytes, received_bytes, sent_chunks, received_chunks;
};

struct hb_core;

int hb_abi(void);
struct hb_core *hb_new(const struct hb_config *config); /* takes the descriptors over; NULL: out of memory */
int64_t hb_submit(struct hb_core *core, const struct hb_submission *submission); /* its number; -1: stopped or closed */
int hb_wait(struct hb_core *core, uint64_t sequence, double seconds);            /* 1: done; 0: not yet, or never */
int hb_done(struct hb_core *core, uint64_t sequence);
int hb_ended(struct hb_core *core);
int hb_failure(struct hb_core *core, char *text, uint32_t size); /* 1 and why it stopped, else 0 */
int hb_completions(struct hb_core *core);
void hb_counts(struct hb_core *core, struct hb_count *counts); /* one per link */
void hb_close(struct hb_core *core);
void hb_free(struct hb_core *core);

#endif
