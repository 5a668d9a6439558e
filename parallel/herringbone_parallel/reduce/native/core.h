/* What the parts of the core share: links.c (messages), slots.c (what servers hold), flow.c (chunks),
 * core.c (the thread), abi.c (reduce.h). */
#ifndef HERRINGBONE_CORE_H
#define HERRINGBONE_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "reduce.h"
#include "sums.h"

/* wire.py explains the messages. */
enum kind { PUSH = 1, SUM, ALIVE, ABORT, LEAVE, LEFT };

struct header {
    uint8_t kind, element, wire, zero;
    uint32_t length;
    uint64_t sequence, offset;
    uint32_t elements, divisor;
};

struct message {
    struct header header;
    const void *body;
};

/* How many chunks have gone by, and where the last of them ends in a ring of memory that never ends: `place_next`. */
struct place {
    uint64_t number, end;
};

struct link {
    int fd, role, index;
    char *label;
    uint8_t *outbox, *inbox;
    /* Of this link's chunks: pushed by this side and back as sums, received from the other side. */
    struct place pushed, returned, arrived;
    uint64_t timed; /* the chunk whose way to the server and back is being timed */
    double timed_since;
    int left, answered, gone, writes, dirty;
    int deaf; /* nothing that may come is worth a wake, but the end of the connection */
    uint64_t left_after; /* how many buffers the other side took part in before it left */
    double heard, spoke;
    struct message *queue;
    uint32_t capacity, first, queued;
    uint64_t begun; /* bytes of the first message that are on their way */
    struct header head;
    uint32_t head_got, body_got;
    int woken_at; /* how many bytes must be there for the thread to be woken */
    uint8_t *body;   /* where the elements behind `head` go; NULL while `head` is being read */
    uint8_t *staged; /* a window of chunks as they travel, where that is not how they lie in a buffer */
    uint8_t *landed; /* one chunk as it came, likewise */
    char *reason;    /* of an ABORT */
    _Atomic uint64_t sent_bytes, received_bytes, sent_chunks, received_chunks;
};

struct shard {
    uint32_t server, chunks, elements; /* elements of a chunk */
    uint64_t offset, count;
    uint32_t ready, final; /* of the own lane: chunks whose sum over this host's ranks, and over all, is in the buffer */
};

struct lane {
    struct shard *shards;
    uint32_t count, rounds;
};

struct buffer {
    struct buffer *next;
    uint64_t sequence, count, remaining;
    uint8_t *data;
    uint32_t element, wire, divisor, elements, window;
    int32_t *place_of_server; /* in the own lane; -1: it has no shard */
    struct lane *lanes;
    struct shard *shards;
};

struct chunk {
    struct buffer *buffer;
    struct shard *shard;
    uint32_t number, elements;
    uint64_t offset;
};

/* A place in the sequence of all buffers' chunks: of a lane, or of the own lane's that one server sums. */
struct cursor {
    uint64_t sequence;
    int lane, server; /* server -1: the whole lane */
    uint32_t number, place;
};

/* The part of a server: see summing.py. */
struct slots {
    int members, others, own; /* own: the member that this process is, -1 for none */
    uint32_t most, ring; /* chunks of each member that may be there, and the bytes of each one's memory */
    struct place summed;
    uint8_t **memory;
    struct header *headers; /* [most][members]; kind 0: not there */
    uint32_t *came;
    const char **labels;
    double waiting_since;
};

/* More buffers than this under way make `hb_submit` wait. */
#define PENDING 4096

struct core {
    char *label;
    int member, members, helpers, local, locals, lanes;
    uint32_t chunk_bytes, link_count;
    /* What may be under way on a link between hosts, and on one to a rank of this host: bytes, and chunks. */
    uint32_t ring, most, local_ring, local_most;
    double silence, late;
    struct link *links;
    int epoll, wake, completions;
    pthread_t thread;

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct buffer *submitted_first, *submitted_last;
    uint64_t numbered, done_below;
    uint8_t is_done[PENDING];
    int closing, ended, failed;
    char reason[4096];

    /* The thread's own. */
    struct buffer *pending[PENDING];
    uint64_t submitted;
    struct place handed;
    struct link **neighbours;
    int own_server, carries, network, serves;
    struct slots served, joined;
    double share; /* of a buffer's window, what is under way to a server; less than 1 where it would wait in queues */
    uint8_t *results;
    struct source *sources;
    struct cursor joining, handing, serving, *pushing, *returning, *giving, *given;
    uint32_t last;   /* of a helper's links: whose chunk completed the last sum */
    uint32_t sought; /* from that one on, those before it have given the next chunk */
    uint64_t sought_of;
    int stopping;
    double at, ticked, closed_at, leaving; /* at: when the thread woke last */
};

double now(void);
/* The thread stops after this turn, and everybody is told why. */
void stop(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* slots.c */
int same_chunk(const struct header *one, const struct header *other);
void describe(char *text, size_t size, const struct header *header);
/* The next chunk's place in a ring: behind the last one, or at the ring's start where it would lie across its end. */
uint32_t place_next(struct place *place, size_t bytes, uint32_t ring);
/* Whether the next chunk's place is free, where all up to `freed` are. */
int place_is_free(struct place taken, struct place freed, size_t bytes, uint32_t ring, uint32_t most);
int slots_init(struct slots *slots, int members, int own, uint32_t most, uint32_t ring);
struct header *slots_headers(const struct slots *slots, uint64_t number);
int slots_complete(const struct slots *slots);
/* All members are at the same chunk; returns its header, or NULL after a stop that names two which are not. */
const struct header *slots_check(struct core *core, struct slots *slots, const struct header *own);
/* The next chunk is about to be summed; returns where it lies in each member's memory. */
uint32_t slots_advance(struct slots *slots, size_t bytes);
void slots_free(struct slots *slots);

/* links.c */
int link_init(struct core *core, struct link *link, const struct hb_link_spec *spec);
void link_send(struct core *core, struct link *link, struct header header, const void *body);
void link_drop(struct link *link);          /* forget what is queued, but for the message that is half on its way */
int link_flush(struct core *core, struct link *link);  /* send some; 1: the system may take more, -1: the connection is gone */
/* Take what is there, or of a helper's link what the next sum lacks, unless `all`; -1: the connection is gone. */
int link_receive(struct core *core, struct link *link, int all);
void link_wake(struct core *core, struct link *link);   /* say how much must come for the thread to be woken */
int link_finish(struct core *core, struct link *link); /* 1: all is sent, and the other side has closed too */
void link_free(struct link *link);

/* flow.c: each is what the step of the same name in flow.py is. */
int flow_init(struct core *core);
void flow_free(struct core *core);
void flow_run(struct core *core);
uint8_t *flow_place(struct core *core, struct link *link);
void flow_take(struct core *core, struct link *link);
void flow_late(struct core *core, double at);
uint64_t flow_due(struct core *core, struct link *link); /* bytes of sums that are worth a wake; 0: one cannot tell */
struct link *flow_behind(struct core *core);             /* who keeps a helper's next sum waiting; NULL: nobody does */
int flow_lacks(const struct core *core, const struct link *link); /* whether a helper's next sum lacks that link's chunk */

/* core.c */
void *core_run(void *core); /* the thread */
void core_ring(int descriptor);
void core_watch(struct core *core, struct link *link, int operation); /* tell epoll what of a link is worth a wake */
void take_control(struct core *core, struct link *link); /* a message that carries no chunk */
void finished(struct core *core, struct buffer *buffer);

#endif
