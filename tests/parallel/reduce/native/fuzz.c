/* Sends broken headers to cores, for test_native.py: `fuzz CONNECTIONS SEED`.
 *
 * Each connection gets a few messages that a core of its kind would accept, most of them with one to three fields
 * changed, and then a message of a kind that does not exist. Whatever came before, the core must end: a rank with an
 * error, a helper also without one if all sent LEAVE. Exits 1 and names the connection if one does not.
 *
 * The linker replaces pthread_create (`--wrap`): the core's thread function runs in the main thread once all messages
 * are in the sockets. So every run does the same, and thousands of connections take a second.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "reduce.h"
#include "state.h"

#define CHUNK_BYTES 1024
#define RING_BYTES 4096
#define MAX_CHUNKS 8
#define ELEMENTS 512
#define MAX_MESSAGES 6
#define TURN_MESSAGES 40
#define MAX_REASON_BYTES (64u << 10)
#define SECONDS_FOR_ALL 100

static void *(*thread_function)(void *);
static void *thread_argument;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    (void)thread, (void)attributes;
    thread_function = start;
    thread_argument = argument;
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result) {
    (void)thread, (void)result;
    return 0;
}

static uint64_t random_state;

/* xorshift64: the same numbers on every machine. */
static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t below(uint64_t limit) { return next_random() % limit; }

/* Numbers at which sizes wrap around, counts go to zero and limits end. */
static uint64_t edge(void) {
    static const uint64_t edges[] = {0,          1,          2,           3,          63,         64,
                                     65,         255,        CHUNK_BYTES, RING_BYTES, 0x3fffffff, 0x40000000,
                                     0x40000001, 0x7fffffff, 0x80000000,  0x80000001, 0xffffffff, UINT64_MAX / 2};
    return below(3) ? edges[below(sizeof edges / sizeof *edges)] : next_random() >> below(64);
}

static float random_divisor(void) {
    uint32_t bits = (uint32_t)edge(); /* as bits: NaN, infinities, negative and tiny numbers, too */
    float divisor;
    memcpy(&divisor, &bits, sizeof divisor);
    return divisor;
}

static void mutate(struct header *header) {
    switch (below(10)) {
    case 0: header->kind = (uint8_t)below(9); break;
    case 1: header->element = (uint8_t)below(10); break;
    case 2: header->wire = (uint8_t)below(10); break;
    case 3: header->length = (uint32_t)edge(); break;
    case 4: header->sequence = edge(); break;
    case 5: header->offset = edge(); break;
    case 6: header->elements = (uint32_t)edge(); break;
    case 7: header->divisor = random_divisor(); break;
    case 8: header->elements += (uint32_t)below(4) << 30; break; /* the same length in 32 bits */
    default: ((uint8_t *)header)[below(sizeof *header)] ^= (uint8_t)(1u << below(8));
    }
}

/* The types of a buffer's elements, and of those that travel. */
struct format {
    uint32_t element, wire;
};

/* A message that the core would accept if it were the stream's message of this number. */
static struct header valid_header(enum hb_role role, enum message_kind kind, unsigned number, struct format format) {
    uint32_t elements = CHUNK_BYTES / 8;
    /* Sums come back in 16 bits if either side of the conversion has them. */
    int is_narrow = format.wire == HB_F16 || (kind == SUM && format.element == HB_F16);
    uint32_t size = is_narrow ? 2 : 4;
    if (kind != PUSH && kind != SUM)
        return (struct header){.kind = (uint8_t)kind, .length = kind == ABORT ? 40 : 0, .sequence = below(3)};
    return (struct header){.kind = (uint8_t)kind,
                           .element = (uint8_t)format.element,
                           .wire = (uint8_t)format.wire,
                           .length = role == HB_LOCAL ? 0 : elements * size,
                           /* The other process sums the second half of the buffer. */
                           .offset = (uint64_t)number * elements + (kind == SUM ? ELEMENTS / 2 : 0),
                           .elements = elements,
                           .divisor = 2};
}

/* Append messages that do nothing, more than a core receives in one turn: it sends and sums between two turns. */
static size_t next_turn(uint8_t *stream, size_t used) {
    struct header alive = {.kind = ALIVE};
    for (int i = 0; i < TURN_MESSAGES; i++, used += sizeof alive) memcpy(stream + used, &alive, sizeof alive);
    return used;
}

/* Messages that were sent so far, without those that do nothing. */
static unsigned long headers;

static size_t random_messages(uint8_t *stream, enum hb_role role, struct format format) {
    static const enum message_kind usual[] = {PUSH, PUSH, PUSH, SUM, SUM, SUM, ALIVE, ABORT, LEAVE, LEFT};
    size_t used = next_turn(stream, 0); /* a sum is due only after the core has pushed its own chunks */
    enum message_kind first = usual[below(10)];
    for (unsigned number = 0, messages = 1 + (unsigned)below(MAX_MESSAGES); number < messages; number++, headers++) {
        struct header header = valid_header(role, below(4) ? first : usual[below(10)], number, format);
        for (uint64_t times = below(4); times; times--) mutate(&header);
        /* A reason that is cut short would swallow the last message, and a core may outlive a link that sent LEAVE. */
        if (header.kind == ABORT && header.length <= MAX_REASON_BYTES) header.length %= CHUNK_BYTES;
        memcpy(stream + used, &header, sizeof header);
        used += sizeof header;
        /* A length that no core accepts gets a short body: the header alone must be enough to refuse it. */
        uint32_t body = header.length <= CHUNK_BYTES ? header.length : 16;
        for (uint32_t i = 0; i < body; i++) stream[used++] = (uint8_t)next_random();
    }
    used = next_turn(stream, used); /* what was taken is summed before the last message ends the core */
    memcpy(stream + used, &(struct header){.kind = 0xee}, sizeof(struct header));
    return used + sizeof(struct header);
}

