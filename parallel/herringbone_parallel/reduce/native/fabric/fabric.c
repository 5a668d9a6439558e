/* The functions of fabric.h. */
#include "fabric.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay.h"

static struct stream *new_stream(struct hb_fabric *fabric, uint64_t own_tag, uint64_t peer_tag) {
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream) return NULL;
    stream->fd = stream->lifeline = -1;
    stream->own_tag = own_tag;
    stream->peer_tag = peer_tag;
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

/* Signals are for the process's own threads: Python's main thread waits for them, and would not wake for a signal that
 * another thread got. A thread inherits the mask of the thread that creates it. */
static void block_signals(sigset_t *before) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

/* Open the provider without lasting effects on the signals of this process. */
static int open_provider(struct provider *provider, const char *library, const char *name, const char *domain,
                         const char *address, char *why, uint32_t size) {
    /* Providers start threads, which inherit the mask, and some replace signal handlers, that of SIGTERM for example:
     * put the process's own back. */
    sigset_t before;
    struct sigaction handlers[NSIG];
    block_signals(&before);
    for (int number = 1; number < NSIG; number++) sigaction(number, NULL, &handlers[number]);
    int result = provider_open(provider, library, name, domain, address, why, size);
    for (int number = 1; number < NSIG; number++) sigaction(number, &handlers[number], NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

struct hb_fabric *hb_fabric_open(const char *library, const char *provider, const char *domain, const char *address,
                                 char *why, uint32_t size) {
    snprintf(why, size, "there is too little memory");
    struct hb_fabric *fabric = calloc(1, sizeof *fabric);
    if (!fabric || open_provider(&fabric->provider, library, provider, domain, address, why, size)) goto no_provider;
    struct epoll_event event = {.events = EPOLLIN}; /* data.ptr NULL: no stream's */
    int provider_descriptor = fabric->provider.wait;
    fabric->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fabric->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (fabric->wake < 0 || fabric->epoll < 0) goto failed;
    if (epoll_ctl(fabric->epoll, EPOLL_CTL_ADD, fabric->wake, &event)) goto failed;
    if (provider_descriptor >= 0 && epoll_ctl(fabric->epoll, EPOLL_CTL_ADD, provider_descriptor, &event)) goto failed;
    return fabric;

failed:
    snprintf(why, size, "no more files can be opened: %s", strerror(errno));
    if (fabric->epoll >= 0) close(fabric->epoll);
    if (fabric->wake >= 0) close(fabric->wake);
    provider_close(&fabric->provider);
no_provider:
    free(fabric);
    return NULL;
}

int hb_fabric_name(struct hb_fabric *fabric, uint8_t *name, uint32_t *size) {
    size_t length = *size;
    struct lf_ep *endpoint = fabric->provider.endpoint;
    if (endpoint->cm->getname(&endpoint->fid, name, &length)) return -1;
    *size = (uint32_t)length;
    return 0;
}

int hb_fabric_link(struct hb_fabric *fabric, const uint8_t *name, uint64_t own_tag, uint64_t peer_tag, int lifeline,
                   char *why, uint32_t size) {
    struct lf_av *addresses = fabric->provider.addresses;
    struct stream **streams = realloc(fabric->streams, (fabric->count + 1) * sizeof *streams);
    struct stream *stream = streams ? new_stream(fabric, own_tag, peer_tag) : NULL;
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
    if (stream) {
        /* Its memory is registered, so it is freed after the provider is closed. The relay thread skips the stream. */
        stream->closed = 1;
        fabric->streams[fabric->count++] = stream;
    }
    return -1;
}

int hb_fabric_start(struct hb_fabric *fabric) {
    sigset_t before;
    block_signals(&before);
    fabric->is_started = pthread_create(&fabric->thread, NULL, relay_run, fabric) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return fabric->is_started ? 0 : -1;
}

void hb_fabric_close(struct hb_fabric *fabric) {
    atomic_store(&fabric->closing, 1);
    eventfd_write(fabric->wake, 1);
    if (fabric->is_started)
        pthread_join(fabric->thread, NULL);
    else
        for (size_t i = 0; i < fabric->count; i++) relay_end(fabric, fabric->streams[i]);
    provider_close(&fabric->provider);
    for (size_t i = 0; i < fabric->count; i++) {
        free(fabric->streams[i]->memory);
        free(fabric->streams[i]);
    }
    free(fabric->streams);
    close(fabric->epoll);
    close(fabric->wake);
    free(fabric);
}
