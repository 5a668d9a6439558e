#include "state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

int state_open(struct core *core, const struct hb_config *config) {
    core->epoll = core->wake = core->completions = -1;
    /* glibc's functions for these three cannot fail, so state_close always finds a lock and a condition. */
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    /* hb_wait computes its deadline from the monotonic clock. */
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&core->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&core->lock, NULL);
    core->label = strdup(config->label);
    core->epoll = epoll_create1(EPOLL_CLOEXEC);
    core->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    core->completions = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!core->label || core->epoll < 0 || core->wake < 0 || core->completions < 0) return -1;
    struct epoll_event event = {.events = EPOLLIN}; /* data.ptr NULL: the only event that is no link's */
    return epoll_ctl(core->epoll, EPOLL_CTL_ADD, core->wake, &event);
}

void state_close(struct core *core) {
    for (uint32_t i = 0; i < MAX_PENDING; i++) free(core->pending[i]);
    while (core->submitted_first) {
        struct buffer *buffer = core->submitted_first;
        core->submitted_first = buffer->next;
        free(buffer);
    }
    if (core->epoll >= 0) close(core->epoll);
    if (core->wake >= 0) close(core->wake);
    if (core->completions >= 0) close(core->completions);
    pthread_cond_destroy(&core->changed);
    pthread_mutex_destroy(&core->lock);
    free(core->label);
}

void state_stop(struct core *core, const char *format, ...) {
    /* Later errors follow from the first one: links that close because this process stops, for example. */
    if (core->stopping) return;
    core->stopping = 1;
    va_list arguments;
    va_start(arguments, format);
    /* hb_failure may be reading `reason`. */
    pthread_mutex_lock(&core->lock);
    vsnprintf(core->reason, sizeof core->reason, format, arguments);
    pthread_mutex_unlock(&core->lock);
    va_end(arguments);
}

void state_buffer_done(struct core *core, struct buffer *buffer) {
    core->pending[buffer->sequence % MAX_PENDING] = NULL;
    pthread_mutex_lock(&core->lock);
    core->is_done[buffer->sequence % MAX_PENDING] = 1;
    /* Buffers may be done out of order. An item of `is_done` is cleared before its index is used again: hb_submit
     * lets no number get MAX_PENDING ahead of `done_below`. */
    while (core->done_below < core->submitted && core->is_done[core->done_below % MAX_PENDING]) {
        core->is_done[core->done_below % MAX_PENDING] = 0;
        core->done_below++;
    }
    pthread_cond_broadcast(&core->changed);
    pthread_mutex_unlock(&core->lock);
    state_signal(core->completions);
    free(buffer);
}

int state_is_done(const struct core *core, uint64_t sequence) {
    return sequence < core->done_below ||
           (sequence - core->done_below < MAX_PENDING && core->is_done[sequence % MAX_PENDING]);
}

void state_signal(int eventfd) {
    uint64_t one = 1;
    /* A write fails only when the counter is full, and then the reader has been woken already. */
    if (write(eventfd, &one, sizeof one) < 0) return;
}
