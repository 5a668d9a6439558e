/* How chunks flow through one process: the five steps of flow.py, and what a wake is worth. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int peek(struct core *core, struct cursor *cursor, struct chunk *chunk) {
    for (; cursor->sequence < core->submitted; cursor->sequence++, cursor->number = cursor->place = 0) {
        struct buffer *buffer = core->pending[cursor->sequence % PENDING];
        /* A buffer that is gone is done, and a cursor has nothing left to do in it. */
        if (!buffer || buffer->sequence != cursor->sequence) continue;
        struct lane *lane = &buffer->lanes[cursor->lane];
        if (cursor->server >= 0) {
            int place = buffer->place_of_server[cursor->server];
            if (place < 0 || cursor->number >= lane->shards[place].chunks) continue;
            chunk->shard = &lane->shards[place];
        } else {
            /* Chunk 0 of each shard, then chunk 1 of each. */
            while (cursor->number < lane->rounds && (cursor->place >= lane->count ||
                                                     cursor->number >= lane->shards[cursor->place].chunks)) {
                if (cursor->place < lane->count) {
                    cursor->place++;
                } else {
                    cursor->place = 0;
                    cursor->number++;
                }
            }
            if (cursor->number >= lane->rounds) continue;
            chunk->shard = &lane->shards[cursor->place];
        }
        uint32_t elements = chunk->shard->elements;
        uint64_t start = (uint64_t)cursor->number * elements, left = chunk->shard->count - start;
        chunk->buffer = buffer;
        chunk->number = cursor->number;
        chunk->offset = chunk->shard->offset + start;
        chunk->elements = left < elements ? (uint32_t)left : elements;
        return 1;
    }
    return 0;
}

static void advance(struct cursor *cursor) {
    if (cursor->server >= 0)
        cursor->number++;
    else
        cursor->place++;
}

static uint8_t *bytes_of(const struct chunk *chunk) {
    return chunk->buffer->data + chunk->offset * element_size((int)chunk->buffer->element);
}

static size_t size_of(const struct chunk *chunk) {
    return (size_t)chunk->elements * element_size((int)chunk->buffer->element);
}

static uint32_t wire_size_of(const struct chunk *chunk) {
    return chunk->elements * element_size((int)chunk->buffer->wire);
}

/* The number as a server of who is at the other end: helpers first, then hosts. */
static int server_of(const struct core *core, const struct link *link) {
    return link->role == HB_HELPER ? link->index : core->helpers + link->index;
}

static struct header header_of(const struct chunk *chunk, uint8_t kind, uint32_t length) {
    const struct buffer *buffer = chunk->buffer;
    return (struct header){.kind = kind,
                           .element = (uint8_t)buffer->element,
                           .wire = (uint8_t)buffer->wire,
                           .length = length,
                           .sequence = buffer->sequence,
                           .offset = chunk->offset,
                           .elements = chunk->elements,
                           .divisor = buffer->divisor};
}

static void missing(struct core *core, struct slots *slots, struct cursor *own, double at) {
    struct chunk due;
    if (!slots->others) return;
    int own_there = own && peek(core, own, &due), absent = 0;
    char names[2048] = "";
    const struct header *headers = slots_headers(slots, slots->summed.number);
    for (int member = 0; member < slots->members; member++) {
        if (headers[member].kind || (member == slots->own && own_there)) continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", absent++ ? ", " : "", slots->labels[member]);
    }
    if (!absent || absent == slots->members) {
        slots->waiting_since = 0;
    } else if (!slots->waiting_since) {
        slots->waiting_since = at;
    } else if (at - slots->waiting_since > core->late) {
        stop(core,
             "%s did not submit what the other ranks have submitted, for %g s: it computes for much longer than they "
             "do, or waits for something else",
             names, core->late);
    }
}

void flow_late(struct core *core, double at) {
    missing(core, &core->served, core->serves && core->member >= 0 ? &core->serving : NULL, at);
    missing(core, &core->joined, &core->joining, at);
}

/* Steps. */

static void one_less(struct core *core, struct buffer *buffer) {
    if (--buffer->remaining == 0) finished(core, buffer);
}

static void is_final(struct core *core, struct chunk *chunk) {
    chunk->shard->final++;
    one_less(core, chunk->buffer);
}

static void contribute(struct core *core, int index) {
    struct link *link = core->neighbours[index];
    struct chunk due;
    while (peek(core, &core->giving[index], &due) &&
           place_is_free(link->pushed, link->returned, size_of(&due), core->local_ring, core->local_most)) {
        uint32_t at = place_next(&link->pushed, size_of(&due), core->local_ring);
        memcpy(link->outbox + at, bytes_of(&due), size_of(&due));
        link_send(core, link, header_of(&due, PUSH, 0), NULL);
        advance(&core->giving[index]);
    }
}

