/* The chunks that the members of a sum gave, and the check that they gave the same chunk. */
#ifndef HERRINGBONE_SLOTS_H
#define HERRINGBONE_SLOTS_H

#include <stddef.h>

#include "state.h"

/* A longer reason of an ABORT is no message of ours. */
#define MAX_REASON_BYTES (64u << 10)

/* Return 1 if some core could have sent this header: nothing in it can be trusted before. All its sizes fit each other,
 * in 64 bits, so that no product of them wraps around later. `is_local`: it came from a rank of this host. */
int header_is_well_formed(const struct header *header, int is_local);
/* Return the enum hb_element in which the sum of a chunk comes back: the smaller one of `element` and `wire`. */
int header_sum_element(const struct header *header);
/* Return 1 if both headers are of the same chunk of the same buffer; kind and length may differ. */
int header_same_chunk(const struct header *one, const struct header *other);
/* Write "buffer 3, 64 elements of float32 from 0 on, divisor 1". */
void header_describe(char *text, size_t size, const struct header *header);

/* Return 0, or -1 with what was allocated left to slots_free. */
int slots_init(struct slots *slots, int members, int own_member, uint32_t max_chunks, uint32_t ring_bytes);
void slots_free(struct slots *slots);
/* The members' headers of the chunk of this number. */
struct header *slots_headers(const struct slots *slots, uint64_t number);
/* Return 1 if all other members have given the next chunk. */
int slots_complete(const struct slots *slots);
/* Return 1 if the next chunk of a member has not come, whose cursor is `arrived`. */
int slots_lack(const struct slots *slots, struct ring_cursor arrived);
/* Return 1 if a member whose cursor is `arrived` may give one more chunk of `bytes` bytes. */
int slots_have_room(const struct slots *slots, struct ring_cursor arrived, size_t bytes);
/* Note that a member's next chunk is in its ring. */
void slots_arrive(struct slots *slots, int member, struct ring_cursor *arrived, size_t bytes,
                  const struct header *header);
/* Return the header of the chunk that all members are at, or NULL after a stop that names two which are not. */
const struct header *slots_check(struct core *core, struct slots *slots, const struct header *own);
/* The next chunk is about to be summed: empty its slot and return its offset in each member's ring. */
uint32_t slots_advance(struct slots *slots, size_t bytes);

#endif
