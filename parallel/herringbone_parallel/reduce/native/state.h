/* All that one core knows, and the few changes to it that other threads see.
 *
 * Layers, each of which includes and calls only those before it: ring < state < buffers < slots < links < arrivals
 * < flow < core < abi. Links report upwards through `struct link_callbacks`. scripts/native_layers.py checks the order.
 *
 * Each member names its owner in brackets:
 *   [const]   hb_new writes it before the I/O thread starts; afterwards every thread may read it
 *   [io]      the I/O thread alone reads and writes it (hb_new before the thread starts, hb_free after it has ended)
 *   [lock]    any thread, with `core.lock` held
 *   [atomic]  the I/O thread writes it, any thread reads it without a lock
 *   [submit]  the submitting thread until the buffer is queued under `core.lock`, then the I/O thread
 */
#ifndef HERRINGBONE_STATE_H
#define HERRINGBONE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "reduce.h"
#include "ring.h"

/* Message kinds. The numbers are those on the wire. */
enum message_kind { PUSH = 1, SUM, ALIVE, ABORT, LEAVE, LEFT };

/* The header in front of each message, little-endian, as on the wire. The container's owner owns all members. */
struct header {
    uint8_t kind;       /* enum message_kind; 0 in a slot that is empty */
    uint8_t element;    /* enum hb_element of the buffer */
    uint8_t wire;       /* enum hb_element of the bytes that follow */
    uint8_t zero;       /* padding */
    uint32_t length;    /* bytes that follow; 0 between ranks of one host, which share memory */
    uint64_t sequence;  /* number of the buffer; in LEAVE, of buffers that the sender took part in */
    uint64_t offset;    /* first element of the chunk in the buffer */
    uint32_t elements;  /* elements of the chunk */
    float divisor;      /* the sum is divided by this */
};

_Static_assert(sizeof(struct header) == 32, "the header is 32 bytes on the wire");

struct message {
    struct header header; /* [io] */
    const void *body;     /* [io] `header.length` bytes that stay unchanged until they are sent */
};

/* A connection to another process. */
struct link {
    int fd;                       /* [io] non-blocking socket; -1 once closed */
    int role;                     /* [const] enum hb_role */
    int index;                    /* [const] number of the helper, host or local rank at the other end, by role */
    char *label;                  /* [const] name of the other end in messages */
    uint8_t *outbox;              /* [const] ring in the other local rank's memory; NULL: that rank has no lane */
    uint8_t *inbox;               /* [const] ring in this rank's memory that the other local rank writes */
    struct ring_cursor pushed;    /* [io] chunks that this side pushed */
    struct ring_cursor returned;  /* [io] chunks of `pushed` whose sums came back */
    struct ring_cursor arrived;   /* [io] chunks that the other side pushed */
    uint64_t timed_chunk;         /* [io] the chunk whose round trip is being timed */
    double timed_since;           /* [io] time at which `timed_chunk` was pushed; 0: no chunk is being timed */
    int has_left;                 /* [io] the other side sent LEAVE: it submits no more buffers */
    uint64_t buffers_before_leave; /* [io] how many buffers the other side took part in before LEAVE */
    int leave_answered;           /* [io] the other side sent LEFT: it has read everything from this side */
    int gone;                     /* [io] the connection is no longer used */
    int waits_for_room;           /* [io] epoll reports when the socket takes more */
    int has_unsent;               /* [io] messages were queued, or sending stopped at SEND_SHARE */
    int ignores_input;            /* [io] epoll reports only the end of the connection */
    int low_water;                /* [io] SO_RCVLOWAT of the socket; 0: not set yet */
    double received_at;           /* [io] time at which bytes last came in */
    double sent_at;               /* [io] time at which bytes last went out */
    struct message *queue;        /* [io] ring buffer of messages to send */
    uint32_t queue_capacity;      /* [const] size of `queue` */
    uint32_t queue_first;         /* [io] index of the oldest message in `queue` */
    uint32_t queued;              /* [io] messages in `queue` */
    uint64_t first_sent;          /* [io] bytes of the oldest message that are already sent */
    struct header header;         /* [io] of the message that is being received */
    uint32_t header_received;     /* [io] bytes of `header` that have come */
    uint32_t body_received;       /* [io] bytes of the body that have come */
    uint8_t *body;                /* [io] destination of the body; NULL while `header` is being received */
    uint8_t *narrowed;            /* [io] ring of pushed chunks in their wire format, if that is not the buffer's */
    uint8_t *unwidened;           /* [io] one received sum in its wire format, if that is not the buffer's */
    char *abort_reason;           /* [io] text of an ABORT message */
    _Atomic uint64_t sent_bytes, received_bytes;   /* [atomic] counters for hb_counts */
    _Atomic uint64_t sent_chunks, received_chunks; /* [atomic] counters for hb_counts */
};

