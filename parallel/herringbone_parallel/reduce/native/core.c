/* The thread that reads, writes, listens for signs of life and ends in order (fallback.py), and the ABI. */
#include "core.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define TICK 0.25
#define ALIVE_EVERY 0.5
#define LINGER 2.0
#define ABORT_SECONDS 1.0
#define EVENTS 128
#define ALIGN 64
/* Chunks may be smaller than the largest: so many times as many of them are a window at most. */
#define SMALLER 8

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void ring(int descriptor) {
    uint64_t one = 1;
    /* A full counter has woken its reader already. */
    if (write(descriptor, &one, sizeof one) < 0) return;
}

void stop(struct core *core, const char *format, ...) {
    if (core->stopping) return; /* what comes after the first reason follows from it */
    core->stopping = 1;
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&core->lock);
    vsnprintf(core->reason, sizeof core->reason, format, arguments);
    pthread_mutex_unlock(&core->lock);
    va_end(arguments);
}

void finished(struct core *core, struct buffer *buffer) {
    core->pending[buffer->sequence % PENDING] = NULL;
    pthread_mutex_lock(&core->lock);
    core->is_done[buffer->sequence % PENDING] = 1;
    while (core->done_below < core->submitted && core->is_done[core->done_below % PENDING]) {
        core->is_done[core->done_below % PENDING] = 0;
        core->done_below++;
    }
    pthread_cond_broadcast(&core->changed);
    pthread_mutex_unlock(&core->lock);
    ring(core->completions);
    free(buffer);
}

/* Who has left cannot take part in what is submitted now. */
static void check_left(struct core *core) {
    pthread_mutex_lock(&core->lock);
    int closing = core->closing;
    pthread_mutex_unlock(&core->lock);
    for (uint32_t i = 0; i < core->link_count && !closing; i++) {
        struct link *link = &core->links[i];
        if (!link->left || core->submitted <= link->left_after) continue;
        if (link->role == HB_HELPER)
            stop(core, "%s was ended while %s still needs it", link->label, core->label);
        else
            stop(core,
                 "%s left after %llu buffers, and %s submits more: all ranks submit the same buffers before they close",
                 link->label, (unsigned long long)link->left_after, core->label);
    }
}

void take_control(struct core *core, struct link *link) {
    if (link->head.kind == ABORT) {
        stop(core, "%s", link->reason ? link->reason : "a process of the job stopped without a reason");
    } else if (link->head.kind == LEAVE) {
        link->left = 1;
        link->left_after = link->head.sequence;
        link_send(core, link, (struct header){.kind = LEFT}, NULL);
        check_left(core);
    } else if (link->head.kind == LEFT) {
        link->answered = 1;
    }
}

static void watch(struct core *core, struct link *link, int operation) {
    uint32_t wanted = (link->deaf ? 0u : EPOLLIN) | (link->writes ? EPOLLOUT : 0u) | EPOLLRDHUP;
    struct epoll_event event = {.events = wanted, .data.ptr = link};
    epoll_ctl(core->epoll, operation, link->fd, &event);
}

static void broke(struct core *core, struct link *link) {
    if (!link->left) {
        stop(core, "%s is gone, its connection to %s broke: %s", link->label, core->label,
             errno ? strerror(errno) : "the connection was closed");
        return;
    }
    watch(core, link, EPOLL_CTL_DEL);
    close(link->fd);
    link->fd = -1;
    link->gone = 1;
    link->queued = 0;
}

/* Send some of what is queued on a link; returns whether more of it can be sent now. */
static int flush(struct core *core, struct link *link) {
    if (link->gone) return 0;
    int more = link_flush(core, link);
    if (more < 0) {
        broke(core, link);
        return 0;
    }
    link->dirty = more;
    if (!more && link->writes != (link->queued > 0)) {
        link->writes = link->queued > 0;
        watch(core, link, EPOLL_CTL_MOD);
    }
    return more;
}

static void flush_all(struct core *core) {
    for (int pass = 0, more = 1; more && !core->stopping; pass++) {
        more = 0;
        for (uint32_t i = 0; i < core->link_count && !core->stopping; i++)
            if (core->links[i].dirty || (core->links[i].writes && !pass)) more |= flush(core, &core->links[i]);
    }
}

static void take_submitted(struct core *core) {
    pthread_mutex_lock(&core->lock);
    struct buffer *buffer = core->submitted_first;
    core->submitted_first = core->submitted_last = NULL;
    pthread_mutex_unlock(&core->lock);
    while (buffer) {
        struct buffer *next = buffer->next;
        core->pending[buffer->sequence % PENDING] = buffer;
        core->submitted = buffer->sequence + 1;
        if (!buffer->remaining) finished(core, buffer);
        buffer = next;
    }
    check_left(core);
}

