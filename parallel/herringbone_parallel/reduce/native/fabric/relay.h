/* Connections over libfabric that look like sockets to a core.
 *
 *   core ==socket pair== relay thread [slots] --tagged messages--> endpoint ... endpoint [slots] ==socket pair== core
 *
 * The relay thread reads bytes from the socket pair into a slot and sends the slot as one message; an empty message
 * says that no more will follow. libfabric delivers messages with one tag in the order in which they were sent, into
 * the receives in the order in which these were posted. A tag is random and known to two processes only, which exchange
 * it over a connection that the job's token opened: a message of a stranger matches no receive. That connection stays
 * open as the "lifeline": when it ends, the process at the other end has ended.
 *
 * Each member names its owner in brackets:
 *   [const]  written before hb_fabric_start; afterwards every thread may read it
 *   [relay]  the opening thread until hb_fabric_start, then the relay thread alone, then the closing thread
 *   [atomic] any thread
 */
#ifndef HERRINGBONE_RELAY_H
#define HERRINGBONE_RELAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "provider.h"

/* Slots of a stream in each direction: so many messages may be under way. */
#define SLOTS 8
#define SLOT_BYTES (64u << 10)

enum progress { FREE, UNDER_WAY, DONE };

/* Memory for one message. */
struct slot {
    void *provider_context[8]; /* [relay] the provider writes here (FI_CONTEXT2); first, as a completion's address */
    struct stream *stream;     /* [const] */
    uint8_t *data;             /* [const] SLOT_BYTES of registered memory */
    uint32_t length;           /* [relay] bytes of the message */
    enum progress progress;    /* [relay] */
};

/* One connection. */
struct stream {
    int fd;                  /* [relay] this end of the socket pair; -1 once closed */
    int lifeline;            /* [relay] connection to the same process; -1 once closed */
    uint64_t peer;           /* [const] the other endpoint's number in the provider's address table */
    uint64_t own_tag;        /* [const] tag of messages that come in */
    uint64_t peer_tag;       /* [const] tag of messages that go out */
    uint8_t *memory;         /* [const] all slots' data; freed after the provider is closed */
    void *descriptor;        /* [const] the registration of `memory`, as the provider wants it with each use */
    struct slot out[SLOTS], in[SLOTS]; /* the items name their owners themselves */
    uint64_t filled;         /* [relay] slots filled by the core so far; `out[filled % SLOTS]` is the next one */
    uint64_t sent;           /* [relay] slots of `filled` that the endpoint took */
    uint64_t posted;         /* [relay] receives that were posted so far */
    uint64_t delivered;      /* [relay] slots of `posted` that were delivered to the core */
    uint32_t delivered_bytes; /* [relay] bytes of the slot that is being delivered to the core */
    uint32_t watched;        /* [relay] events that epoll reports for `fd` */
    int readable, writable;  /* [relay] epoll reported so, and no call has failed with EAGAIN since */
    int core_ended;          /* [relay] the core sends no more */
    int peer_ended;          /* [relay] the other end sends no more */
    int core_is_deaf;        /* [relay] the core reads no more */
    double lost_at;          /* [relay] time at which the lifeline ended; 0: it has not */
    int closed;              /* [relay] */
};

struct hb_fabric {
    struct provider provider; /* [relay] opened with FI_THREAD_DOMAIN: one thread at a time may use it */
    struct stream **streams;  /* [const] array of `count` */
    size_t count;             /* [const] */
    int epoll;                /* [const] */
    int wake;                 /* [const] eventfd that wakes the relay thread: closing */
    pthread_t thread;         /* [const] */
    int is_started;           /* [const] `thread` exists */
    atomic_int closing;       /* [atomic] hb_fabric_close was called */
    double moved_at;          /* [relay] time at which bytes last moved */
};

/* Close a stream's descriptors: the core and the process at the other end see the end of the connection. */
void relay_end(struct hb_fabric *fabric, struct stream *stream);
/* Start routine of the relay thread: runs until all streams have ended, or closing has taken too long. */
void *relay_run(void *fabric);

#endif
