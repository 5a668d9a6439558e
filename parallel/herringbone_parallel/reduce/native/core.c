#include "core.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arrivals.h"
#include "clock.h"
#include "flow.h"

/* Seconds between ticks, which look for silent and late processes and send signs of life. */
#define TICK 0.25
/* A link on which nothing was sent for so long carries an ALIVE: the other side can tell silence from idleness. */
#define ALIVE_EVERY 0.5
/* Closing waits so long for sums that are under way, and so long again until all have answered. */
#define LINGER 2.0
/* After an error, so long until all have read the reason. */
#define ABORT_SECONDS 1.0
#define ABORT_NAP_NANOSECONDS 5000000
#define MAX_EVENTS 128
#define TIME_SLICE_NANOSECONDS 100000

/* Stop if a process that has left would be needed for a buffer that was submitted. */
static void check_left(struct core *core) {
    pthread_mutex_lock(&core->lock);
    int closing = core->closing;
    pthread_mutex_unlock(&core->lock);
    for (uint32_t i = 0; i < core->link_count && !closing; i++) {
        struct link *link = &core->links[i];
        if (!link->has_left || core->submitted <= link->buffers_before_leave) continue;
        if (link->role == HB_HELPER)
            state_stop(core, "%s was ended while %s still needs it", link->label, core->label);
        else
            state_stop(core,
                       "%s left after %llu buffers, and %s submits more: all ranks submit the same buffers before they "
                       "close",
                       link->label, (unsigned long long)link->buffers_before_leave, core->label);
    }
}

/* Callback of a link: a message that carries no chunk is complete. */
static void take_control(struct core *core, struct link *link) {
    if (link->header.kind == ABORT) {
        const char *reason = link->abort_reason ? link->abort_reason : "a process of the job stopped without a reason";
        state_stop(core, "%s", reason); /* it comes from another process: never as the format */
    } else if (link->header.kind == LEAVE) {
        link->has_left = 1;
        link->buffers_before_leave = link->header.sequence;
        link_send(core, link, (struct header){.kind = LEFT}, NULL);
        check_left(core);
    } else if (link->header.kind == LEFT) {
        link->leave_answered = 1;
    }
}

const struct link_callbacks core_callbacks = {
    .destination = arrivals_destination,
    .take = arrivals_take,
    .control = take_control,
};

/* The connection of a link ended: an error, unless the other side had said that it would leave. */
static void lose(struct core *core, struct link *link) {
    if (!link->has_left) {
        state_stop(core, "%s is gone, its connection to %s broke: %s", link->label, core->label,
                   errno ? strerror(errno) : "the connection was closed");
        return;
    }
    link_watch(core, link, EPOLL_CTL_DEL);
    close(link->fd);
    link->fd = -1;
    link->gone = 1;
    link->queued = 0;
}

/* Send some of what is queued on a link; return 1 if more of it can be sent now. */
static int flush(struct core *core, struct link *link) {
    if (link->gone) return 0;
    int more = link_flush(core, link);
    if (more < 0) {
        lose(core, link);
        return 0;
    }
    link->has_unsent = more;
    int waits_for_room = !more && link->queued > 0;
    if (!more && link->waits_for_room != waits_for_room) {
        link->waits_for_room = waits_for_room;
        link_watch(core, link, EPOLL_CTL_MOD);
    }
    return more;
}

/* Send in turns of SEND_SHARE bytes a link, until no socket takes more. */
static void flush_all(struct core *core) {
    for (int pass = 0, more = 1; more && !core->stopping; pass++) {
        more = 0;
        for (uint32_t i = 0; i < core->link_count && !core->stopping; i++) {
            struct link *link = &core->links[i];
            /* A full socket may have room again, which epoll may have reported: try it once. */
            if (link->has_unsent || (link->waits_for_room && !pass)) more |= flush(core, link);
        }
    }
}

