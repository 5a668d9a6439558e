#include "slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sums.h"

static int is_integer(int element) { return element == HB_I32 || element == HB_I64 || element == HB_U8; }

int header_sum_element(const struct header *header) {
    return element_is_16_bit(header->element) ? header->element : header->wire;
}

int header_is_well_formed(const struct header *header, int is_local) {
    if (header->kind == ABORT) return header->length <= MAX_REASON_BYTES;
    if (header->kind != PUSH && header->kind != SUM)
        return header->kind >= ALIVE && header->kind <= LEFT && header->length == 0;
    int element = header->element, wire = header->wire;
    if (!element_size(element) || !element_size(wire) || !header->elements) return 0;
    /* fp32 may travel in 16 bits, and the sum over a host of 16 bits may travel in fp32. */
    if (element != wire && !(element == HB_F32 && element_is_16_bit(wire)) &&
        !(wire == HB_F32 && element_is_16_bit(element)))
        return 0;
    /* A NaN is not greater than 0 either. The kernels divide floating point only. */
    if (!(header->divisor > 0) || (is_integer(element) && header->divisor != 1)) return 0;
    uint64_t size = element_size(header->kind == PUSH ? wire : header_sum_element(header));
    return header->length == (is_local ? 0 : header->elements * size);
}

int header_same_chunk(const struct header *one, const struct header *other) {
    return one->element == other->element && one->wire == other->wire && one->sequence == other->sequence &&
           one->offset == other->offset && one->elements == other->elements && one->divisor == other->divisor;
}

void header_describe(char *text, size_t size, const struct header *header) {
    static const char *names[] = {"?", "float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8"};
    /* The header may come from a broken sender: an element that no version has is shown as "?". */
    snprintf(text, size, "buffer %llu, %u elements of %s from %llu on, divisor %g",
             (unsigned long long)header->sequence, header->elements, names[header->element < 8 ? header->element : 0],
             (unsigned long long)header->offset, (double)header->divisor);
}

int slots_init(struct slots *slots, int members, int own_member, uint32_t max_chunks, uint32_t ring_bytes) {
    slots->members = members;
    slots->own_member = own_member;
    slots->max_chunks = max_chunks;
    slots->ring_bytes = ring_bytes;
    slots->rings = calloc((size_t)members, sizeof *slots->rings);
    slots->labels = calloc((size_t)members, sizeof *slots->labels);
    slots->headers = calloc((size_t)max_chunks * (size_t)members, sizeof *slots->headers);
    slots->arrived_members = calloc(max_chunks, sizeof *slots->arrived_members);
    return slots->rings && slots->labels && slots->headers && slots->arrived_members ? 0 : -1;
}

void slots_free(struct slots *slots) {
    /* The rings belong to whoever allocated or mapped them. */
    free(slots->rings);
    free(slots->labels);
    free(slots->headers);
    free(slots->arrived_members);
}

struct header *slots_headers(const struct slots *slots, uint64_t number) {
    return slots->headers + number % slots->max_chunks * (uint64_t)slots->members;
}

int slots_complete(const struct slots *slots) {
    return slots->arrived_members[slots->summed.chunks % slots->max_chunks] == (uint32_t)slots->remote_members;
}

int slots_lack(const struct slots *slots, struct ring_cursor arrived) {
    return arrived.chunks == slots->summed.chunks;
}

int slots_have_room(const struct slots *slots, struct ring_cursor arrived, size_t bytes) {
    /* A member pushes into the place of a chunk only after that chunk's sum came back to it. So memory is bounded by
     * the window however large the buffers are, and no chunk is overwritten before it is summed. */
    return ring_has_room(arrived, slots->summed, bytes, slots->ring_bytes, slots->max_chunks);
}

void slots_arrive(struct slots *slots, int member, struct ring_cursor *arrived, size_t bytes,
                  const struct header *header) {
    slots_headers(slots, arrived->chunks)[member] = *header;
    slots->arrived_members[arrived->chunks % slots->max_chunks]++;
    ring_next(arrived, bytes, slots->ring_bytes);
}

const struct header *slots_check(struct core *core, struct slots *slots, const struct header *own) {
    /* Members push in the order of submission. Different chunks at the same position mean that ranks submitted
     * different buffers, and their elements must not be added up. */
    struct header *headers = slots_headers(slots, slots->summed.chunks);
    if (own) headers[slots->own_member] = *own;
    for (int member = 1; member < slots->members; member++) {
        if (header_same_chunk(&headers[0], &headers[member])) continue;
        char first[160], other[160];
        header_describe(first, sizeof first, &headers[0]);
        header_describe(other, sizeof other, &headers[member]);
        state_stop(core,
                   "ranks do not sum the same buffers: %s gave %s, %s gave %s. All ranks submit the same buffers in "
                   "the same order: compare their models, and what they skip",
                   slots->labels[0], first, slots->labels[member], other);
        return NULL;
    }
    return headers;
}

uint32_t slots_advance(struct slots *slots, size_t bytes) {
    /* Kind 0 marks the slot as empty. It is used again max_chunks later. */
    memset(slots_headers(slots, slots->summed.chunks), 0, (size_t)slots->members * sizeof *slots->headers);
    slots->arrived_members[slots->summed.chunks % slots->max_chunks] = 0;
    slots->waiting_since = 0;
    return ring_next(&slots->summed, bytes, slots->ring_bytes);
}
