#include "flow.h"

#include <stdlib.h>
#include <string.h>

#include "arrivals.h"
#include "buffers.h"
#include "links.h"
#include "slots.h"
#include "sums.h"

/* [1] */
static void contribute(struct core *core, int lane) {
    struct link *link = core->local_links[lane];
    struct chunk due;
    while (cursor_peek(core, &core->contribute_cursors[lane], &due) &&
           ring_has_room(link->pushed, link->returned, chunk_size(&due), core->local_ring_bytes,
                         core->local_max_chunks)) {
        uint32_t offset = ring_next(&link->pushed, chunk_size(&due), core->local_ring_bytes);
        memcpy(link->outbox + offset, chunk_data(&due), chunk_size(&due));
        /* The header is sent after the copy, and system calls order memory: its receiver finds the elements. */
        link_send(core, link, chunk_header(&due, PUSH, 0), NULL);
        cursor_advance(&core->contribute_cursors[lane]);
    }
}

/* Sum what this host's ranks gave for a chunk of the own lane. A rank that is alone on its host gave the only part. */
static void sum_host(struct core *core, const struct chunk *due) {
    struct slots *slots = &core->joined;
    const struct buffer *buffer = due->buffer;
    int members = slots->members ? slots->members : 1;
    /* The last sum divides. A sum that goes on over the network in 16 bits is divided before, or it might overflow. */
    float divisor = core->uses_network ? (float)buffer->host_divisor : buffer->divisor;
    struct source sum = chunk_host_sum(due);
    if (!slots->members && !buffer->wide && buffer->host_divisor == 1) return;
    uint32_t offset = slots->members ? slots_advance(slots, chunk_size(due)) : 0;
    for (int member = 0; member < members; member++) {
        int is_own = !slots->members || member == slots->own_member;
        core->sources[member] =
            (struct source){is_own ? chunk_data(due) : slots->rings[member] + offset, (int)buffer->element};
    }
    sum_sources((void *)sum.data, sum.element, core->sources, members, due->elements, divisor);
}

/* [2] */
static void join(struct core *core) {
    struct slots *slots = &core->joined;
    struct chunk due;
    /* Without slots this rank is alone on its host: its own chunk is the sum. */
    while (!core->stopping && cursor_peek(core, &core->join_cursor, &due) &&
           (!slots->members || slots_complete(slots))) {
        if (slots->members) {
            struct header own = chunk_header(&due, PUSH, 0);
            if (!slots_check(core, slots, &own)) return;
        }
        sum_host(core, &due);
        /* [3] and [4] use the chunk from here on. */
        due.shard->ready++;
        cursor_advance(&core->join_cursor);
        if (!core->uses_network) buffer_chunk_final(core, &due);
    }
}

static int may_push(const struct core *core, const struct link *link, const struct chunk *chunk) {
    const struct buffer *buffer = chunk->buffer;
    /* The window counts chunks of the buffer's largest size, not bytes: small shards have small chunks, and all shards
     * are to end at the same time. */
    uint32_t largest = buffer->chunk_elements * element_size((int)buffer->wire);
    uint32_t window = (uint32_t)(core->window_share * buffer->window_bytes) / largest;
    uint64_t under_way = link->pushed.chunks - link->returned.chunks;
    return under_way < (window > LEAST_UNDER_WAY ? window : LEAST_UNDER_WAY) &&
           ring_has_room(link->pushed, link->returned, chunk_wire_size(chunk), core->ring_bytes, core->max_chunks);
}