static void join(struct core *core) {
    struct slots *slots = &core->joined;
    struct chunk due;
    while (!core->stopping && peek(core, &core->joining, &due) && (!slots->members || slots_complete(slots))) {
        if (slots->members) {
            struct header own = header_of(&due, PUSH, 0);
            if (!slots_check(core, slots, &own)) return;
            uint32_t at = slots_advance(slots, size_of(&due));
            for (int member = 0; member < slots->members; member++)
                core->sources[member] = (struct source){
                    member == slots->own ? bytes_of(&due) : slots->memory[member] + at, (int)due.buffer->element};
            sum_sources(bytes_of(&due), (int)due.buffer->element, core->sources, slots->members, due.elements,
                        core->network ? 1 : due.buffer->divisor);
        }
        due.shard->ready++;
        advance(&core->joining);
        if (!core->network) is_final(core, &due);
    }
}

/* What is under way longer than this waits in queues, where chunks of all servers get in each other's way. */
#define LONG_UNDER_WAY 0.02
/* One goes, one comes back, one is there for the credit's way. */
#define LEAST_UNDER_WAY 3
#define LEAST_SHARE (1.0 / 16)

static void time_push(const struct core *core, struct link *link) {
    if (link->timed_since > 0) return;
    link->timed = link->pushed.number;
    link->timed_since = core->at;
}

static void time_return(struct core *core, struct link *link) {
    if (!(link->timed_since > 0) || link->returned.number < link->timed) return;
    int is_long = core->at - link->timed_since > LONG_UNDER_WAY;
    link->timed_since = 0;
    core->share = is_long ? core->share / 8 * 7 : core->share / 8 * 9;
    if (core->share > 1) core->share = 1;
    if (core->share < LEAST_SHARE) core->share = LEAST_SHARE;
}

/* As many chunks for each server, not as many bytes: small shards have small ones, and all are to end together. */
static int may_push(const struct core *core, const struct link *link, const struct chunk *chunk) {
    const struct buffer *buffer = chunk->buffer;
    uint32_t largest = buffer->elements * element_size((int)buffer->wire);
    uint32_t most = (uint32_t)(core->share * buffer->window) / largest;
    uint64_t under_way = link->pushed.number - link->returned.number;
    return under_way < (most > LEAST_UNDER_WAY ? most : LEAST_UNDER_WAY) &&
           place_is_free(link->pushed, link->returned, wire_size_of(chunk), core->ring, core->most);
}

static void push(struct core *core, struct link *link) {
    struct cursor *cursor = &core->pushing[server_of(core, link)];
    struct chunk due;
    while (peek(core, cursor, &due) && due.number < due.shard->ready &&
           may_push(core, link, &due)) {
        uint8_t *data = bytes_of(&due);
        uint32_t at = place_next(&link->pushed, wire_size_of(&due), core->ring);
        time_push(core, link);
        if (due.buffer->wire != due.buffer->element) {
            data = link->staged + at;
            narrow(data, (int)due.buffer->wire, (const float *)bytes_of(&due), due.elements);
        }
        link_send(core, link, header_of(&due, PUSH, wire_size_of(&due)), data);
        advance(cursor);
    }
}

static void serve(struct core *core) {
    struct slots *slots = &core->served;
    while (core->serves && !core->stopping && slots_complete(slots)) {
        struct chunk due;
        struct header own;
        if (slots->own >= 0) {
            if (!peek(core, &core->serving, &due) || due.number >= due.shard->ready) return;
            own = header_of(&due, PUSH, 0);
        }
        const struct header *first = slots_check(core, slots, slots->own >= 0 ? &own : NULL);
        if (!first) return;
        struct header header = *first;
        header.kind = SUM;
        header.length = header.elements * element_size(header.wire);
        uint32_t at = slots_advance(slots, header.length);
        for (int member = 0; member < slots->members; member++)
            core->sources[member] = member == slots->own
                                        ? (struct source){bytes_of(&due), (int)due.buffer->element}
                                        : (struct source){slots->memory[member] + at, header.wire};
        /* A sum is not overwritten before all have it: they would not have pushed what takes its place. */
        uint8_t *result = core->results + at;
        sum_sources(result, header.wire, core->sources, slots->members, header.elements, header.divisor);
        for (uint32_t i = 0; i < core->link_count; i++)
            if (core->links[i].role == HB_PEER) link_send(core, &core->links[i], header, result);
        if (slots->own < 0) continue;
        /* What all have is what went over the wire: the same bits everywhere. */
        if (header.wire == header.element)
            memcpy(bytes_of(&due), result, header.length);
        else
            widen((float *)bytes_of(&due), result, header.wire, header.elements);
        advance(&core->serving);
        is_final(core, &due);
    }
}