/* Take over what other threads submitted since the last time. */
static void take_submitted(struct core *core) {
    pthread_mutex_lock(&core->lock);
    struct buffer *buffer = core->submitted_first;
    core->submitted_first = core->submitted_last = NULL;
    pthread_mutex_unlock(&core->lock);
    while (buffer) {
        struct buffer *next = buffer->next; /* an empty buffer is freed at once */
        core->pending[buffer->sequence % MAX_PENDING] = buffer;
        core->submitted = buffer->sequence + 1;
        if (!buffer->remaining) state_buffer_done(core, buffer);
        buffer = next;
    }
    check_left(core);
}

/* Stop and name all processes from which nothing came. */
static void stop_for_silence(struct core *core, double now) {
    char names[2048] = "";
    uint32_t silent = 0;
    for (uint32_t i = 0; i < core->link_count; i++) {
        if (now - core->links[i].received_at <= core->silence) continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", silent++ ? ", " : "", core->links[i].label);
    }
    char hint[512] = "";
    if (silent > 1 && silent == core->link_count)
        snprintf(hint, sizeof hint, " All are silent: it may be %s itself that lost its network.", core->label);
    state_stop(core,
               "%s stopped answering %s: nothing came for %g s. It was stopped or its network is gone.%s", names,
               core->label, core->silence, hint);
}

static void listen_to(struct core *core, struct link *link, int listens) {
    if (link->gone || link->ignores_input == !listens) return;
    link->ignores_input = !listens;
    link_watch(core, link, EPOLL_CTL_MOD);
}

static void receive(struct core *core, struct link *link, int all) {
    if (!link->gone && link_receive(core, link, all) < 0) lose(core, link);
}

/* A helper receives what the next sum lacks, then listens only to the one link that keeps the sum waiting: it wakes
 * once for a round of chunks, not for each chunk. Between sums it listens to all links. */
static void complete_rounds(struct core *core) {
    struct link *straggler = NULL, *asked = NULL;
    while (!core->stopping && (straggler = arrivals_straggler(core)) && straggler != asked) {
        receive(core, straggler, 0);
        flow_run(core);
        asked = straggler;
    }
    for (uint32_t i = 0; i < core->link_count && !core->stopping; i++)
        listen_to(core, &core->links[i], !straggler || &core->links[i] == straggler);
}

static void tick(struct core *core, double now) {
    core->ticked_at = now;
    for (uint32_t i = 0; i < core->link_count && !core->stopping; i++) {
        struct link *link = &core->links[i];
        if (link->gone) continue;
        if (!link->has_left && now - link->received_at > core->silence)
            stop_for_silence(core, now);
        else if (!link->queued && now - link->sent_at > ALIVE_EVERY)
            link_send(core, link, (struct header){.kind = ALIVE}, NULL);
    }
    arrivals_check_late(core, now);
}

/* Wait for events, and do all that they make possible. */
static void turn(struct core *core) {
    struct epoll_event events[MAX_EVENTS];
    int count = epoll_wait(core->epoll, events, MAX_EVENTS, (int)(TICK * 1000));
    double now = core->woke_at = clock_seconds();
    /* After such a pause this process itself was stopped. The others' signs of life are still unread in the sockets,
     * so nobody counts as silent yet. */
    if (now - core->ticked_at > 4 * TICK)
        for (uint32_t i = 0; i < core->link_count; i++) core->links[i].received_at = now;
    for (int i = 0; i < count && !core->stopping; i++) {
        struct link *link = events[i].data.ptr;
        uint64_t signals;
        if (link)
            receive(core, link, 0);
        else if (read(core->wake, &signals, sizeof signals) > 0)
            take_submitted(core);
    }
    int ticks = now - core->ticked_at >= TICK || count <= 0;
    /* On a link with a low-water mark, an ALIVE alone does not wake the thread: look before judging silence. */
    for (uint32_t i = 0; i < core->link_count && ticks && !core->stopping; i++)
        if (core->links[i].ignores_input || core->links[i].low_water > 1) receive(core, &core->links[i], 1);
    if (!core->stopping) flow_run(core);
    if (core->member < 0) complete_rounds(core);
    if (ticks) tick(core, now);
    flush_all(core);
    for (uint32_t i = 0; i < core->link_count && !core->stopping; i++)
        link_set_low_water(&core->links[i], arrivals_due_bytes(core, &core->links[i]));
}

