#include "arrivals.h"

#include <stdio.h>
#include <string.h>

#include "buffers.h"
#include "slots.h"
#include "sums.h"

/* Chunks whose round trip takes longer than this wait in queues, where they hold up those of other servers. */
#define LONG_ROUND_TRIP_SECONDS 0.02
#define LEAST_WINDOW_SHARE (1.0 / 16)

/* End the timing of a round trip, and use more or less of the window accordingly. */
static void time_return(struct core *core, struct link *link) {
    if (!(link->timed_since > 0) || link->returned.chunks < link->timed_chunk) return;
    int is_long = core->woke_at - link->timed_since > LONG_ROUND_TRIP_SECONDS;
    link->timed_since = 0;
    core->window_share = is_long ? core->window_share / 8 * 7 : core->window_share / 8 * 9;
    if (core->window_share > 1) core->window_share = 1;
    if (core->window_share < LEAST_WINDOW_SHARE) core->window_share = LEAST_WINDOW_SHARE;
}

/* The cursor of the sums that are due on a link; NULL: none can be. */
static struct chunk_cursor *cursor_of_sums(struct core *core, const struct link *link) {
    if (link->role == HB_LOCAL) return link->outbox ? &core->handed_cursors[link->index] : NULL;
    return core->member >= 0 ? &core->return_cursors[server_of(core, link)] : NULL;
}

/* Return 1 and the chunk whose sum `link->header` announces; 0 after a stop if another chunk's sum is due. */
static int expect_sum(struct core *core, struct link *link, struct chunk *due) {
    struct chunk_cursor *cursor = cursor_of_sums(core, link);
    /* A server sums in the order in which chunks are pushed, so the oldest chunk without a sum is the only one due.
     * An exact match of the header also bounds what the body may overwrite. */
    if (cursor && link->returned.chunks < link->pushed.chunks && cursor_peek(core, cursor, due)) {
        struct header expected = chunk_header(due, PUSH, 0);
        if (header_same_chunk(&expected, &link->header)) return 1;
    }
    char text[160];
    header_describe(text, sizeof text, &link->header);
    state_stop(core, "%s sent the sum of %s, which was not due", link->label, text);
    return 0;
}

uint8_t *arrivals_destination(struct core *core, struct link *link) {
    const struct header *header = &link->header;
    if (link->role == HB_LOCAL || header->length > core->chunk_bytes) return NULL;
    if (header->kind == SUM) {
        struct chunk due;
        if (!expect_sum(core, link, &due)) return NULL;
        return header_sum_element(header) == header->element ? chunk_data(&due) : link->unwidened;
    }
    if (link->role != HB_PEER || !core->serves) return NULL;
    if (!slots_have_room(&core->served, link->arrived, header->length)) {
        state_stop(core, "%s pushed more than its window of %u bytes", link->label, core->ring_bytes);
        return NULL;
    }
    /* The chunk has not arrived yet: step with a copy of the cursor. */
    struct ring_cursor next = link->arrived;
    return core->served.rings[link->index] + ring_next(&next, header->length, core->ring_bytes);
}

static void take_push(struct core *core, struct link *link) {
    const struct header *header = &link->header;
    int is_local = link->role == HB_LOCAL;
    struct slots *slots = is_local ? &core->joined : &core->served;
    /* Elements of a local rank are in shared memory already; the header alone comes over the socket. */
    size_t bytes = is_local ? (size_t)header->elements * element_size(header->element) : header->length;
    if (link->role == HB_HELPER || !slots->members || !slots->rings[link->index] || !bytes ||
        !slots_have_room(slots, link->arrived, bytes)) {
        state_stop(core, "%s pushed what was not due: the connection is out of step", link->label);
        return;
    }
    slots_arrive(slots, link->index, &link->arrived, bytes, header);
    if (core->member < 0 && slots_complete(slots)) core->last_arrival = (uint32_t)(link - core->links);
}

