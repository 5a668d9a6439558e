/* Chunks and sums that come in from links, and the members that have not given theirs. I/O thread only. */
#ifndef HERRINGBONE_ARRIVALS_H
#define HERRINGBONE_ARRIVALS_H

#include "state.h"

/* The least chunks of a window: one is going, one is coming back, and one covers the time that the credit takes. */
#define LEAST_UNDER_WAY 3

/* Callback of a link: return where the elements behind a header go; NULL: they are not due. */
uint8_t *arrivals_destination(struct core *core, struct link *link);
/* Callback of a link: a chunk, or the sum of one, is complete. */
void arrivals_take(struct core *core, struct link *link);
/* Stop if a member of a sum keeps the others waiting for too long. */
void arrivals_check_late(struct core *core, double now);
/* Return how many bytes of sums are worth a wake; 0: unknown. */
uint64_t arrivals_due_bytes(struct core *core, struct link *link);
/* Return the link that keeps a helper's next sum waiting; NULL: none does. */
struct link *arrivals_straggler(struct core *core);

#endif