/* Start a helper with two peers, or a rank with one link; `ends` are this side's ends of the connections. */
static struct hb_core *start(int is_helper, enum hb_role role, int *ends) {
    static uint8_t inbox[RING_BYTES], outbox[RING_BYTES];
    struct hb_link_spec specs[2];
    int links = is_helper ? 2 : 1, pair[2];
    for (int i = 0; i < links; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair)) return NULL;
        ends[i] = pair[1];
        specs[i] = (struct hb_link_spec){.descriptor = pair[0], .role = (int32_t)role, .label = "the attacker"};
        specs[i].index = is_helper ? i : role == HB_HELPER ? 0 : 1;
        if (role != HB_LOCAL) continue;
        specs[i].inbox = (uint64_t)(uintptr_t)inbox;
        specs[i].outbox = (uint64_t)(uintptr_t)outbox;
    }
    struct hb_config config = {.label = "the core",
                               .member = is_helper ? -1 : 0,
                               .members = role == HB_LOCAL ? 1 : 2,
                               .helpers = role == HB_HELPER,
                               .local_ranks = role == HB_LOCAL ? 2 : 1,
                               .lanes = role == HB_LOCAL ? 2 : 1,
                               .chunk_bytes = CHUNK_BYTES,
                               .ring_bytes = RING_BYTES,
                               .max_chunks = MAX_CHUNKS,
                               .local_ring_bytes = RING_BYTES,
                               .local_max_chunks = MAX_CHUNKS,
                               .links = (uint32_t)links,
                               .silence = 60,
                               .late = 60,
                               .specs = specs};
    return hb_new(&config);
}

/* Submit a buffer, half of which this process sums. */
static void submit(struct hb_core *core, enum hb_role role, struct format format) {
    static float elements[ELEMENTS];
    uint64_t half = ELEMENTS / 2;
    /* Servers are the helper, if there is one, then the two hosts; the other local rank has a lane of its own. */
    uint32_t own_server = role == HB_HELPER, other_server = role == HB_PEER, other_lane = role == HB_LOCAL;
    struct hb_shard cut[2] = {{.server = own_server, .count = half},
                              {.lane = other_lane, .server = other_server, .offset = half, .count = half}};
    struct hb_submission submission = {.address = (uint64_t)(uintptr_t)elements,
                                       .count = ELEMENTS,
                                       .element = format.element,
                                       .wire = format.wire,
                                       .host_divisor = 1,
                                       .divisor = 2,
                                       .chunk = CHUNK_BYTES / 8,
                                       .window = RING_BYTES,
                                       .cut = cut,
                                       .shards = 2};
    hb_submit(core, &submission);
}

/* Attack one core; add the chunks that it took. Return 0 if it ended as it must. */
static int attack(int is_helper, enum hb_role role, uint64_t *chunks) {
    static uint8_t stream[MAX_MESSAGES * CHUNK_BYTES + (MAX_MESSAGES + 2 * TURN_MESSAGES + 1) * sizeof(struct header)];
    int ends[2], links = is_helper ? 2 : 1;
    struct hb_core *core = start(is_helper, role, ends);
    if (!core) return -1;
    static const struct format formats[] = {{HB_F32, HB_F32}, {HB_F32, HB_F16}, {HB_F16, HB_F32}};
    struct format format = formats[role == HB_LOCAL ? 0 : below(3)];
    if (!is_helper) submit(core, role, format);
    size_t size = random_messages(stream, role, format);
    for (int i = 0; i < links; i++) {
        /* A helper gets the same from both, because it sums only what all members agree on. */
        if (send(ends[i], stream, size, 0) != (ssize_t)size) return -1;
        shutdown(ends[i], SHUT_WR); /* close() would take back what the core has not read yet */
    }
    thread_function(thread_argument);
    char reason[256];
    int has_failed = hb_failure(core, reason, sizeof reason), is_ended = hb_ended(core);
    struct hb_count counts[2];
    hb_counts(core, counts);
    for (int i = 0; i < links; i++) {
        *chunks += counts[i].received_chunks;
        close(ends[i]);
    }
    hb_close(core);
    hb_free(core);
    return is_ended && (has_failed || is_helper) ? 0 : -1;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    long connections = atol(arguments[1]);
    uint64_t chunks = 0;
    alarm(SECONDS_FOR_ALL); /* a core that does not end keeps the main thread */
    random_state = 0x9e3779b97f4a7c15u ^ (uint64_t)atol(arguments[2]);
    for (long number = 0; number < connections; number++) {
        static const enum hb_role roles[] = {HB_PEER, HB_PEER, HB_HELPER, HB_LOCAL};
        if (attack(number % 4 == 0, roles[number % 4], &chunks) == 0) continue;
        printf("connection %ld: the core did not end as it must\n", number);
        return 1;
    }
    printf("%ld connections refused, %lu headers, %llu chunks taken before\n", connections, headers,
           (unsigned long long)chunks);
    return 0;
}