static void silent(struct core *core, double at) {
    char names[2048] = "";
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->link_count; i++) {
        if (at - core->links[i].heard <= core->silence) continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", count++ ? ", " : "", core->links[i].label);
    }
    char own[512] = "";
    if (count > 1 && count == core->link_count)
        snprintf(own, sizeof own, " All are silent: it may be %s itself that lost its network.", core->label);
    stop(core,
         "%s stopped answering %s: nothing came for %g s. It was stopped or its network is gone.%s", names, core->label,
         core->silence, own);
}

static void listen_to(struct core *core, struct link *link, int listens) {
    if (link->gone || link->deaf == !listens) return;
    link->deaf = !listens;
    watch(core, link, EPOLL_CTL_MOD);
}

static void receive(struct core *core, struct link *link) {
    if (!link->gone && link_receive(core, link) < 0) broke(core, link);
}

/* A helper takes what it lacks for the next sum, then listens to one alone that keeps it waiting: one wake for a round,
 * not for each chunk of it. Between sums it listens to all. */
static void complete_rounds(struct core *core) {
    struct link *behind, *asked = NULL;
    while (!core->stopping && (behind = flow_behind(core)) && behind != asked) {
        receive(core, behind);
        flow_run(core);
        asked = behind;
    }
    for (uint32_t i = 0; i < core->link_count && !core->stopping; i++)
        listen_to(core, &core->links[i], !behind || &core->links[i] == behind);
}

static void tick(struct core *core, double at) {
    for (uint32_t i = 0; i < core->link_count && !core->stopping; i++) {
        struct link *link = &core->links[i];
        if (link->gone) continue;
        if (!link->left && at - link->heard > core->silence)
            silent(core, at);
        else if (!link->queued && at - link->spoke > ALIVE_EVERY)
            link_send(core, link, (struct header){.kind = ALIVE}, NULL);
    }
    flow_late(core, at);
}

static void turn(struct core *core) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(core->epoll, events, EVENTS, (int)(TICK * 1000));
    double at = core->at = now();
    if (at - core->ticked > 4 * TICK)
        /* This process itself was stopped: what others sent meanwhile is still to be read. */
        for (uint32_t i = 0; i < core->link_count; i++) core->links[i].heard = at;
    for (int i = 0; i < count && !core->stopping; i++) {
        struct link *link = events[i].data.ptr;
        if (!link) {
            uint64_t rung;
            if (read(core->wake, &rung, sizeof rung) > 0) take_submitted(core);
        } else {
            receive(core, link);
        }
    }
    int ticks = at - core->ticked >= TICK || count <= 0;
    for (uint32_t i = 0; i < core->link_count && ticks && !core->stopping; i++)
        /* What was not worth a wake may be a sign of life. */
        if (core->links[i].deaf || core->links[i].woken_at > 1) receive(core, &core->links[i]);
    if (!core->stopping) flow_run(core);
    if (core->member < 0) complete_rounds(core);
    if (ticks) {
        core->ticked = at;
        tick(core, at);
    }
    flush_all(core);
    for (uint32_t i = 0; i < core->link_count && !core->stopping; i++) link_wake(core, &core->links[i]);
}

/* Once closing: sum what is under way, say that there will be no more, and end when everybody has read it. */
static int left_in_order(struct core *core) {
    pthread_mutex_lock(&core->lock);
    int closing = core->closing;
    uint64_t done = core->done_below;
    int under_way = done < core->numbered;
    pthread_mutex_unlock(&core->lock);
    int all_left = 1, all_answered = 1;
    for (uint32_t i = 0; i < core->link_count; i++) all_left &= core->links[i].left;
    if (!closing && !(core->member < 0 && all_left)) return 0;
    if (!core->closed_at) core->closed_at = now();
    if (!core->leaving && under_way && now() - core->closed_at < LINGER) return 0;
    if (!core->leaving) {
        core->leaving = now();
        for (uint32_t i = 0; i < core->link_count; i++)
            link_send(core, &core->links[i], (struct header){.kind = LEAVE, .sequence = done}, NULL);
        flush_all(core);
    }
    for (uint32_t i = 0; i < core->link_count; i++)
        all_answered &= core->links[i].gone || (core->links[i].answered && !core->links[i].queued);
    return all_answered || now() - core->leaving > LINGER;
}

/* Tell everybody why, as far as the connections carry it at once. */
static void abort_all(struct core *core) {
    struct header header = {.kind = ABORT, .length = (uint32_t)strlen(core->reason)};
    for (uint32_t i = 0; i < core->link_count; i++) {
        link_drop(&core->links[i]);
        link_send(core, &core->links[i], header, core->reason);
        while (link_flush(core, &core->links[i]) > 0) continue;
    }
}