static void take_sum(struct core *core, struct link *link) {
    const struct header *header = &link->header;
    struct chunk due;
    if (!expect_sum(core, link, &due)) return;
    struct chunk_cursor *cursor = cursor_of_sums(core, link);
    if (link->role == HB_LOCAL) {
        /* The lane's owner put the sum where this rank's chunk was. */
        uint32_t offset = ring_next(&link->returned, chunk_size(&due), core->local_ring_bytes);
        memcpy(chunk_data(&due), link->outbox + offset, chunk_size(&due));
        cursor_advance(cursor);
        buffer_chunk_done(core, due.buffer);
        return;
    }
    /* The sum frees the place of the chunk that was pushed, which may have been larger. */
    ring_next(&link->returned, chunk_wire_size(&due), core->ring_bytes);
    time_return(core, link);
    if (header_sum_element(header) != header->element)
        widen((float *)chunk_data(&due), link->unwidened, header->wire, due.elements);
    cursor_advance(cursor);
    buffer_chunk_final(core, &due);
}

void arrivals_take(struct core *core, struct link *link) {
    if (link->header.kind == PUSH)
        take_push(core, link);
    else
        take_sum(core, link);
}

uint64_t arrivals_due_bytes(struct core *core, struct link *link) {
    struct chunk due;
    /* Ranks of one host wait for each other, not only for servers, so each sum is worth a wake there. */
    if (link->role != HB_HELPER || core->local_ranks > 1 || link->returned.chunks == link->pushed.chunks) return 0;
    if (!cursor_peek(core, &core->return_cursors[server_of(core, link)], &due)) return 0;
    /* Half of what is under way, of one buffer, and so little that LEAST_UNDER_WAY stay: the server stays busy. */
    uint64_t under_way = link->pushed.chunks - link->returned.chunks, remaining = due.shard->chunks - due.number;
    uint64_t chunks = (under_way + 1) / 2, spare = under_way > LEAST_UNDER_WAY ? under_way - LEAST_UNDER_WAY : 1;
    if (chunks > spare) chunks = spare;
    if (chunks > remaining) chunks = remaining;
    uint64_t end = (due.number + chunks) * due.shard->elements;
    if (end > due.shard->count) end = due.shard->count;
    uint64_t elements = end - (uint64_t)due.number * due.shard->elements;
    struct header sum = chunk_header(&due, SUM, 0);
    return chunks * sizeof sum + elements * element_size(header_sum_element(&sum));
}

struct link *arrivals_straggler(struct core *core) {
    const struct slots *slots = &core->served;
    if (core->straggler_chunk != slots->summed.chunks) core->straggler_offset = 0;
    core->straggler_chunk = slots->summed.chunks;
    int has_begun = slots->arrived_members[slots->summed.chunks % slots->max_chunks] > 0;
    for (uint32_t i = 0; i < core->link_count && !has_begun; i++) has_begun = core->links[i].body != NULL;
    /* Members tend to arrive in the same order in each round. The link that was last in the round before comes first
     * here: once its chunk is there, all others usually are. */
    for (; has_begun && core->straggler_offset < core->link_count; core->straggler_offset++) {
        struct link *link = &core->links[(core->last_arrival + core->straggler_offset) % core->link_count];
        if (slots_lack(slots, link->arrived)) return link;
    }
    return NULL;
}

static void check_late(struct core *core, struct slots *slots, struct chunk_cursor *own, double now) {
    struct chunk due;
    if (!slots->remote_members) return;
    int own_is_there = own && cursor_peek(core, own, &due), absent = 0;
    char names[2048] = "";
    const struct header *headers = slots_headers(slots, slots->summed.chunks);
    for (int member = 0; member < slots->members; member++) {
        if (headers[member].kind || (member == slots->own_member && own_is_there)) continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", absent++ ? ", " : "", slots->labels[member]);
    }
    /* If all are absent, nobody waits: the ranks compute, for as long as they like. */
    if (!absent || absent == slots->members) {
        slots->waiting_since = 0;
    } else if (!slots->waiting_since) {
        slots->waiting_since = now;
    } else if (now - slots->waiting_since > core->late) {
        state_stop(core,
                   "%s did not submit what the other ranks have submitted, for %g s: it computes for much longer than "
                   "they do, or waits for something else",
                   names, core->late);
    }
}

void arrivals_check_late(struct core *core, double now) {
    check_late(core, &core->served, core->serves && core->member >= 0 ? &core->serve_cursor : NULL, now);
    check_late(core, &core->joined, &core->join_cursor, now);
}
