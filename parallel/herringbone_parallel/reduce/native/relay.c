/* Connections over libfabric that look like sockets to a core.
 *
 *   core ==socket pair== this thread [slots] --tagged messages--> endpoint ... endpoint [slots] ==socket pair== core
 *
 * What is read from the socket pair fills a slot, which is sent as one message; an empty message says that there is no
 * more. Messages with one tag come in the order in which they were sent, into the receives in the order in which these
 * were posted. Tags are random and told to one process each, over a connection that the job's token has opened: what a
 * stranger sends has no receive to match. That connection stays open beside: when it ends, so did the process.
 */
#include "fabric.h"

#include "core.h"
#include "provider.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 8
#define SLOT_BYTES (64u << 10)
#define EVENTS 64
#define BATCH 32
#define LINGER 2.0
/* What a process sent before it ended may still be on its way when its lifeline ends. */
#define GRACE 0.25
/* Without a descriptor to wait for: how long to ask again at once, and how long to sleep between later questions. */
#define SPIN 100e-6
#define NAP_NANOSECONDS 50000
#define TICK_MILLISECONDS 100
/* While an endpoint takes no more: its way to the other end may be being made, of which not every provider tells. */
#define RETRY_MILLISECONDS 1

#define NEVER UINT32_MAX

enum progress { FREE, UNDER_WAY, DONE };

struct slot {
    void *providers_own[8]; /* first: a completion names a slot by this address */
    struct stream *stream;
    uint8_t *data;
    uint32_t length;
    enum progress progress;
};

struct stream {
    int fd, lifeline;
    uint64_t peer, own_tag, peer_tag;
    uint8_t *memory;
    void *descriptor;
    struct slot out[SLOTS], in[SLOTS];
    /* Counts of slots since the beginning: filled by the core, sent; posted to receive, given to the core. */
    uint64_t filled, sent, posted, given;
    uint32_t given_bytes; /* of the slot that is being given */
    uint32_t watched;
    int readable, writable;
    int core_ended, peer_ended; /* will send no more */
    int deaf;                   /* the core reads no more */
    double lost_at;
    int closed;
};

struct hb_fabric {
    struct provider provider;
    struct stream **streams;
    size_t count;
    int epoll, bell;
    pthread_t thread;
    int started;
    atomic_int closing;
    double moved_at;
};

static void watch(struct hb_fabric *fabric, struct stream *stream) {
    if (stream->core_ended && stream->deaf) {
        /* Of a socket whose other end is closed the system never stops telling. */
        if (stream->watched != NEVER) epoll_ctl(fabric->epoll, EPOLL_CTL_DEL, stream->fd, NULL);
        stream->watched = NEVER;
        return;
    }
    uint32_t wanted = 0;
    if (!stream->core_ended && !stream->readable) wanted |= EPOLLIN;
    if (!stream->deaf && !stream->writable) wanted |= EPOLLOUT;
    if (wanted == stream->watched) return;
    struct epoll_event event = {.events = wanted, .data.ptr = stream};
    epoll_ctl(fabric->epoll, EPOLL_CTL_MOD, stream->fd, &event);
    stream->watched = wanted;
}

static void end(struct hb_fabric *fabric, struct stream *stream) {
    if (stream->closed) return;
    stream->closed = 1;
    epoll_ctl(fabric->epoll, EPOLL_CTL_DEL, stream->fd, NULL);
    if (stream->lifeline >= 0) close(stream->lifeline);
    close(stream->fd);
    stream->fd = stream->lifeline = -1;
}

/* From the core into slots, and on their way. Returns whether anything moved. */
static int send_on(struct hb_fabric *fabric, struct stream *stream) {
    struct lf_ep *endpoint = fabric->provider.endpoint;
    int moved = 0;
    for (;;) {
        struct slot *slot = &stream->out[stream->filled % SLOTS];
        if (stream->readable && !stream->core_ended && slot->progress == FREE) {
            ssize_t got = recv(stream->fd, slot->data, SLOT_BYTES, MSG_DONTWAIT);
            if (got < 0 && errno != EINTR) stream->readable = 0;
            if (got < 0 && errno != EINTR && errno != EAGAIN) got = 0;
            if (got >= 0) {
                stream->core_ended = got == 0;
                slot->length = (uint32_t)got;
                slot->progress = UNDER_WAY;
                stream->filled++;
            }
        }
        if (stream->sent == stream->filled) return moved;
        slot = &stream->out[stream->sent % SLOTS];
        ssize_t result = endpoint->tagged->send(endpoint, slot->data, slot->length, stream->descriptor, stream->peer,
                                                stream->peer_tag, slot);
        if (result == -EAGAIN) return moved;
        if (result < 0) return end(fabric, stream), 1;
        stream->sent++;
        moved = 1;
    }
}