/* Send LEAVE to all links: this process submits nothing more. */
static void leave(struct core *core, uint64_t done) {
    core->leaving_since = clock_seconds();
    for (uint32_t i = 0; i < core->link_count; i++)
        link_send(core, &core->links[i], (struct header){.kind = LEAVE, .sequence = done}, NULL);
    flush_all(core);
}

/* Once closing, finish the sums under way and leave; return 1 when all others have read everything. */
static int has_left_in_order(struct core *core) {
    pthread_mutex_lock(&core->lock);
    int closing = core->closing;
    uint64_t done = core->done_below;
    int under_way = done < core->numbered;
    pthread_mutex_unlock(&core->lock);
    int all_left = 1, all_answered = 1;
    for (uint32_t i = 0; i < core->link_count; i++) all_left &= core->links[i].has_left;
    /* A helper ends by itself when all ranks have left. */
    if (!closing && !(core->member < 0 && all_left)) return 0;
    if (!core->closing_since) core->closing_since = clock_seconds();
    if (!core->leaving_since) {
        if (under_way && clock_seconds() - core->closing_since < LINGER) return 0;
        leave(core, done);
    }
    for (uint32_t i = 0; i < core->link_count; i++)
        all_answered &= core->links[i].gone || (core->links[i].leave_answered && !core->links[i].queued);
    return all_answered || clock_seconds() - core->leaving_since > LINGER;
}

/* Send the reason to all links, as far as the sockets take it at once. */
static void abort_all(struct core *core) {
    struct header header = {.kind = ABORT, .length = (uint32_t)strlen(core->reason)};
    for (uint32_t i = 0; i < core->link_count; i++) {
        link_drop(&core->links[i]);
        link_send(core, &core->links[i], header, core->reason);
        while (link_flush(core, &core->links[i]) > 0) continue;
    }
}

/* Wait until all others have read the reason and closed, ABORT_SECONDS at most. */
static void linger(struct core *core) {
    double until = clock_seconds() + ABORT_SECONDS;
    for (int unfinished = 1; unfinished && clock_seconds() < until;) {
        unfinished = 0;
        for (uint32_t i = 0; i < core->link_count; i++) {
            struct link *link = &core->links[i];
            if (link->gone) continue;
            link->gone = link_finish(core, link);
            unfinished |= !link->gone;
        }
        if (unfinished) nanosleep(&(struct timespec){0, ABORT_NAP_NANOSECONDS}, NULL);
    }
}

/* Links sit idle while the I/O thread waits to be scheduled behind compute threads, so ask for a short time slice:
 * Linux schedules such threads soon (6.12 and later; older ones ignore it). */
static void ask_for_short_slices(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof attributes};
    /* The C library has no function for these calls. Other policies were chosen by the user and stay as they are. */
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) || attributes.policy != SCHED_OTHER) return;
    attributes.runtime = TIME_SLICE_NANOSECONDS;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void *core_run(void *argument) {
    struct core *core = argument;
    ask_for_short_slices();
    while (!core->stopping && !has_left_in_order(core)) turn(core);
    if (core->stopping) abort_all(core);
    pthread_mutex_lock(&core->lock);
    core->failed = core->stopping;
    core->ended = 1;
    pthread_cond_broadcast(&core->changed);
    pthread_mutex_unlock(&core->lock);
    state_signal(core->completions);
    /* Callers have the error by now; only the thread waits for the other processes. */
    if (core->stopping) linger(core);
    for (uint32_t i = 0; i < core->link_count; i++) {
        if (core->links[i].fd >= 0) close(core->links[i].fd);
        core->links[i].fd = -1;
    }
    return NULL;
}
