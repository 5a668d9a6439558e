#include "buffers.h"

#include <stdlib.h>

/* Chunks start at multiples of this many elements, as in the Python function `chunk_elements`. */
#define CHUNK_ALIGN 64

/* Cut each shard of a lane in as many chunks as its longest shard has. */
static void cut_shards(const struct core *core, struct buffer *buffer, const struct hb_submission *submission) {
    for (uint64_t i = 0; i < submission->shards; i++) {
        struct shard *shard = &buffer->shards[i];
        uint32_t lane = submission->cut[i].lane, rounds = buffer->lanes[lane].rounds;
        uint64_t share = (shard->count + rounds - 1) / rounds;
        uint64_t elements = (share + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN;
        shard->elements = elements < buffer->chunk_elements ? (uint32_t)elements : buffer->chunk_elements;
        shard->chunks = (uint32_t)((shard->count + shard->elements - 1) / shard->elements);
        /* A chunk of the own lane is done twice: once summed, and once handed to the other ranks of the host. */
        uint32_t times = (int)lane == core->local_rank && core->local_ranks > 1 ? 2 : 1;
        buffer->remaining += (uint64_t)shard->chunks * times;
    }
}

/* Return the elements of the own lane for which the sum over this host needs fp32 next to the buffer. */
static uint64_t wide_elements(const struct core *core, const struct hb_submission *submission) {
    uint64_t elements = 0;
    if (!core->uses_network || submission->wire != HB_F32 || submission->element == HB_F32) return 0;
    for (uint64_t i = 0; i < submission->shards; i++)
        if ((int)submission->cut[i].lane == core->local_rank) elements += submission->cut[i].count;
    return elements;
}

struct buffer *buffer_new(const struct core *core, const struct hb_submission *submission) {
    uint64_t wide = wide_elements(core, submission);
    size_t servers = (size_t)(core->helpers + core->members), lanes = (size_t)core->lanes;
    /* One block, so one free() in the I/O thread: the buffer, its lanes, its shards, an index per server, wide sums. */
    struct buffer *buffer =
        calloc(1, sizeof *buffer + lanes * sizeof(struct lane) + submission->shards * sizeof(struct shard) +
                      servers * sizeof(int32_t) + wide * sizeof(float));
    if (!buffer) return NULL;
    buffer->lanes = (struct lane *)(buffer + 1);
    buffer->shards = (struct shard *)(buffer->lanes + lanes);
    buffer->shard_of_server = (int32_t *)(buffer->shards + submission->shards);
    if (wide) buffer->wide = (float *)(buffer->shard_of_server + servers);
    buffer->data = (uint8_t *)(uintptr_t)submission->address;
    buffer->count = submission->count;
    buffer->element = submission->element;
    buffer->wire = submission->wire;
    buffer->host_divisor = submission->host_divisor;
    buffer->divisor = submission->divisor;
    buffer->chunk_elements = submission->chunk;
    buffer->window_bytes = submission->window;
    for (size_t server = 0; server < servers; server++) buffer->shard_of_server[server] = -1;
    for (uint64_t i = 0; i < submission->shards; i++) {
        const struct hb_shard *cut = &submission->cut[i];
        struct lane *lane = &buffer->lanes[cut->lane];
        struct shard *shard = &buffer->shards[i];
        if (!lane->shards) lane->shards = shard;
        if ((int)cut->lane == core->local_rank) {
            /* The shards of a lane lie one behind the other in the buffer. */
            if (!lane->count) buffer->wide_offset = cut->offset;
            buffer->shard_of_server[cut->server] = (int32_t)lane->count;
        }
        lane->count++;
        shard->server = cut->server;
        shard->offset = cut->offset;
        shard->count = cut->count;
        uint32_t rounds = (uint32_t)((cut->count + buffer->chunk_elements - 1) / buffer->chunk_elements);
        if (rounds > lane->rounds) lane->rounds = rounds;
    }
    cut_shards(core, buffer, submission);
    return buffer;
}

/* The shard at a cursor that visits chunk 0 of each shard, then chunk 1 of each; NULL: the lane is passed. */
static struct shard *next_in_lane(struct chunk_cursor *cursor, const struct lane *lane) {
    while (cursor->number < lane->rounds) {
        if (cursor->shard >= lane->count) {
            cursor->shard = 0;
            cursor->number++;
        } else if (cursor->number >= lane->shards[cursor->shard].chunks) {
            /* Chunks are rounded up to CHUNK_ALIGN elements, so a shorter shard may need fewer of them. */
            cursor->shard++;
        } else {
            return &lane->shards[cursor->shard];
        }
    }
    return NULL;
}

/* The shard at a cursor that visits the chunks of one server; NULL: the shard is passed, or the server has none. */
static struct shard *next_of_server(const struct chunk_cursor *cursor, const struct buffer *buffer,
                                    const struct lane *lane) {
    int32_t index = buffer->shard_of_server[cursor->server];
    return index >= 0 && cursor->number < lane->shards[index].chunks ? &lane->shards[index] : NULL;
}

int cursor_peek(struct core *core, struct chunk_cursor *cursor, struct chunk *chunk) {
    for (; cursor->sequence < core->submitted; cursor->sequence++, cursor->number = cursor->shard = 0) {
        struct buffer *buffer = core->pending[cursor->sequence % MAX_PENDING];
        /* A buffer that is done was freed, and a later one may have its index: no cursor has work left in it. */
        if (!buffer || buffer->sequence != cursor->sequence) continue;
        struct lane *lane = &buffer->lanes[cursor->lane];
        struct shard *shard = cursor->server < 0 ? next_in_lane(cursor, lane) : next_of_server(cursor, buffer, lane);
        if (!shard) continue;
        uint64_t start = (uint64_t)cursor->number * shard->elements, remaining = shard->count - start;
        *chunk = (struct chunk){.buffer = buffer,
                                .shard = shard,
                                .number = cursor->number,
                                .elements = remaining < shard->elements ? (uint32_t)remaining : shard->elements,
                                .offset = shard->offset + start};
        return 1;
    }
    return 0;
}

void cursor_advance(struct chunk_cursor *cursor) {
    if (cursor->server >= 0)
        cursor->number++;
    else
        cursor->shard++; /* next_in_lane goes on to the next number behind the last shard */
}

uint8_t *chunk_data(const struct chunk *chunk) {
    return chunk->buffer->data + chunk->offset * element_size((int)chunk->buffer->element);
}

struct source chunk_host_sum(const struct chunk *chunk) {
    const struct buffer *buffer = chunk->buffer;
    if (!buffer->wide) return (struct source){chunk_data(chunk), (int)buffer->element};
    return (struct source){buffer->wide + (chunk->offset - buffer->wide_offset), HB_F32};
}

size_t chunk_size(const struct chunk *chunk) {
    return (size_t)chunk->elements * element_size((int)chunk->buffer->element);
}

uint32_t chunk_wire_size(const struct chunk *chunk) {
    return chunk->elements * element_size((int)chunk->buffer->wire);
}

struct header chunk_header(const struct chunk *chunk, enum message_kind kind, uint32_t length) {
    const struct buffer *buffer = chunk->buffer;
    return (struct header){.kind = (uint8_t)kind,
                           .element = (uint8_t)buffer->element,
                           .wire = (uint8_t)buffer->wire,
                           .length = length,
                           .sequence = buffer->sequence,
                           .offset = chunk->offset,
                           .elements = chunk->elements,
                           .divisor = buffer->divisor};
}

void buffer_chunk_done(struct core *core, struct buffer *buffer) {
    /* Frees the buffer: the caller must not use it or its shards afterwards. */
    if (--buffer->remaining == 0) state_buffer_done(core, buffer);
}

void buffer_chunk_final(struct core *core, struct chunk *chunk) {
    chunk->shard->final++;
    buffer_chunk_done(core, chunk->buffer);
}