/* A connection closed with bytes unread is reset, and what was sent last is lost with it: see that it arrives. */
static void linger(struct core *core) {
    double until = now() + ABORT_SECONDS;
    for (int left = 1; left && now() < until;) {
        left = 0;
        for (uint32_t i = 0; i < core->link_count; i++) {
            struct link *link = &core->links[i];
            if (link->gone) continue;
            link->gone = link_finish(core, link);
            left |= !link->gone;
        }
        if (left) nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

static void *run(void *argument) {
    struct core *core = argument;
    while (!core->stopping && !left_in_order(core)) turn(core);
    if (core->stopping) abort_all(core);
    pthread_mutex_lock(&core->lock);
    core->failed = core->stopping;
    core->ended = 1;
    pthread_cond_broadcast(&core->changed);
    pthread_mutex_unlock(&core->lock);
    ring(core->completions);
    if (core->stopping) linger(core);
    for (uint32_t i = 0; i < core->link_count; i++) {
        if (core->links[i].fd >= 0) close(core->links[i].fd);
        core->links[i].fd = -1;
    }
    return NULL;
}

/* The ABI. */

int hb_abi(void) { return HB_ABI; }

struct hb_core *hb_new(const struct hb_config *config) {
    struct core *core = calloc(1, sizeof *core);
    if (!core) return NULL;
    *core = (struct core){.member = config->member,
                          .members = config->members,
                          .helpers = config->helpers,
                          .local = config->local,
                          .locals = config->locals,
                          .lanes = config->lanes,
                          .chunk_bytes = config->chunk_bytes,
                          .ring = config->window * config->chunk_bytes,
                          .allowed = config->window * config->chunk_bytes,
                          .most = config->window * SMALLER,
                          /* fp32 that travels in 16 bits takes twice what it takes on the wire. */
                          .local_ring = config->local_window * config->chunk_bytes * 2,
                          .local_most = config->local_window * SMALLER,
                          .link_count = config->links,
                          .silence = config->silence,
                          .late = config->late,
                          .epoll = epoll_create1(EPOLL_CLOEXEC),
                          .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                          .completions = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                          .at = now()};
    core->ticked = core->at;
    core->label = strdup(config->label);
    core->links = calloc(config->links + 1, sizeof *core->links);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&core->changed, &attributes);
    pthread_mutex_init(&core->lock, NULL);
    int wrong = !core->label || !core->links || core->epoll < 0 || core->wake < 0 || core->completions < 0;
    for (uint32_t i = 0; i < config->links && !wrong; i++) {
        wrong = link_init(core, &core->links[i], &config->specs[i]);
        watch(core, &core->links[i], EPOLL_CTL_ADD);
    }
    wrong = wrong || flow_init(core);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(core->epoll, EPOLL_CTL_ADD, core->wake, &event);
    /* Signals are for the process's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    wrong = wrong || pthread_create(&core->thread, NULL, run, core);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return wrong ? NULL : (struct hb_core *)core;
}

/* One block of memory: the buffer, its lanes, its shards, the places of the servers in its own lane. */
static struct buffer *buffer_of(struct core *core, const struct hb_submission *given) {
    size_t servers = (size_t)(core->helpers + core->members), lanes = (size_t)core->lanes;
    struct buffer *buffer = calloc(1, sizeof *buffer + lanes * sizeof(struct lane) +
                                          given->shards * sizeof(struct shard) + servers * sizeof(int32_t));
    if (!buffer) return NULL;
    buffer->lanes = (struct lane *)(buffer + 1);
    buffer->shards = (struct shard *)(buffer->lanes + lanes);
    buffer->place_of_server = (int32_t *)(buffer->shards + given->shards);
    buffer->data = (uint8_t *)(uintptr_t)given->address;
    buffer->count = given->count;
    buffer->element = given->element;
    buffer->wire = given->wire;
    buffer->divisor = given->divisor;
    buffer->elements = given->chunk;
    for (size_t server = 0; server < servers; server++) buffer->place_of_server[server] = -1;
    for (uint64_t i = 0; i < given->shards; i++) {
        const struct hb_shard *cut = &given->cut[i];
        struct lane *lane = &buffer->lanes[cut->lane];
        struct shard *shard = &buffer->shards[i];
        if (!lane->shards) lane->shards = shard;
        if ((int)cut->lane == core->local) buffer->place_of_server[cut->server] = (int32_t)lane->count;
        lane->count++;
        shard->server = cut->server;
        shard->offset = cut->offset;
        shard->count = cut->count;
        uint32_t rounds = (uint32_t)((cut->count + buffer->elements - 1) / buffer->elements);
        if (rounds > lane->rounds) lane->rounds = rounds;
    }
    for (uint64_t i = 0; i < given->shards; i++) {
        /* Every shard of a lane is cut in as many chunks: cut.py, `chunk_elements`. */
        struct shard *shard = &buffer->shards[i];
        uint32_t lane = given->cut[i].lane, rounds = buffer->lanes[lane].rounds;
        uint64_t each = ((shard->count + rounds - 1) / rounds + ALIGN - 1) / ALIGN * ALIGN;
        shard->elements = each < buffer->elements ? (uint32_t)each : buffer->elements;
        shard->chunks = (uint32_t)((shard->count + shard->elements - 1) / shard->elements);
        /* A chunk of the own lane is also handed on to the other ranks of the host. */
        buffer->remaining += shard->chunks * (1u + ((int)lane == core->local && core->locals > 1));
    }
    return buffer;
}

int64_t hb_submit(struct hb_core *handle, const struct hb_submission *submission) {
    struct core *core = (struct core *)handle;
    struct buffer *buffer = buffer_of(core, submission);
    if (!buffer) return -1;
    pthread_mutex_lock(&core->lock);
    while (core->numbered - core->done_below >= PENDING && !core->ended) pthread_cond_wait(&core->changed, &core->lock);
    if (core->ended || core->closing) {
        pthread_mutex_unlock(&core->lock);
        free(buffer);
        return -1;
    }
    buffer->sequence = core->numbered++;
    if (core->submitted_last)
        core->submitted_last->next = buffer;
    else
        core->submitted_first = buffer;
    core->submitted_last = buffer;
    int64_t number = (int64_t)buffer->sequence;
    pthread_mutex_unlock(&core->lock);
    ring(core->wake);
    return number;
}

static int is_done(const struct core *core, uint64_t sequence) {
    return sequence < core->done_below ||
           (sequence - core->done_below < PENDING && core->is_done[sequence % PENDING]);
}

int hb_wait(struct hb_core *handle, uint64_t sequence, double seconds) {
    struct core *core = (struct core *)handle;
    double until = now() + seconds;
    struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
    pthread_mutex_lock(&core->lock);
    while (!is_done(core, sequence) && !core->ended)
        if (pthread_cond_timedwait(&core->changed, &core->lock, &at) == ETIMEDOUT) break;
    int done = is_done(core, sequence);
    pthread_mutex_unlock(&core->lock);
    return done;
}

int hb_done(struct hb_core *handle, uint64_t sequence) {
    struct core *core = (struct core *)handle;
    pthread_mutex_lock(&core->lock);
    int done = is_done(core, sequence);
    pthread_mutex_unlock(&core->lock);
    return done;
}

int hb_ended(struct hb_core *handle) {
    struct core *core = (struct core *)handle;
    pthread_mutex_lock(&core->lock);
    int ended = core->ended;
    pthread_mutex_unlock(&core->lock);
    return ended;
}

int hb_failure(struct hb_core *handle, char *text, uint32_t size) {
    struct core *core = (struct core *)handle;
    pthread_mutex_lock(&core->lock);
    int failed = core->failed;
    if (failed) snprintf(text, size, "%s", core->reason);
    pthread_mutex_unlock(&core->lock);
    return failed;
}

int hb_completions(struct hb_core *core) { return ((struct core *)core)->completions; }

void hb_counts(struct hb_core *handle, struct hb_count *counts) {
    struct core *core = (struct core *)handle;
    for (uint32_t i = 0; i < core->link_count; i++) {
        struct link *link = &core->links[i];
        counts[i] = (struct hb_count){atomic_load(&link->sent_bytes), atomic_load(&link->received_bytes),
                                      atomic_load(&link->sent_chunks), atomic_load(&link->received_chunks)};
    }
}

void hb_close(struct hb_core *handle) {
    struct core *core = (struct core *)handle;
    pthread_mutex_lock(&core->lock);
    int first = !core->closing;
    core->closing = 1;
    pthread_mutex_unlock(&core->lock);
    if (!first) return;
    ring(core->wake);
    pthread_join(core->thread, NULL);
}

void hb_free(struct hb_core *handle) {
    struct core *core = (struct core *)handle;
    for (uint32_t i = 0; i < PENDING; i++) free(core->pending[i]);
    while (core->submitted_first) {
        struct buffer *buffer = core->submitted_first;
        core->submitted_first = buffer->next;
        free(buffer);
    }
    for (uint32_t i = 0; i < core->link_count; i++) link_free(&core->links[i]);
    flow_free(core);
    close(core->epoll);
    close(core->wake);
    close(core->completions);
    pthread_cond_destroy(&core->changed);
    pthread_mutex_destroy(&core->lock);
    free(core->links);
    free(core->label);
    free(core);
}
