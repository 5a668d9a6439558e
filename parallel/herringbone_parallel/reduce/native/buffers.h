/* Submitted buffers, their chunks, and cursors that visit the chunks in the order that all ranks agree on. */
#ifndef HERRINGBONE_BUFFERS_H
#define HERRINGBONE_BUFFERS_H

#include <stddef.h>

#include "state.h"
#include "sums.h"

/* Make a buffer of what was submitted; NULL: out of memory. Any thread: reads only [const] members. */
struct buffer *buffer_new(const struct core *core, const struct hb_submission *submission);

/* Describe the chunk at a cursor; return 0 if all submitted buffers are passed. */
int cursor_peek(struct core *core, struct chunk_cursor *cursor, struct chunk *chunk);
/* Step to the next chunk. */
void cursor_advance(struct chunk_cursor *cursor);

uint8_t *chunk_data(const struct chunk *chunk);
/* Return where the sum over this host's ranks is: in the buffer, or in fp32 next to it. */
struct source chunk_host_sum(const struct chunk *chunk);
size_t chunk_size(const struct chunk *chunk);
uint32_t chunk_wire_size(const struct chunk *chunk);
struct header chunk_header(const struct chunk *chunk, enum message_kind kind, uint32_t length);

/* One thing that was to be done for a chunk of this buffer is done; after the last one the buffer is gone. */
void buffer_chunk_done(struct core *core, struct buffer *buffer);
/* The sum over all ranks is in the chunk's place. */
void buffer_chunk_final(struct core *core, struct chunk *chunk);

#endif
