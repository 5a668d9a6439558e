/* The thread that reads, writes, listens for signs of life and ends in order: fallback.py. */
#include "core.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TICK 0.25
#define ALIVE_EVERY 0.5
#define LINGER 2.0
#define ABORT_SECONDS 1.0
#define EVENTS 128
#define TURN_NANOSECONDS 100000

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void core_ring(int descriptor) {
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
    core_ring(core->completions);
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

void core_watch(struct core *core, struct link *link, int operation) {
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
    core_watch(core, link, EPOLL_CTL_DEL);
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
        core_watch(core, link, EPOLL_CTL_MOD);
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
    core_watch(core, link, EPOLL_CTL_MOD);
}

static void receive(struct core *core, struct link *link, int all) {
    if (!link->gone && link_receive(core, link, all) < 0) broke(core, link);
}

/* A helper takes what it lacks for the next sum, then listens to one alone that keeps it waiting: one wake for a round,
 * not for each chunk of it. Between sums it listens to all. */
static void complete_rounds(struct core *core) {
    struct link *behind, *asked = NULL;
    while (!core->stopping && (behind = flow_behind(core)) && behind != asked) {
        receive(core, behind, 0);
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
            receive(core, link, 0);
        }
    }
    int ticks = at - core->ticked >= TICK || count <= 0;
    for (uint32_t i = 0; i < core->link_count && ticks && !core->stopping; i++)
        /* What was not worth a wake may be a sign of life. */
        if (core->links[i].deaf || core->links[i].woken_at > 1) receive(core, &core->links[i], 1);
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

/* What a woken thread that needs microseconds waits for a processor that computes is what links stand idle. Linux from
 * 6.12 on lets threads ask for short turns, which come soon; older ones ignore it. */
static void ask_for_short_turns(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } how = {.size = sizeof how};
    if (syscall(SYS_sched_getattr, 0, &how, sizeof how, 0) || how.policy != SCHED_OTHER) return;
    how.runtime = TURN_NANOSECONDS;
    syscall(SYS_sched_setattr, 0, &how, 0);
}

void *core_run(void *argument) {
    struct core *core = argument;
    ask_for_short_turns();
    while (!core->stopping && !left_in_order(core)) turn(core);
    if (core->stopping) abort_all(core);
    pthread_mutex_lock(&core->lock);
    core->failed = core->stopping;
    core->ended = 1;
    pthread_cond_broadcast(&core->changed);
    pthread_mutex_unlock(&core->lock);
    core_ring(core->completions);
    if (core->stopping) linger(core);
    for (uint32_t i = 0; i < core->link_count; i++) {
        if (core->links[i].fd >= 0) close(core->links[i].fd);
        core->links[i].fd = -1;
    }
    return NULL;
}
