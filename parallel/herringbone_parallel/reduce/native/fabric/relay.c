#include "relay.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../clock.h"

#define MAX_EVENTS 64
#define MAX_COMPLETIONS 32
/* Closing waits at most so many seconds for bytes that are under way. */
#define LINGER 2.0
/* The last messages of a process may arrive so long after its lifeline ended: they take another way. */
#define GRACE 0.25
/* For providers without a descriptor to wait on: ask again at once for so long, then sleep between questions. */
#define SPIN_SECONDS 100e-6
#define NAP_NANOSECONDS 50000
#define TICK_MILLISECONDS 100
/* While the endpoint takes no more messages. Some providers do not report that a connection is established, so ask
 * again after so long. */
#define RETRY_MILLISECONDS 1

/* Value of `stream.watched` for a descriptor that epoll no longer watches. */
#define UNWATCHED UINT32_MAX

static void watch(struct hb_fabric *fabric, struct stream *stream) {
    if (stream->core_ended && stream->core_is_deaf) {
        /* epoll reports EPOLLHUP whether it is asked for or not, and the thread would never sleep. */
        if (stream->watched != UNWATCHED) epoll_ctl(fabric->epoll, EPOLL_CTL_DEL, stream->fd, NULL);
        stream->watched = UNWATCHED;
        return;
    }
    uint32_t wanted = 0;
    if (!stream->core_ended && !stream->readable) wanted |= EPOLLIN;
    if (!stream->core_is_deaf && !stream->writable) wanted |= EPOLLOUT;
    if (wanted == stream->watched) return;
    struct epoll_event event = {.events = wanted, .data.ptr = stream};
    epoll_ctl(fabric->epoll, EPOLL_CTL_MOD, stream->fd, &event);
    stream->watched = wanted;
}

void relay_end(struct hb_fabric *fabric, struct stream *stream) {
    if (stream->closed) return;
    stream->closed = 1;
    epoll_ctl(fabric->epoll, EPOLL_CTL_DEL, stream->fd, NULL);
    if (stream->lifeline >= 0) close(stream->lifeline);
    close(stream->fd);
    stream->fd = stream->lifeline = -1;
}

/* Read from the core into slots and send these; return 1 if anything moved. */
static int forward(struct hb_fabric *fabric, struct stream *stream) {
    struct lf_ep *endpoint = fabric->provider.endpoint;
    int moved = 0;
    for (;;) {
        struct slot *slot = &stream->out[stream->filled % SLOTS];
        if (stream->readable && !stream->core_ended && slot->progress == FREE) {
            ssize_t received = recv(stream->fd, slot->data, SLOT_BYTES, MSG_DONTWAIT);
            if (received < 0 && errno != EINTR) stream->readable = 0;
            /* Any other error is an end: the empty message tells the other side. */
            if (received < 0 && errno != EINTR && errno != EAGAIN) received = 0;
            if (received >= 0) {
                stream->core_ended = received == 0;
                slot->length = (uint32_t)received;
                slot->progress = UNDER_WAY;
                stream->filled++;
            }
        }
        if (stream->sent == stream->filled) return moved;
        slot = &stream->out[stream->sent % SLOTS];
        ssize_t result = endpoint->tagged->send(endpoint, slot->data, slot->length, stream->descriptor, stream->peer,
                                                stream->peer_tag, slot);
        if (result == -EAGAIN) return moved; /* the endpoint's queue is full: try after the next completion */
        if (result < 0) return relay_end(fabric, stream), 1;
        stream->sent++;
        moved = 1;
    }
}

/* Post receives, and write slots that have come to the core; return 1 if anything moved. */
static int deliver(struct hb_fabric *fabric, struct stream *stream) {
    struct lf_ep *endpoint = fabric->provider.endpoint;
    int moved = 0;
    /* Slots are received, delivered to the core and posted again in one order, which is the order of the bytes. */
    while (stream->posted < stream->delivered + SLOTS && !stream->peer_ended) {
        struct slot *slot = &stream->in[stream->posted % SLOTS];
        slot->progress = UNDER_WAY;
        ssize_t result = endpoint->tagged->recv(endpoint, slot->data, SLOT_BYTES, stream->descriptor, stream->peer,
                                                stream->own_tag, 0, slot);
        if (result == -EAGAIN) break;
        if (result < 0) return relay_end(fabric, stream), 1;
        stream->posted++;
    }
    while (stream->delivered < stream->posted && !stream->peer_ended) {
        struct slot *slot = &stream->in[stream->delivered % SLOTS];
        if (slot->progress != DONE || (!stream->writable && !stream->core_is_deaf)) break;
        if (slot->length == 0) {
            stream->peer_ended = 1;
            shutdown(stream->fd, SHUT_WR);
        } else if (stream->core_is_deaf) {
            /* Drop the bytes, and go on receiving: the sender must not wait for ever. */
            stream->delivered_bytes = slot->length;
        } else {
            uint32_t remaining = slot->length - stream->delivered_bytes;
            ssize_t written = send(stream->fd, slot->data + stream->delivered_bytes, remaining,
                                   MSG_DONTWAIT | MSG_NOSIGNAL);
            if (written > 0) stream->delivered_bytes += (uint32_t)written;
            if (written < 0 && errno == EAGAIN) stream->writable = 0;
            if (written < 0 && errno != EAGAIN && errno != EINTR) stream->core_is_deaf = 1;
        }
        moved = 1;
        if (stream->delivered_bytes < slot->length) continue;
        stream->delivered++;
        stream->delivered_bytes = 0;
    }
    return moved;
}

