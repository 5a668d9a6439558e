/* Cursors over a ring of memory in which chunks lie one behind the other, none across the ring's end.
 *
 * The sender, the summing side and the receiver walk along the same ring by the same chunk sizes, so each finds the
 * same offsets without a message. The cursors of the Python core compute the same numbers.
 */
#ifndef HERRINGBONE_RING_H
#define HERRINGBONE_RING_H

#include <stddef.h>
#include <stdint.h>

/* Chunks start at multiples of a cache line, so two chunks never share one. */
#define RING_ALIGN 64

/* [owner]: the members belong to the thread that owns the struct which contains the cursor. */
struct ring_cursor {
    uint64_t chunks; /* [owner] how many chunks the cursor has passed */
    uint64_t end;    /* [owner] end of the last chunk, in bytes; counted on where the ring starts again */
};

/* Step behind the next chunk of `bytes` bytes; return the chunk's offset in the ring. */
static inline uint32_t ring_next(struct ring_cursor *cursor, size_t bytes, uint32_t ring_bytes) {
    uint32_t offset = (uint32_t)(cursor->end % ring_bytes);
    /* A chunk is contiguous for the kernels that sum it: it starts over where it would lie across the ring's end. */
    if (offset + bytes > ring_bytes) {
        cursor->end += ring_bytes - offset;
        offset = 0;
    }
    cursor->end += (bytes + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
    cursor->chunks++;
    return offset;
}

/* Return 1 if the next chunk behind `taken` fits while all chunks behind `freed` are still in the ring. */
static inline int ring_has_room(struct ring_cursor taken, struct ring_cursor freed, size_t bytes, uint32_t ring_bytes,
                                uint32_t max_chunks) {
    /* An empty ring holds any chunk that is no larger than the ring, whatever padding would come before the chunk. */
    if (taken.chunks == freed.chunks) return bytes <= ring_bytes;
    ring_next(&taken, bytes, ring_bytes);
    return taken.end - freed.end <= ring_bytes && taken.chunks - freed.chunks <= max_chunks;
}

#endif