/* From slots that have come to the core. Returns whether anything moved. */
static int give(struct hb_fabric *fabric, struct stream *stream) {
    struct lf_ep *endpoint = fabric->provider.endpoint;
    int moved = 0;
    while (stream->posted < stream->given + SLOTS && !stream->peer_ended) {
        struct slot *slot = &stream->in[stream->posted % SLOTS];
        slot->progress = UNDER_WAY;
        ssize_t result = endpoint->tagged->recv(endpoint, slot->data, SLOT_BYTES, stream->descriptor, stream->peer,
                                                stream->own_tag, 0, slot);
        if (result == -EAGAIN) break;
        if (result < 0) return end(fabric, stream), 1;
        stream->posted++;
    }
    while (stream->given < stream->posted && !stream->peer_ended) {
        struct slot *slot = &stream->in[stream->given % SLOTS];
        if (slot->progress != DONE || (!stream->writable && !stream->deaf)) break;
        if (slot->length == 0) {
            stream->peer_ended = 1;
            shutdown(stream->fd, SHUT_WR);
        } else if (stream->deaf) {
            stream->given_bytes = slot->length;
        } else {
            ssize_t put = send(stream->fd, slot->data + stream->given_bytes, slot->length - stream->given_bytes,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
            if (put > 0) stream->given_bytes += (uint32_t)put;
            if (put < 0 && errno == EAGAIN) stream->writable = 0;
            if (put < 0 && errno != EAGAIN && errno != EINTR) stream->deaf = 1;
        }
        moved = 1;
        if (stream->given_bytes < slot->length) continue;
        stream->given++;
        stream->given_bytes = 0;
    }
    return moved;
}

static int all_sent(const struct stream *stream) {
    int under_way = stream->sent < stream->filled;
    for (int i = 0; i < SLOTS; i++) under_way |= stream->out[i].progress != FREE;
    return !under_way;
}

/* Returns whether anything was completed. */
static int complete(struct hb_fabric *fabric) {
    struct lf_cq *queue = fabric->provider.completions;
    struct lf_cq_entry entries[BATCH];
    int moved = 0;
    for (;;) {
        ssize_t count = queue->ops->read(queue, entries, BATCH);
        if (count == -LF_EAVAIL) {
            struct lf_cq_error error = {.of.context = NULL};
            if (queue->ops->readerr(queue, &error, 0) < 1) return moved;
            /* The core that reads from this connection names who was at its other end. */
            struct slot *slot = error.of.context;
            if (slot) end(fabric, slot->stream);
            moved = 1;
            continue;
        }
        if (count <= 0) return moved;
        for (ssize_t i = 0; i < count; i++) {
            struct slot *slot = entries[i].context;
            int received = slot >= slot->stream->in && slot < slot->stream->in + SLOTS;
            if (received) slot->length = (uint32_t)entries[i].length;
            slot->progress = received ? DONE : FREE;
        }
        moved = 1;
    }
}

static void wait_for_news(struct hb_fabric *fabric, int moved, int stuck) {
    struct epoll_event events[EVENTS];
    double at = now();
    int timeout = 0;
    if (moved) fabric->moved_at = at;
    if (!moved && fabric->provider.wait >= 0)
        timeout = !provider_may_wait(&fabric->provider) ? 0 : stuck ? RETRY_MILLISECONDS : TICK_MILLISECONDS;
    else if (!moved && at - fabric->moved_at > SPIN)
        nanosleep(&(struct timespec){0, NAP_NANOSECONDS}, NULL);
    int count = epoll_wait(fabric->epoll, events, EVENTS, timeout);
    for (int i = 0; i < count; i++) {
        struct stream *stream = events[i].data.ptr;
        if (!stream) {
            eventfd_t rung;
            eventfd_read(fabric->bell, &rung);
            continue;
        }
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) stream->readable = 1;
        if (events[i].events & EPOLLOUT) stream->writable = 1;
        if (events[i].events & (EPOLLHUP | EPOLLERR)) stream->deaf = 1;
    }
}

/* Whether the process at the other end is there. It says nothing over its lifeline: what can be read is its end. */
static int is_lost(struct stream *stream) {
    char byte;
    if (stream->lost_at == 0 && recv(stream->lifeline, &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0) stream->lost_at = now();
    if (stream->lost_at == 0 && errno != EAGAIN && errno != EINTR) stream->lost_at = now();
    return stream->lost_at > 0 && now() - stream->lost_at > GRACE;
}

static void *run(void *argument) {
    struct hb_fabric *fabric = argument;
    double close_at = 0, looked_at = 0;
    for (;;) {
        int moved = complete(fabric), stuck = 0, look = now() - looked_at > GRACE / 2;
        size_t left = 0;
        for (size_t i = 0; i < fabric->count; i++) {
            struct stream *stream = fabric->streams[i];
            if (stream->closed) continue;
            moved |= give(fabric, stream);
            if (!stream->closed) moved |= send_on(fabric, stream);
            if (stream->closed) continue;
            stuck |= stream->sent < stream->filled;
            int over = stream->core_ended && stream->peer_ended && all_sent(stream);
            if (over || (look && is_lost(stream)))
                end(fabric, stream);
            else
                left++, watch(fabric, stream);
        }
        if (look) looked_at = now();
        if (atomic_load(&fabric->closing) && close_at == 0) close_at = now() + LINGER;
        if (left == 0 || (close_at > 0 && now() > close_at)) break;
        wait_for_news(fabric, moved, stuck);
    }
    for (size_t i = 0; i < fabric->count; i++) end(fabric, fabric->streams[i]);
    return NULL;
}

static struct stream *stream_of(struct hb_fabric *fabric, uint64_t own, uint64_t theirs) {
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream) return NULL;
    stream->fd = stream->lifeline = -1;
    stream->own_tag = own;
    stream->peer_tag = theirs;
    stream->memory = aligned_alloc(4096, 2 * SLOTS * SLOT_BYTES);
    if (!stream->memory ||
        provider_register(&fabric->provider, stream->memory, 2 * SLOTS * SLOT_BYTES, &stream->descriptor)) {
        free(stream->memory);
        free(stream);
        return NULL;
    }
    for (int i = 0; i < SLOTS; i++) {
        stream->out[i].stream = stream->in[i].stream = stream;
        stream->out[i].data = stream->memory + (size_t)i * SLOT_BYTES;
        stream->in[i].data = stream->memory + (size_t)(SLOTS + i) * SLOT_BYTES;
    }
    return stream;
}

