/* reduce.h: what native.py calls, from any thread. */
#include "core.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Lanes and shards start at multiples of this many elements: cut.py. */
#define ALIGN 64

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
                          .ring = config->ring,
                          .most = config->most,
                          .local_ring = config->local_ring,
                          .local_most = config->local_most,
                          .share = 1,
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
        core_watch(core, &core->links[i], EPOLL_CTL_ADD);
    }
    wrong = wrong || flow_init(core);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(core->epoll, EPOLL_CTL_ADD, core->wake, &event);
    /* Signals are for the process's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    wrong = wrong || pthread_create(&core->thread, NULL, core_run, core);
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
    buffer->window = given->window;
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
    core_ring(core->wake);
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
    core_ring(core->wake);
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