static void hand_on(struct core *core) {
    struct chunk due;
    while (core->joined.members && peek(core, &core->handing, &due) && due.number < due.shard->final) {
        uint32_t at = place_next(&core->handed, size_of(&due), core->local_ring);
        for (int member = 0; member < core->locals; member++) {
            if (member == core->local) continue;
            memcpy(core->joined.memory[member] + at, bytes_of(&due), size_of(&due));
            link_send(core, core->neighbours[member], header_of(&due, SUM, 0), NULL);
        }
        advance(&core->handing);
        one_less(core, due.buffer);
    }
}

void flow_run(struct core *core) {
    if (core->member >= 0) {
        for (int index = 0; index < core->lanes; index++)
            if (index != core->local) contribute(core, index);
        if (core->carries) join(core);
        for (uint32_t i = 0; core->network && i < core->link_count; i++)
            if (core->links[i].role != HB_LOCAL) push(core, &core->links[i]);
    }
    serve(core);
    if (core->carries) hand_on(core);
}

/* The chunk whose sum is due on a link; 0 after a stop where what came is another one. */
static int expected(struct core *core, struct link *link, struct chunk *due) {
    struct cursor *cursor = NULL;
    if (link->role == HB_LOCAL)
        cursor = link->outbox ? &core->given[link->index] : NULL;
    else if (core->member >= 0)
        cursor = &core->returning[server_of(core, link)];
    if (cursor && link->returned.number < link->pushed.number && peek(core, cursor, due)) {
        struct header own = header_of(due, PUSH, 0);
        if (same_chunk(&own, &link->head)) return 1;
    }
    char text[160];
    describe(text, sizeof text, &link->head);
    stop(core, "%s sent the sum of %s, which was not due", link->label, text);
    return 0;
}

uint8_t *flow_place(struct core *core, struct link *link) {
    const struct header *head = &link->head;
    struct chunk due;
    if (link->role == HB_LOCAL || head->length > core->chunk_bytes ||
        head->length != head->elements * element_size(head->wire))
        return NULL;
    if (head->kind == SUM) {
        if (!expected(core, link, &due)) return NULL;
        return head->wire == head->element ? bytes_of(&due) : link->landed;
    }
    if (link->role != HB_PEER || !core->serves) return NULL;
    if (!place_is_free(link->arrived, core->served.summed, head->length, core->ring, core->most)) {
        stop(core, "%s pushed more than its window of %u bytes", link->label, core->ring);
        return NULL;
    }
    struct place next = link->arrived;
    return core->served.memory[link->index] + place_next(&next, head->length, core->ring);
}

void flow_take(struct core *core, struct link *link) {
    const struct header *head = &link->head;
    struct chunk due;
    if (head->kind == PUSH) {
        struct slots *slots = link->role == HB_LOCAL ? &core->joined : &core->served;
        size_t bytes = link->role == HB_LOCAL ? (size_t)head->elements * element_size(head->element) : head->length;
        if (link->role == HB_HELPER || !slots->members || !slots->memory[link->index] ||
            (link->role == HB_PEER && !head->length) ||
            !place_is_free(link->arrived, slots->summed, bytes, slots->ring, slots->most)) {
            stop(core, "%s pushed what was not due: the connection is out of step", link->label);
            return;
        }
        slots_headers(slots, link->arrived.number)[link->index] = *head;
        slots->came[link->arrived.number % slots->most]++;
        if (core->member < 0 && slots_complete(slots)) core->last = (uint32_t)(link - core->links);
        place_next(&link->arrived, bytes, slots->ring);
        return;
    }
    if (!expected(core, link, &due)) return;
    struct cursor *cursor;
    if (link->role == HB_LOCAL) {
        uint32_t at = place_next(&link->returned, size_of(&due), core->local_ring);
        memcpy(bytes_of(&due), link->outbox + at, size_of(&due));
        cursor = &core->given[link->index];
    } else {
        place_next(&link->returned, head->length, core->ring);
        time_return(core, link);
        if (head->wire != head->element) widen((float *)bytes_of(&due), link->landed, head->wire, due.elements);
        cursor = &core->returning[server_of(core, link)];
    }
    advance(cursor);
    if (link->role == HB_LOCAL)
        one_less(core, due.buffer);
    else
        is_final(core, &due);
}

