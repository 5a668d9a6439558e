/* How chunks flow through one process: what it sends, sums and hands on as soon as that is possible.
 *
 *   [1] contribute   own chunks of the other local ranks' lanes -> those ranks' rings in shared memory
 *   [2] join         own lane: all ranks of this host have given a chunk -> their sum, in the buffer
 *   [3] push         a chunk of the own lane -> the server of its shard
 *   [4] serve        all hosts have given a chunk of the shard that this process sums -> the sum, to all of them
 *   [5] hand on      the sum over all hosts is in the buffer -> the rings of the ranks of this host
 *
 * A helper has [4] alone. No step blocks. flow.c has the steps; arrivals.c has what comes in from links and what is
 * missing. All functions belong to the I/O thread, except that hb_new and hb_free call flow_init and flow_free.
 */
#ifndef HERRINGBONE_FLOW_H
#define HERRINGBONE_FLOW_H

#include "state.h"

/* In a window of chunks one is going, one is coming back, and one is there for the time that the credit needs. */
#define LEAST_UNDER_WAY 3

/* Return 0, or -1 with what was allocated left to flow_free. Requires initialized links. */
int flow_init(struct core *core);
void flow_free(struct core *core);
/* Do all steps as far as they can be done now. */
void flow_run(struct core *core);

/* Callback of a link: return where the elements behind a header go; NULL: they are not due. */
uint8_t *flow_place(struct core *core, struct link *link);
/* Callback of a link: a chunk, or the sum of one, is complete. */
void flow_take(struct core *core, struct link *link);
/* Stop if a member of a sum keeps the others waiting for too long. */
void flow_check_late(struct core *core, double now);
/* Return how many bytes of sums are worth a wake; 0: unknown. */
uint64_t flow_due_bytes(struct core *core, struct link *link);
/* Return the link that keeps a helper's next sum waiting; NULL: none does. */
struct link *flow_straggler(struct core *core);

/* The number as a server of the process at the other end: helpers first, then hosts. */
static inline int server_of(const struct core *core, const struct link *link) {
    return link->role == HB_HELPER ? link->index : core->helpers + link->index;
}

#endif