/* [3] */
static void push(struct core *core, struct link *link) {
    struct chunk_cursor *cursor = &core->push_cursors[server_of(core, link)];
    struct chunk due;
    while (cursor_peek(core, cursor, &due) && due.number < due.shard->ready && may_push(core, link, &due)) {
        struct source sum = chunk_host_sum(&due);
        uint32_t offset = ring_next(&link->pushed, chunk_wire_size(&due), core->ring_bytes);
        /* One chunk at a time is timed: its round trip says how long chunks wait in queues. */
        if (!(link->timed_since > 0)) {
            link->timed_chunk = link->pushed.chunks;
            link->timed_since = core->woke_at;
        }
        if ((int)due.buffer->wire != sum.element) {
            /* Into a ring of its own, where the bytes stay unchanged until they are sent. */
            narrow(link->narrowed + offset, (int)due.buffer->wire, sum.data, due.elements);
            sum.data = link->narrowed + offset;
        }
        link_send(core, link, chunk_header(&due, PUSH, chunk_wire_size(&due)), sum.data);
        cursor_advance(cursor);
    }
}

/* Sum the chunk that all members have given, and send the sum to those that are other processes. */
static const uint8_t *sum_and_send(struct core *core, struct header header, const struct chunk *own_chunk) {
    struct slots *slots = &core->served;
    uint32_t offset = slots_advance(slots, (size_t)header.elements * element_size(header.wire));
    for (int member = 0; member < slots->members; member++)
        core->sources[member] = member == slots->own_member
                                    ? chunk_host_sum(own_chunk)
                                    : (struct source){slots->rings[member] + offset, header.wire};
    /* The result is sent without a copy and stays until then: a member pushes the chunk that will take this place only
     * after it has received this sum. */
    uint8_t *result = core->results + offset;
    sum_sources(result, header_sum_element(&header), core->sources, slots->members, header.elements, header.divisor);
    for (uint32_t i = 0; i < core->link_count; i++)
        if (core->links[i].role == HB_PEER) link_send(core, &core->links[i], header, result);
    return result;
}

/* [4] */
static void serve(struct core *core) {
    struct slots *slots = &core->served;
    int is_member = slots->own_member >= 0;
    while (core->serves && !core->stopping && slots_complete(slots)) {
        struct chunk own_chunk;
        struct header own_header;
        if (is_member) {
            if (!cursor_peek(core, &core->serve_cursor, &own_chunk)) return;
            if (own_chunk.number >= own_chunk.shard->ready) return;
            own_header = chunk_header(&own_chunk, PUSH, 0);
        }
        const struct header *agreed = slots_check(core, slots, is_member ? &own_header : NULL);
        if (!agreed) return;
        struct header header = *agreed; /* a copy: the sum empties the slot */
        header.kind = SUM;
        header.length = header.elements * element_size(header_sum_element(&header));
        const uint8_t *result = sum_and_send(core, header, &own_chunk);
        if (!is_member) continue;
        /* All ranks take the elements that went over the wire, so that they have the same bits. */
        if (header_sum_element(&header) == header.element)
            memcpy(chunk_data(&own_chunk), result, header.length);
        else
            widen((float *)chunk_data(&own_chunk), result, header.wire, header.elements);
        cursor_advance(&core->serve_cursor);
        buffer_chunk_final(core, &own_chunk);
    }
}

/* [5] */
static void hand_on(struct core *core) {
    struct chunk due;
    while (core->joined.members && cursor_peek(core, &core->hand_on_cursor, &due) &&
           due.number < due.shard->final) {
        uint32_t offset = ring_next(&core->handed, chunk_size(&due), core->local_ring_bytes);
        for (int member = 0; member < core->local_ranks; member++) {
            if (member == core->local_rank) continue;
            /* The place of the chunk that the rank gave: it was summed, and the rank writes there after this sum. */
            memcpy(core->joined.rings[member] + offset, chunk_data(&due), chunk_size(&due));
            link_send(core, core->local_links[member], chunk_header(&due, SUM, 0), NULL);
        }
        cursor_advance(&core->hand_on_cursor);
        buffer_chunk_done(core, due.buffer);
    }
}

