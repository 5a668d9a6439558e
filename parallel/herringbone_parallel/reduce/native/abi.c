/* The functions of reduce.h. */
#include "reduce.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "buffers.h"
#include "clock.h"
#include "core.h"
#include "flow.h"
#include "links.h"
#include "state.h"

int hb_abi(void) { return HB_ABI; }

/* Undo what hb_new did as far as it came. All members that were not reached are zero. */
static void destroy(struct core *core) {
    for (uint32_t i = 0; i < core->link_count; i++) link_free(&core->links[i]);
    flow_free(core);
    free(core->links);
    state_close(core);
    free(core);
}

static int start_thread(struct core *core) {
    /* Signals are for the threads of the process itself: Python must see them, and the I/O thread must not be
     * interrupted. A thread inherits the mask of the thread that creates it. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&core->thread, NULL, core_run, core);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* More would be a mistake, and lets no product of two such numbers leave 64 bits. */
#define MOST_CHUNKS (1u << 20)
#define MOST_RING_BYTES (1u << 30)
#define MOST_PROCESSES (1 << 20)

static int limit_is_valid(uint32_t ring_bytes, uint32_t chunks) {
    return ring_bytes > 0 && ring_bytes <= MOST_RING_BYTES && chunks > 0 && chunks <= MOST_CHUNKS;
}

static int link_is_valid(const struct hb_config *config, const struct hb_link_spec *spec) {
    int counts[] = {config->helpers, config->members, config->local_ranks};
    int own[] = {-1, config->member, config->local_rank};
    return spec->role >= HB_HELPER && spec->role <= HB_LOCAL && spec->index >= 0 &&
           spec->index < counts[spec->role] && spec->index != own[spec->role];
}

/* A helper's numbers come from other processes: none of them may become a division by 0 or an index out of range. */
static int config_is_valid(const struct hb_config *config) {
    int valid = config->members > 0 && config->members <= MOST_PROCESSES && config->member >= -1 &&
                config->member < config->members && config->helpers >= 0 && config->helpers <= MOST_PROCESSES &&
                config->local_ranks > 0 && config->local_ranks <= MOST_PROCESSES && config->local_rank >= 0 &&
                config->local_rank < config->local_ranks && config->lanes > 0 &&
                config->lanes <= config->local_ranks && config->chunk_bytes > 0 &&
                config->chunk_bytes <= config->ring_bytes && limit_is_valid(config->ring_bytes, config->max_chunks) &&
                (config->local_ranks == 1 || limit_is_valid(config->local_ring_bytes, config->local_max_chunks));
    for (uint32_t i = 0; valid && i < config->links; i++) valid = link_is_valid(config, &config->specs[i]);
    return valid;
}

struct hb_core *hb_new(const struct hb_config *config) {
    struct core *core = calloc(1, sizeof *core);
    struct link *links = calloc(config->links + 1, sizeof *links); /* one more: calloc(0) may return NULL */
    if (!core || !links || !config_is_valid(config)) goto not_started;
    /* From here on the links own all descriptors, so that `destroy` closes each of them exactly once. */
    core->links = links;
    core->link_count = config->links;
    for (uint32_t i = 0; i < config->links; i++) links[i].fd = config->specs[i].descriptor;
    core->member = config->member;
    core->members = config->members;
    core->helpers = config->helpers;
    core->local_rank = config->local_rank;
    core->local_ranks = config->local_ranks;
    core->lanes = config->lanes;
    core->chunk_bytes = config->chunk_bytes;
    core->ring_bytes = config->ring_bytes;
    core->max_chunks = config->max_chunks;
    core->local_ring_bytes = config->local_ring_bytes;
    core->local_max_chunks = config->local_max_chunks;
    core->silence = config->silence;
    core->late = config->late;
    core->callbacks = &core_callbacks;
    core->woke_at = core->ticked_at = clock_seconds();
    if (state_open(core, config)) goto failed;
    for (uint32_t i = 0; i < config->links; i++) {
        if (link_init(core, &links[i], &config->specs[i])) goto failed;
        if (link_watch(core, &links[i], EPOLL_CTL_ADD)) goto failed;
    }
    if (flow_init(core) || start_thread(core)) goto failed;
    return (struct hb_core *)core;

failed:
    destroy(core);
    return NULL;
not_started:
    for (uint32_t i = 0; i < config->links; i++) close(config->specs[i].descriptor);
    free(links);
    free(core);
    return NULL;
}

int64_t hb_submit(struct hb_core *handle, const struct hb_submission *submission) {
    struct core *core = (struct core *)handle;
    /* Made before the lock is taken: the I/O thread needs the lock for each buffer that is done. */
    struct buffer *buffer = buffer_new(core, submission);
    if (!buffer) return -1;
    pthread_mutex_lock(&core->lock);
    /* `ended` wakes waiting callers too: no buffer will be done any more. */
    while (core->numbered - core->done_below >= MAX_PENDING && !core->ended)
        pthread_cond_wait(&core->changed, &core->lock);
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
    /* Copied under the lock: once it is released, the I/O thread may have freed the buffer. */
    int64_t number = (int64_t)buffer->sequence;
    pthread_mutex_unlock(&core->lock);
    state_signal(core->wake);
    return number;
}

int hb_wait(struct hb_core *handle, uint64_t sequence, double seconds) {
    struct core *core = (struct core *)handle;
    double until = clock_seconds() + seconds;
    /* The condition uses the same monotonic clock, see state_open. */
    struct timespec deadline = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
    pthread_mutex_lock(&core->lock);
    while (!state_is_done(core, sequence) && !core->ended)
        if (pthread_cond_timedwait(&core->changed, &core->lock, &deadline) == ETIMEDOUT) break;
    /* Asked again: a buffer may be done at the moment of the timeout, or before the core ended. */
    int done = state_is_done(core, sequence);
    pthread_mutex_unlock(&core->lock);
    return done;
}

int hb_done(struct hb_core *handle, uint64_t sequence) {
    struct core *core = (struct core *)handle;
    pthread_mutex_lock(&core->lock);
    int done = state_is_done(core, sequence);
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
    /* Not `stopping`: the reason is reported once no buffer is written any more. */
    int failed = core->failed;
    if (failed) snprintf(text, size, "%s", core->reason);
    pthread_mutex_unlock(&core->lock);
    return failed;
}

int hb_completions(struct hb_core *core) { return ((struct core *)core)->completions; }

void hb_counts(struct hb_core *handle, struct hb_count *counts) {
    struct core *core = (struct core *)handle;
    /* Without the lock: the counters of a link are each exact, but need not fit each other. */
    for (uint32_t i = 0; i < core->link_count; i++) {
        struct link *link = &core->links[i];
        counts[i] = (struct hb_count){atomic_load(&link->sent_bytes), atomic_load(&link->received_bytes),
                                      atomic_load(&link->sent_chunks), atomic_load(&link->received_chunks)};
    }
}

void hb_close(struct hb_core *handle) {
    struct core *core = (struct core *)handle;
    pthread_mutex_lock(&core->lock);
    int is_first = !core->closing;
    core->closing = 1;
    pthread_mutex_unlock(&core->lock);
    /* A thread can be joined once only. A second caller returns while the first still waits. */
    if (!is_first) return;
    state_signal(core->wake);
    pthread_join(core->thread, NULL);
}

void hb_free(struct hb_core *handle) { destroy((struct core *)handle); }