/* Half of what is under way, of one buffer, and not so much that the least is not: that keeps the server busy. */
uint64_t flow_due(struct core *core, struct link *link) {
    struct chunk due;
    /* Ranks of one host wait for each other, not for the servers alone: they take what comes. */
    if (link->role != HB_HELPER || core->locals > 1 || link->returned.number == link->pushed.number) return 0;
    if (!peek(core, &core->returning[server_of(core, link)], &due)) return 0;
    uint64_t under_way = link->pushed.number - link->returned.number, left = due.shard->chunks - due.number;
    uint64_t chunks = (under_way + 1) / 2, spare = under_way > LEAST_UNDER_WAY ? under_way - LEAST_UNDER_WAY : 1;
    if (chunks > spare) chunks = spare;
    if (chunks > left) chunks = left;
    uint64_t end = (due.number + chunks) * due.shard->elements;
    if (end > due.shard->count) end = due.shard->count;
    uint64_t elements = end - (uint64_t)due.number * due.shard->elements;
    return chunks * sizeof(struct header) + elements * element_size((int)due.buffer->wire);
}

struct link *flow_behind(struct core *core) {
    const struct slots *slots = &core->served;
    if (core->sought_of != slots->summed.number) core->sought = 0;
    core->sought_of = slots->summed.number;
    int begun = slots->came[slots->summed.number % slots->most] > 0;
    for (uint32_t i = 0; i < core->link_count && !begun; i++) begun = core->links[i].body != NULL;
    /* Chunks of all come by one link, as a rule in the same order: when the last one's is there, all are. */
    for (; begun && core->sought < core->link_count; core->sought++) {
        struct link *link = &core->links[(core->last + core->sought) % core->link_count];
        if (flow_lacks(core, link)) return link;
    }
    return NULL;
}

int flow_lacks(const struct core *core, const struct link *link) {
    return link->arrived.number == core->served.summed.number;
}

static struct cursor cursor_of(int lane, int server) { return (struct cursor){.lane = lane, .server = server}; }

int flow_init(struct core *core) {
    int servers = core->helpers + core->members, most = core->members > core->locals ? core->members : core->locals;
    core->own_server = core->helpers + core->member;
    core->carries = core->member >= 0 && core->local < core->lanes;
    core->network = core->carries && core->members > 1;
    core->neighbours = calloc((size_t)core->locals, sizeof *core->neighbours);
    core->sources = calloc((size_t)most, sizeof *core->sources);
    core->pushing = calloc((size_t)servers, sizeof *core->pushing);
    core->returning = calloc((size_t)servers, sizeof *core->returning);
    core->giving = calloc((size_t)core->locals, sizeof *core->giving);
    core->given = calloc((size_t)core->locals, sizeof *core->given);
    core->results = malloc(core->ring);
    if (!core->neighbours || !core->sources || !core->pushing || !core->returning || !core->giving ||
        !core->given || !core->results)
        return -1;
    if (slots_init(&core->served, core->members, core->member, core->most, core->ring)) return -1;
    if (core->carries && core->locals > 1 &&
        slots_init(&core->joined, core->locals, core->local, core->local_most, core->local_ring))
        return -1;
    if (core->member >= 0) core->served.labels[core->member] = core->label;
    if (core->joined.members) core->joined.labels[core->local] = core->label;
    for (uint32_t i = 0; i < core->link_count; i++) {
        struct link *link = &core->links[i];
        if (link->role == HB_LOCAL) {
            core->neighbours[link->index] = link;
            if (!core->joined.members) continue;
            core->joined.labels[link->index] = link->label;
            core->joined.memory[link->index] = link->inbox;
            core->joined.others++;
            continue;
        }
        if (link->role == HB_HELPER) continue;
        core->served.labels[link->index] = link->label;
        core->served.memory[link->index] = malloc(core->ring);
        if (!core->served.memory[link->index]) return -1;
        core->served.others++;
        core->serves = 1;
    }
    for (int lane = 0; lane < core->locals; lane++) core->giving[lane] = core->given[lane] = cursor_of(lane, -1);
    for (int server = 0; server < servers; server++)
        core->pushing[server] = core->returning[server] = cursor_of(core->local, server);
    core->joining = core->handing = cursor_of(core->local, -1);
    core->serving = cursor_of(core->local, core->own_server);
    return 0;
}

void flow_free(struct core *core) {
    for (int member = 0; core->served.memory && member < core->members; member++) free(core->served.memory[member]);
    slots_free(&core->served);
    slots_free(&core->joined);
    free(core->neighbours);
    free(core->sources);
    free(core->pushing);
    free(core->returning);
    free(core->giving);
    free(core->given);
    free(core->results);
}