/* The part of a lane that one server sums. */
struct shard {
    uint32_t server;   /* [submit] number of the server: helpers first, then hosts */
    uint32_t chunks;   /* [submit] how many chunks the shard has */
    uint32_t elements; /* [submit] elements of each chunk but the last */
    uint64_t offset;   /* [submit] first element in the buffer */
    uint64_t count;    /* [submit] elements of the shard */
    uint32_t ready;    /* [io] own lane: chunks that hold the sum over this host's ranks */
    uint32_t final;    /* [io] own lane: chunks that hold the sum over all ranks */
};

/* The part of a buffer that one local rank carries over the network. */
struct lane {
    struct shard *shards; /* [submit] the lane's part of `buffer.shards` */
    uint32_t count;       /* [submit] number of shards */
    uint32_t rounds;      /* [submit] chunks of the longest shard */
};

/* A submitted buffer. hb_submit makes it, the I/O thread frees it. */
struct buffer {
    struct buffer *next;      /* [lock] next in the queue of submitted buffers */
    uint64_t sequence;        /* [lock] its number, set when it is queued; never changes afterwards */
    uint64_t count;           /* [submit] elements */
    uint64_t remaining;       /* [io] chunks that are not done */
    uint8_t *data;            /* [submit] the caller's memory, which the I/O thread owns until the buffer is done */
    uint32_t element;         /* [submit] enum hb_element */
    uint32_t wire;            /* [submit] enum hb_element between hosts */
    uint32_t host_divisor;    /* [submit] the sum over this host is divided by this before it goes over the network */
    float divisor;            /* [submit] the last sum is divided by this */
    float *wide;              /* [io] own lane: sums over this host that the buffer's 16 bits cannot hold; or NULL */
    uint64_t wide_offset;     /* [submit] first element of the buffer that `wide` has a place for */
    uint32_t chunk_elements;  /* [submit] elements of the largest chunk */
    uint32_t window_bytes;    /* [submit] bytes that may be under way to one server */
    int32_t *shard_of_server; /* [submit] index in the own lane's shards; -1: the server has none */
    struct lane *lanes;       /* [submit] one per lane */
    struct shard *shards;     /* [submit] shards of all lanes, in the order of the lanes */
};

/* A chunk that a cursor points at. Lives on the stack of the I/O thread. */
struct chunk {
    struct buffer *buffer; /* [io] */
    struct shard *shard;   /* [io] */
    uint32_t number;       /* [io] number in its shard */
    uint32_t elements;     /* [io] its elements */
    uint64_t offset;       /* [io] its first element in the buffer */
};

/* A position in the sequence of all buffers' chunks of one lane, or of one server's shards in the own lane. */
struct chunk_cursor {
    uint64_t sequence; /* [io] number of the buffer */
    int lane;          /* [const] */
    int server;        /* [const] -1: all shards of the lane */
    uint32_t number;   /* [io] number of the chunk in its shard */
    uint32_t shard;    /* [io] index of the shard, if the cursor visits all of them */
};

/* Chunks that the members of a sum gave and that are not summed yet. Members are hosts or the ranks of one host. */
struct slots {
    int members;                /* [const] 0: this process takes no such sum */
    int remote_members;         /* [const] members that are other processes */
    int own_member;             /* [const] the member that this process is; -1: none */
    uint32_t max_chunks;        /* [const] chunks of one member that may wait here */
    uint32_t ring_bytes;        /* [const] size of each member's ring */
    struct ring_cursor summed;  /* [io] chunks whose sums are taken */
    uint8_t **rings;            /* [const] ring of each other member; NULL for this process */
    struct header *headers;     /* [io] [max_chunks][members]; kind 0: that member's chunk has not come */
    uint32_t *arrived_members;  /* [io] [max_chunks]: how many members' chunks have come */
    const char **labels;        /* [const] names of the members in messages */
    double waiting_since;       /* [io] time since which some members keep the others waiting; 0: none does */
};

/* More buffers than this under way make hb_submit wait: the arrays of pending buffers have a fixed size. */
#define MAX_PENDING 4096

struct link_callbacks;

struct core {
    char *label;                /* [const] name of this process in messages */
    int member, members;        /* [const] number of this host, and of hosts; member is -1 in a helper */
    int helpers;                /* [const] number of helpers */
    int local_rank, local_ranks; /* [const] number of this rank on its host, and of ranks there */
    int lanes;                  /* [const] how many local ranks carry a lane */
    uint32_t chunk_bytes;       /* [const] size of the largest chunk on the wire */
    uint32_t link_count;        /* [const] size of `links` */
    uint32_t ring_bytes, max_chunks;             /* [const] what may be under way on a link between hosts */
    uint32_t local_ring_bytes, local_max_chunks; /* [const] what may be under way between two ranks of this host */
    double silence;             /* [const] seconds without a byte after which a process counts as lost */
    double late;                /* [const] seconds after which a missing chunk is an error */
    struct link *links;         /* [const] the array; its items name their owners themselves */
    const struct link_callbacks *callbacks; /* [const] what links report to */
    int epoll;                  /* [const] the I/O thread waits on it */
    int wake;                   /* [const] eventfd that wakes the I/O thread: something was submitted, or closing */
    int completions;            /* [const] eventfd that is readable after a buffer is done */
    pthread_t thread;           /* [const] the I/O thread; hb_close joins it */

