/* What the members of a sum have given: see summing.py, and ring.py for where it lies. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Chunks in a ring start at multiples of this. */
#define LINE 64

int same_chunk(const struct header *one, const struct header *other) {
    return one->element == other->element && one->wire == other->wire && one->sequence == other->sequence &&
           one->offset == other->offset && one->elements == other->elements && one->divisor == other->divisor;
}

void describe(char *text, size_t size, const struct header *header) {
    static const char *names[] = {"?", "float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8"};
    snprintf(text, size, "buffer %llu, %u elements of %s from %llu on, divisor %u",
             (unsigned long long)header->sequence, header->elements, names[header->element < 8 ? header->element : 0],
             (unsigned long long)header->offset, header->divisor);
}

uint32_t place_next(struct place *place, size_t bytes, uint32_t ring) {
    uint32_t at = (uint32_t)(place->end % ring);
    if (at + bytes > ring) {
        place->end += ring - at;
        at = 0;
    }
    place->end += (bytes + LINE - 1) / LINE * LINE;
    place->number++;
    return at;
}

int place_is_free(struct place taken, struct place freed, size_t bytes, uint32_t ring, uint32_t most) {
    if (taken.number == freed.number) return 1;
    place_next(&taken, bytes, ring);
    return taken.end - freed.end <= ring && taken.number - freed.number <= most;
}

int slots_init(struct slots *slots, int members, int own, uint32_t most, uint32_t ring) {
    slots->members = members;
    slots->own = own;
    slots->most = most;
    slots->ring = ring;
    slots->memory = calloc((size_t)members, sizeof *slots->memory);
    slots->labels = calloc((size_t)members, sizeof *slots->labels);
    slots->headers = calloc((size_t)most * (size_t)members, sizeof *slots->headers);
    slots->came = calloc(most, sizeof *slots->came);
    return slots->memory && slots->labels && slots->headers && slots->came ? 0 : -1;
}

struct header *slots_headers(const struct slots *slots, uint64_t number) {
    return slots->headers + number % slots->most * (uint64_t)slots->members;
}

int slots_complete(const struct slots *slots) {
    return slots->came[slots->summed.number % slots->most] == (uint32_t)slots->others;
}

const struct header *slots_check(struct core *core, struct slots *slots, const struct header *own) {
    struct header *headers = slots_headers(slots, slots->summed.number);
    if (own) headers[slots->own] = *own;
    for (int member = 1; member < slots->members; member++) {
        if (same_chunk(&headers[0], &headers[member])) continue;
        char first[160], other[160];
        describe(first, sizeof first, &headers[0]);
        describe(other, sizeof other, &headers[member]);
        stop(core,
             "ranks do not sum the same buffers: %s gave %s, %s gave %s. All ranks submit the same buffers in the same "
             "order: compare their models, and what they skip",
             slots->labels[0], first, slots->labels[member], other);
        return NULL;
    }
    return headers;
}

uint32_t slots_advance(struct slots *slots, size_t bytes) {
    memset(slots_headers(slots, slots->summed.number), 0, (size_t)slots->members * sizeof *slots->headers);
    slots->came[slots->summed.number % slots->most] = 0;
    slots->waiting_since = 0;
    return place_next(&slots->summed, bytes, slots->ring);
}

void slots_free(struct slots *slots) {
    free(slots->memory);
    free(slots->labels);
    free(slots->headers);
    free(slots->came);
}