static int all_sent(const struct stream *stream) {
    int under_way = stream->sent < stream->filled;
    for (int i = 0; i < SLOTS; i++) under_way |= stream->out[i].progress != FREE;
    return !under_way;
}

/* Note which sends and receives are complete; return 1 if any is. */
static int complete(struct hb_fabric *fabric) {
    struct lf_cq *queue = fabric->provider.completions;
    struct lf_cq_entry entries[MAX_COMPLETIONS];
    int moved = 0;
    for (;;) {
        ssize_t count = queue->ops->read(queue, entries, MAX_COMPLETIONS);
        if (count == -LF_EAVAIL) {
            struct lf_cq_error error = {.of.context = NULL};
            if (queue->ops->readerr(queue, &error, 0) < 1) return moved;
            /* Closing the socket is enough: the core at its end reports which process was lost. */
            struct slot *slot = error.of.context;
            if (slot) relay_end(fabric, slot->stream);
            moved = 1;
            continue;
        }
        if (count <= 0) return moved;
        for (ssize_t i = 0; i < count; i++) {
            struct slot *slot = entries[i].context;
            int received = slot >= slot->stream->in && slot < slot->stream->in + SLOTS;
            slot->progress = received ? DONE : FREE;
            if (received && entries[i].length > SLOT_BYTES)
                relay_end(fabric, slot->stream); /* no provider delivers more than was asked for */
            else if (received)
                slot->length = (uint32_t)entries[i].length;
        }
        moved = 1;
    }
}

/* Wait until a socket or the provider has something to do. `stuck`: an endpoint takes no more messages. */
static void wait_for_events(struct hb_fabric *fabric, int moved, int stuck) {
    struct epoll_event events[MAX_EVENTS];
    double now = clock_seconds();
    int timeout = 0;
    if (moved) fabric->moved_at = now;
    if (!moved && fabric->provider.wait >= 0)
        timeout = !provider_may_wait(&fabric->provider) ? 0 : stuck ? RETRY_MILLISECONDS : TICK_MILLISECONDS;
    else if (!moved && now - fabric->moved_at > SPIN_SECONDS)
        nanosleep(&(struct timespec){0, NAP_NANOSECONDS}, NULL);
    int count = epoll_wait(fabric->epoll, events, MAX_EVENTS, timeout);
    for (int i = 0; i < count; i++) {
        struct stream *stream = events[i].data.ptr;
        if (!stream) { /* the eventfd, or the provider's descriptor: `complete` asks that one */
            eventfd_t signals;
            eventfd_read(fabric->wake, &signals);
            continue;
        }
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) stream->readable = 1;
        if (events[i].events & EPOLLOUT) stream->writable = 1;
        if (events[i].events & (EPOLLHUP | EPOLLERR)) stream->core_is_deaf = 1;
    }
}

/* Return 1 if the process at the other end has ended. It sends nothing over its lifeline, so any result of recv but
 * EAGAIN is its end. */
static int is_lost(struct stream *stream) {
    char byte;
    if (stream->lost_at == 0 &&
        (recv(stream->lifeline, &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || (errno != EAGAIN && errno != EINTR)))
        stream->lost_at = clock_seconds();
    return stream->lost_at > 0 && clock_seconds() - stream->lost_at > GRACE;
}

void *relay_run(void *argument) {
    struct hb_fabric *fabric = argument;
    double closing_since = 0, looked_at = 0;
    for (;;) {
        int moved = complete(fabric), stuck = 0, look = clock_seconds() - looked_at > GRACE / 2;
        size_t open = 0;
        for (size_t i = 0; i < fabric->count; i++) {
            struct stream *stream = fabric->streams[i];
            if (stream->closed) continue;
            moved |= deliver(fabric, stream);
            if (!stream->closed) moved |= forward(fabric, stream);
            if (stream->closed) continue;
            stuck |= stream->sent < stream->filled;
            int is_over = stream->core_ended && stream->peer_ended && all_sent(stream);
            if (is_over || (look && is_lost(stream)))
                relay_end(fabric, stream);
            else
                open++, watch(fabric, stream);
        }
        if (look) looked_at = clock_seconds();
        if (atomic_load(&fabric->closing) && closing_since == 0) closing_since = clock_seconds();
        if (open == 0 || (closing_since > 0 && clock_seconds() - closing_since > LINGER)) break;
        wait_for_events(fabric, moved, stuck);
    }
    for (size_t i = 0; i < fabric->count; i++) relay_end(fabric, fabric->streams[i]);
    return NULL;
}