void flow_run(struct core *core) {
    if (core->member >= 0) {
        for (int lane = 0; lane < core->lanes; lane++)
            if (lane != core->local_rank) contribute(core, lane);
        if (core->carries_lane) join(core);
        for (uint32_t i = 0; core->uses_network && i < core->link_count; i++)
            if (core->links[i].role != HB_LOCAL) push(core, &core->links[i]);
    }
    serve(core);
    if (core->carries_lane) hand_on(core);
}

static struct chunk_cursor cursor_at(int lane, int server) {
    return (struct chunk_cursor){.lane = lane, .server = server};
}

static void init_cursors(struct core *core, int servers) {
    for (int lane = 0; lane < core->local_ranks; lane++)
        core->contribute_cursors[lane] = core->handed_cursors[lane] = cursor_at(lane, -1);
    for (int server = 0; server < servers; server++)
        core->push_cursors[server] = core->return_cursors[server] = cursor_at(core->local_rank, server);
    core->join_cursor = core->hand_on_cursor = cursor_at(core->local_rank, -1);
    core->serve_cursor = cursor_at(core->local_rank, core->own_server);
}

/* Make the other end of a link a member of the sums that it takes part in. */
static int init_member(struct core *core, struct link *link) {
    if (link->role == HB_LOCAL) {
        core->local_links[link->index] = link;
        if (!core->joined.members) return 0;
        core->joined.labels[link->index] = link->label;
        core->joined.rings[link->index] = link->inbox;
        core->joined.remote_members++;
    } else if (link->role == HB_PEER) {
        core->served.labels[link->index] = link->label;
        core->served.rings[link->index] = malloc(core->ring_bytes);
        if (!core->served.rings[link->index]) return -1;
        core->served.remote_members++;
        core->serves = 1;
    }
    return 0;
}

int flow_init(struct core *core) {
    int servers = core->helpers + core->members;
    int most_members = core->members > core->local_ranks ? core->members : core->local_ranks;
    core->window_share = 1;
    core->own_server = core->helpers + core->member;
    core->carries_lane = core->member >= 0 && core->local_rank < core->lanes;
    core->uses_network = core->carries_lane && core->members > 1;
    core->local_links = calloc((size_t)core->local_ranks, sizeof *core->local_links);
    core->sources = calloc((size_t)most_members, sizeof *core->sources);
    core->push_cursors = calloc((size_t)servers, sizeof *core->push_cursors);
    core->return_cursors = calloc((size_t)servers, sizeof *core->return_cursors);
    core->contribute_cursors = calloc((size_t)core->local_ranks, sizeof *core->contribute_cursors);
    core->handed_cursors = calloc((size_t)core->local_ranks, sizeof *core->handed_cursors);
    core->results = malloc(core->ring_bytes);
    if (!core->local_links || !core->sources || !core->push_cursors || !core->return_cursors ||
        !core->contribute_cursors || !core->handed_cursors || !core->results)
        return -1;
    if (slots_init(&core->served, core->members, core->member, core->max_chunks, core->ring_bytes)) return -1;
    if (core->carries_lane && core->local_ranks > 1 &&
        slots_init(&core->joined, core->local_ranks, core->local_rank, core->local_max_chunks, core->local_ring_bytes))
        return -1;
    if (core->member >= 0) core->served.labels[core->member] = core->label;
    if (core->joined.members) core->joined.labels[core->local_rank] = core->label;
    for (uint32_t i = 0; i < core->link_count; i++)
        if (init_member(core, &core->links[i])) return -1;
    init_cursors(core, servers);
    return 0;
}

void flow_free(struct core *core) {
    /* Rings of local ranks are shared memory, which their owner unmaps; these were allocated by init_member. */
    for (int member = 0; core->served.rings && member < core->members; member++) free(core->served.rings[member]);
    slots_free(&core->served);
    slots_free(&core->joined);
    free(core->local_links);
    free(core->sources);
    free(core->push_cursors);
    free(core->return_cursors);
    free(core->contribute_cursors);
    free(core->handed_cursors);
    free(core->results);
}