    pthread_mutex_t lock;       /* guards all [lock] members; held for short assignments, never during I/O */
    pthread_cond_t changed;     /* [lock] signalled when a buffer is done and when the thread ends */
    struct buffer *submitted_first, *submitted_last; /* [lock] buffers that the I/O thread has not taken over */
    uint64_t numbered;          /* [lock] how many buffers were submitted */
    uint64_t done_below;        /* [lock] all buffers with a lower number are done */
    uint8_t is_done[MAX_PENDING]; /* [lock] by sequence % MAX_PENDING, for numbers from `done_below` on */
    int closing;                /* [lock] hb_close was called */
    int ended;                  /* [lock] the I/O thread has stopped summing */
    int failed;                 /* [lock] the I/O thread ended with an error, which `reason` describes */
    char reason[4096];          /* [lock] to write; the I/O thread, its only writer, reads it without the lock */

    struct buffer *pending[MAX_PENDING]; /* [io] buffers under way, by sequence % MAX_PENDING */
    uint64_t submitted;         /* [io] buffers with a lower number were taken over by the I/O thread */
    int stopping;               /* [io] an error ended the sums: stop after this turn and report it to all links */
    int own_server;             /* [const] this rank's number as a server */
    int carries_lane;           /* [const] this rank carries a lane */
    int uses_network;           /* [const] its lane has other hosts */
    int serves;                 /* [const] other processes push to this one */
    struct link **local_links;  /* [const] by local rank; NULL for this one */
    struct slots served;        /* [io] sums over hosts, of the shards of this server */
    struct slots joined;        /* [io] sums over the ranks of this host, of the own lane */
    struct ring_cursor handed;  /* [io] chunks of the own lane that were handed to the ranks of this host */
    double window_share;        /* [io] part of a buffer's window that is used; less than 1 while queues are long */
    uint8_t *results;           /* [io] ring of sums that are being sent to all hosts */
    struct source *sources;     /* [io] scratch: the operands of one sum */
    struct chunk_cursor join_cursor;         /* [io] next chunk of the own lane to sum over this host's ranks */
    struct chunk_cursor hand_on_cursor;      /* [io] next chunk of the own lane to hand to this host's ranks */
    struct chunk_cursor serve_cursor;        /* [io] next own chunk of the shard that this process sums */
    struct chunk_cursor *push_cursors;       /* [io] by server: next chunk to push */
    struct chunk_cursor *return_cursors;     /* [io] by server: next chunk whose sum is due */
    struct chunk_cursor *contribute_cursors; /* [io] by local rank: next chunk to give to that rank's lane */
    struct chunk_cursor *handed_cursors;     /* [io] by local rank: next chunk of that rank's lane that is due */
    uint32_t last_arrival;      /* [io] helper: index of the link whose chunk completed the last sum */
    uint32_t straggler_offset;  /* [io] helper: links before `last_arrival` + this have given the next chunk */
    uint64_t straggler_chunk;   /* [io] helper: the chunk for which `straggler_offset` counts */
    double woke_at;             /* [io] time at which epoll returned last */
    double ticked_at;           /* [io] time of the last tick */
    double closing_since;       /* [io] time at which the thread noticed `closing`; 0: it has not */
    double leaving_since;       /* [io] time at which LEAVE was sent; 0: it was not */
};

/* The number as a server of the process at the other end: helpers first, then hosts. */
static inline int server_of(const struct core *core, const struct link *link) {
    return link->role == HB_HELPER ? link->index : core->helpers + link->index;
}

/* Make the lock, the condition and the descriptors. Return 0, or -1 with what was opened left to state_close. */
int state_open(struct core *core, const struct hb_config *config);
/* Undo state_open, also after it failed. */
void state_close(struct core *core);

/* Stop after this turn with an error that all links and callers receive. The first reason counts. I/O thread only. */
void state_stop(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Mark a buffer as done, wake those who wait for it, and free it. I/O thread only. */
void state_buffer_done(struct core *core, struct buffer *buffer);
/* Return 1 if the buffer of this number is done. Requires `core->lock`. */
int state_is_done(const struct core *core, uint64_t sequence);
/* Make an eventfd readable. Any thread. */
void state_signal(int eventfd);

#endif