/* Signals are for the process's own threads: Python waits in one of them, and would not wake for those of another. */
static void block_signals(sigset_t *before) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

/* The ABI. */

struct hb_fabric *hb_fabric_open(const char *library, const char *provider, const char *domain, const char *address,
                                 char *why, uint32_t size) {
    struct hb_fabric *fabric = calloc(1, sizeof *fabric);
    if (!fabric) return NULL;
    /* Providers start threads, and some take signals over: of a process that was asked to end, nothing was heard. */
    sigset_t before;
    struct sigaction handlers[NSIG];
    block_signals(&before);
    for (int number = 1; number < NSIG; number++) sigaction(number, NULL, &handlers[number]);
    int wrong = provider_open(&fabric->provider, library, provider, domain, address, why, size);
    for (int number = 1; number < NSIG; number++) sigaction(number, &handlers[number], NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (wrong) {
        free(fabric);
        return NULL;
    }
    fabric->epoll = epoll_create1(EPOLL_CLOEXEC);
    fabric->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(fabric->epoll, EPOLL_CTL_ADD, fabric->bell, &event);
    if (fabric->provider.wait >= 0) epoll_ctl(fabric->epoll, EPOLL_CTL_ADD, fabric->provider.wait, &event);
    return fabric;
}

int hb_fabric_name(struct hb_fabric *fabric, uint8_t *name, uint32_t *size) {
    size_t length = *size;
    struct lf_ep *endpoint = fabric->provider.endpoint;
    if (endpoint->cm->getname(&endpoint->fid, name, &length)) return -1;
    *size = (uint32_t)length;
    return 0;
}

int hb_fabric_link(struct hb_fabric *fabric, const uint8_t *name, uint64_t own, uint64_t theirs, int lifeline, char *why,
                   uint32_t size) {
    struct lf_av *addresses = fabric->provider.addresses;
    struct stream **streams = realloc(fabric->streams, (fabric->count + 1) * sizeof *streams);
    struct stream *stream = streams ? stream_of(fabric, own, theirs) : NULL;
    if (streams) fabric->streams = streams;
    int pair[2];
    if (!stream) {
        snprintf(why, size, "there is too little memory, or too little that may be locked (`ulimit -l`)");
    } else if (addresses->ops->insert(addresses, name, 1, &stream->peer, 0, NULL) != 1) {
        snprintf(why, size, "the provider does not take the other end's address");
    } else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        snprintf(why, size, "no more files can be opened: %s", strerror(errno));
    } else {
        stream->fd = pair[1];
        stream->lifeline = lifeline;
        stream->watched = EPOLLIN | EPOLLOUT;
        struct epoll_event event = {.events = stream->watched, .data.ptr = stream};
        epoll_ctl(fabric->epoll, EPOLL_CTL_ADD, stream->fd, &event);
        fabric->streams[fabric->count++] = stream;
        return pair[0];
    }
    if (stream) free(stream->memory);
    free(stream);
    return -1;
}

int hb_fabric_start(struct hb_fabric *fabric) {
    sigset_t before;
    block_signals(&before);
    fabric->started = pthread_create(&fabric->thread, NULL, run, fabric) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return fabric->started ? 0 : -1;
}

void hb_fabric_close(struct hb_fabric *fabric) {
    atomic_store(&fabric->closing, 1);
    eventfd_write(fabric->bell, 1);
    if (fabric->started)
        pthread_join(fabric->thread, NULL);
    else
        for (size_t i = 0; i < fabric->count; i++) end(fabric, fabric->streams[i]);
    provider_close(&fabric->provider);
    for (size_t i = 0; i < fabric->count; i++) {
        free(fabric->streams[i]->memory);
        free(fabric->streams[i]);
    }
    free(fabric->streams);
    close(fabric->epoll);
    close(fabric->bell);
    free(fabric);
}
