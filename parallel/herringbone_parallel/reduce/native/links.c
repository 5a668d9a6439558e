#include "links.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "slots.h"

/* So many messages are received from one link before the others have their turn. */
#define RECEIVE_TURN 32
/* So many bytes are sent to one link before the others have their turn: all ports are kept busy at the same time. */
#define SEND_SHARE (16u << 10)
/* sendmsg takes so many parts at once; a message has two at most. */
#define MAX_PARTS 64
/* Waiting for fewer bytes than this saves no wake: they come in one packet. */
#define LOW_WATER_WORTH 1024
/* Room in the queue for messages that carry no chunk: ALIVE, LEAVE, LEFT and one ABORT. */
#define CONTROL_MESSAGES 16

static int carries_chunk(const struct header *header) { return header->kind == PUSH || header->kind == SUM; }

static void count(_Atomic uint64_t *counter, uint64_t more) {
    /* Relaxed: nobody concludes from one counter anything about other memory. */
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

int link_init(struct core *core, struct link *link, const struct hb_link_spec *spec) {
    link->fd = spec->descriptor;
    link->role = spec->role;
    link->index = spec->index;
    link->outbox = (uint8_t *)(uintptr_t)spec->outbox;
    link->inbox = (uint8_t *)(uintptr_t)spec->inbox;
    link->received_at = link->sent_at = core->woke_at;
    link->label = strdup(spec->label);
    /* The windows bound the pushes and sums that can be queued at the same time. */
    uint32_t chunks = core->max_chunks > core->local_max_chunks ? core->max_chunks : core->local_max_chunks;
    link->queue_capacity = 2 * chunks + CONTROL_MESSAGES;
    link->queue = malloc(link->queue_capacity * sizeof *link->queue);
    if (!link->label || !link->queue) return -1;
    /* Only ranks convert elements: a helper sums in the wire's format, and local ranks share memory. */
    if (link->role == HB_LOCAL || core->member < 0) return 0;
    link->narrowed = malloc(core->ring_bytes);
    link->unwidened = malloc(core->chunk_bytes);
    return link->narrowed && link->unwidened ? 0 : -1;
}

void link_free(struct link *link) {
    if (link->fd >= 0) close(link->fd);
    free(link->label);
    free(link->queue);
    free(link->narrowed);
    free(link->unwidened);
    free(link->abort_reason);
}

void link_send(struct core *core, struct link *link, struct header header, const void *body) {
    if (link->gone) return;
    if (link->queued == link->queue_capacity) {
        state_stop(core, "%s has more messages to %s than windows allow: a mistake of our own", core->label,
                   link->label);
        return;
    }
    link->queue[(link->queue_first + link->queued++) % link->queue_capacity] = (struct message){header, body};
    if (carries_chunk(&header)) count(&link->sent_chunks, 1);
    link->has_unsent = 1;
}

void link_drop(struct link *link) {
    /* The other side has read the start of the first message and waits for its rest. */
    if (link->queued) link->queued = link->first_sent ? 1 : 0;
}

/* Describe up to SEND_SHARE queued bytes for sendmsg, behind those that are already sent; return the parts. */
static int gather(struct link *link, struct iovec *parts) {
    int used = 0;
    uint64_t skip = link->first_sent, gathered = 0;
    for (uint32_t i = 0; i < link->queued && used + 2 <= MAX_PARTS && gathered < SEND_SHARE; i++) {
        struct message *message = &link->queue[(link->queue_first + i) % link->queue_capacity];
        uint64_t lengths[2] = {sizeof message->header, message->header.length};
        const void *starts[2] = {&message->header, message->body};
        for (int part = 0; part < 2; part++) {
            if (skip >= lengths[part]) {
                skip -= lengths[part];
                continue;
            }
            parts[used].iov_base = (char *)starts[part] + skip;
            parts[used++].iov_len = lengths[part] - skip;
            gathered += lengths[part] - skip;
            skip = 0;
        }
    }
    return used;
}

int link_flush(struct core *core, struct link *link) {
    if (link->gone || !link->queued) return 0;
    struct iovec parts[MAX_PARTS];
    struct msghdr batch = {.msg_iov = parts, .msg_iovlen = (size_t)gather(link, parts)};
    /* MSG_NOSIGNAL: a closed connection is an error to report, and must not kill the user's process by SIGPIPE. */
    ssize_t sent = sendmsg(link->fd, &batch, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EINTR ? 1 : errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
    link->sent_at = core->woke_at;
    count(&link->sent_bytes, (uint64_t)sent);
    link->first_sent += (uint64_t)sent;
    while (link->queued) {
        uint64_t whole = sizeof(struct header) + link->queue[link->queue_first].header.length;
        if (link->first_sent < whole) break;
        link->first_sent -= whole;
        link->queue_first = (link->queue_first + 1) % link->queue_capacity;
        link->queued--;
    }
    return link->queued > 0;
}

/* A whole message has come, described by `link->header`. */
static void complete(struct core *core, struct link *link) {
    link->body = NULL;
    if (carries_chunk(&link->header)) {
        count(&link->received_chunks, 1);
        core->callbacks->take(core, link);
    } else {
        core->callbacks->control(core, link);
    }
}

/* The header is complete: decide where its body goes. Nothing in the header can be trusted yet. */
static void begin(struct core *core, struct link *link) {
    const struct header *header = &link->header;
    link->header_received = link->body_received = 0;
    if (!header_is_well_formed(header, link->role == HB_LOCAL)) {
        char text[160];
        header_describe(text, sizeof text, header);
        state_stop(core, "%s sent a message of kind %d and %u bytes (%s): the connection is out of step", link->label,
                   header->kind, header->length, text);
        return;
    }
    if (!header->length) {
        complete(core, link);
    } else if (carries_chunk(header)) {
        link->body = core->callbacks->destination(core, link);
    } else {
        free(link->abort_reason);
        link->abort_reason = calloc(1, (size_t)header->length + 1); /* the text's terminating zero is not sent */
        link->body = (uint8_t *)link->abort_reason;
    }
    if (header->length && !link->body)
        state_stop(core, "%s sent %u bytes that were not due: the connection is out of step", link->label,
                   header->length);
}

int link_watch(struct core *core, struct link *link, int operation) {
    /* EPOLLRDHUP: the end of the connection wakes the thread even while input does not. */
    uint32_t events = (link->ignores_input ? 0u : EPOLLIN) | (link->waits_for_room ? EPOLLOUT : 0u) | EPOLLRDHUP;
    struct epoll_event event = {.events = events, .data.ptr = link};
    return epoll_ctl(core->epoll, operation, link->fd, &event);
}

void link_set_low_water(struct link *link, uint64_t due) {
    /* Waking once for a whole body, or for the sums that are due, halves the wakes and takes a third less processor
     * time than waking for each packet. Unix sockets between local ranks carry headers alone. */
    if (link->gone || link->role == HB_LOCAL) return;
    uint64_t missing = link->body ? link->header.length - link->body_received : 0;
    uint64_t received = link->body ? sizeof link->header + link->body_received : link->header_received;
    if (due > received + missing) missing = due - received;
    int bytes = missing > LOW_WATER_WORTH ? (int)missing : 1;
    if (bytes == link->low_water) return;
    link->low_water = bytes;
    setsockopt(link->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

int link_receive(struct core *core, struct link *link, int all) {
    for (int turn = 0; turn < RECEIVE_TURN && !core->stopping && !link->gone; turn++) {
        /* One system call reads the rest of this message's body, if it has one, and the next header behind it. */
        struct header next;
        struct iovec parts[2] = {{NULL, 0}, {&next, sizeof next}};
        if (link->body)
            parts[0] = (struct iovec){link->body + link->body_received, link->header.length - link->body_received};
        else
            parts[1] = (struct iovec){(char *)&link->header + link->header_received,
                                      sizeof link->header - link->header_received};
        size_t body_bytes = parts[0].iov_len, wanted = body_bytes + parts[1].iov_len;
        ssize_t result = readv(link->fd, body_bytes ? parts : parts + 1, body_bytes ? 2 : 1);
        if (result < 0 && errno == EINTR) continue;
        if (result < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        if (result == 0) return errno = 0, -1; /* errno 0 says that the other side closed */
        size_t received = (size_t)result;
        link->received_at = core->woke_at;
        count(&link->received_bytes, received);
        if (received < body_bytes) {
            link->body_received += (uint32_t)received;
            return 0;
        }
        link->header_received += (uint32_t)(received - body_bytes);
        if (body_bytes) {
            /* `complete` needs this message's header, so `next` replaces it only now. */
            complete(core, link);
            link->header = next;
        }
        if (link->header_received == sizeof link->header) begin(core, link);
        if (received < wanted) return 0;
        /* A body read now would come in parts. Once the next sum needs it, it is in the socket as a whole. */
        if (core->member < 0 && !all && link->body && !slots_lack(&core->served, link->arrived)) return 0;
    }
    return 0;
}

int link_finish(struct core *core, struct link *link) {
    char unread[4096];
    int more;
    while ((more = link_flush(core, link)) > 0) continue;
    if (link->gone || more < 0) return 1;
    if (link->queued) return 0;
    shutdown(link->fd, SHUT_WR);
    /* The kernel resets a connection that is closed with bytes unread, and then the other side loses our last
     * message: read until it has closed as well. */
    ssize_t received;
    while ((received = recv(link->fd, unread, sizeof unread, MSG_DONTWAIT)) > 0) continue;
    return received == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}
