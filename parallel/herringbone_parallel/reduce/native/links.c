/* Messages over one non-blocking socket, both ways, without a copy of what they carry: see stream.py. */
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* How many messages one turn of the loop takes from one connection before the others have theirs. */
#define TURN 32
#define PARTS 64
/* How many bytes go to one connection before the others get theirs: ports are fed side by side, not one after the other. */
#define SHARE (16u << 10)
#define WORTH_WAITING 1024
#define MAX_REASON (64u << 10)

_Static_assert(sizeof(struct header) == 32, "the header is 32 bytes on the wire");

static int carries_chunk(const struct header *header) { return header->kind == PUSH || header->kind == SUM; }

int link_init(struct core *core, struct link *link, const struct hb_link_spec *spec) {
    link->fd = spec->descriptor;
    link->role = spec->role;
    link->index = spec->index;
    link->outbox = (uint8_t *)(uintptr_t)spec->outbox;
    link->inbox = (uint8_t *)(uintptr_t)spec->inbox;
    link->heard = link->spoke = core->at;
    link->label = strdup(spec->label);
    /* Pushes and sums are bounded by the windows; the rest is signs of life and the end. */
    link->capacity = 2 * (core->most > core->local_most ? core->most : core->local_most) + 16;
    link->queue = malloc(link->capacity * sizeof *link->queue);
    if (link->role != HB_LOCAL && core->member >= 0) {
        link->staged = malloc(core->ring);
        link->landed = malloc(core->chunk_bytes);
        if (!link->staged || !link->landed) return -1;
    }
    return link->label && link->queue ? 0 : -1;
}

void link_free(struct link *link) {
    if (link->fd >= 0) close(link->fd);
    free(link->label);
    free(link->queue);
    free(link->staged);
    free(link->landed);
    free(link->reason);
}

void link_send(struct core *core, struct link *link, struct header header, const void *body) {
    if (link->gone) return;
    if (link->queued == link->capacity) {
        stop(core, "%s has more messages to %s than windows allow: a mistake of our own", core->label, link->label);
        return;
    }
    link->queue[(link->first + link->queued++) % link->capacity] = (struct message){header, body};
    if (carries_chunk(&header)) atomic_fetch_add_explicit(&link->sent_chunks, 1, memory_order_relaxed);
    link->dirty = 1;
}

void link_drop(struct link *link) {
    if (link->queued) link->queued = link->begun ? 1 : 0;
}

static int gather(struct link *link, struct iovec *parts) {
    int count = 0;
    uint64_t skip = link->begun, gathered = 0;
    for (uint32_t i = 0; i < link->queued && count + 2 <= PARTS && gathered < SHARE; i++) {
        struct message *message = &link->queue[(link->first + i) % link->capacity];
        uint64_t lengths[2] = {sizeof message->header, message->header.length};
        const void *starts[2] = {&message->header, message->body};
        for (int part = 0; part < 2; part++) {
            if (skip >= lengths[part]) {
                skip -= lengths[part];
                continue;
            }
            parts[count].iov_base = (char *)starts[part] + skip;
            parts[count++].iov_len = lengths[part] - skip;
            gathered += lengths[part] - skip;
            skip = 0;
        }
    }
    return count;
}

int link_flush(struct core *core, struct link *link) {
    if (link->gone || !link->queued) return 0;
    struct iovec parts[PARTS];
    struct msghdr batch = {.msg_iov = parts, .msg_iovlen = (size_t)gather(link, parts)};
    ssize_t sent = sendmsg(link->fd, &batch, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EINTR ? 1 : errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
    link->spoke = core->at;
    atomic_fetch_add_explicit(&link->sent_bytes, (uint64_t)sent, memory_order_relaxed);
    link->begun += (uint64_t)sent;
    while (link->queued) {
        uint64_t whole = sizeof(struct header) + link->queue[link->first].header.length;
        if (link->begun < whole) break;
        link->begun -= whole;
        link->first = (link->first + 1) % link->capacity;
        link->queued--;
    }
    return link->queued > 0;
}

/* A whole message is there, described by `head`. */
static void complete(struct core *core, struct link *link) {
    link->body = NULL;
    if (carries_chunk(&link->head)) {
        atomic_fetch_add_explicit(&link->received_chunks, 1, memory_order_relaxed);
        flow_take(core, link);
    } else {
        take_control(core, link);
    }
}

/* The header is complete: decide where its body goes. */
static void begin(struct core *core, struct link *link) {
    struct header *head = &link->head;
    link->head_got = link->body_got = 0;
    if (head->kind < PUSH || head->kind > LEFT) {
        stop(core, "%s sent a message of kind %d: the connection is out of step", link->label, head->kind);
    } else if (!head->length) {
        complete(core, link);
    } else if (carries_chunk(head)) {
        link->body = flow_place(core, link);
    } else if (head->kind == ABORT && head->length <= MAX_REASON) {
        free(link->reason);
        link->reason = calloc(1, head->length + 1);
        link->body = (uint8_t *)link->reason;
    }
    if (head->length && !link->body)
        stop(core, "%s sent %u bytes that were not due: the connection is out of step", link->label, head->length);
}

/* Not for each packet, but for a whole body, or for the sums that are due: half the wakes, and of processor time a third. */
void link_wake(struct core *core, struct link *link) {
    if (link->gone || link->role == HB_LOCAL) return;
    uint64_t left = link->body ? link->head.length - link->body_got : 0, due = flow_due(core, link);
    uint64_t there = link->body ? sizeof link->head + link->body_got : link->head_got;
    if (due > there + left) left = due - there;
    int bytes = left > WORTH_WAITING ? (int)left : 1;
    if (bytes == link->woken_at) return;
    link->woken_at = bytes;
    setsockopt(link->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

int link_receive(struct core *core, struct link *link, int all) {
    for (int turn = 0; turn < TURN && !core->stopping && !link->gone; turn++) {
        /* What is left of this message's body, if any, and the next header with it. */
        struct header next;
        struct iovec parts[2] = {{link->body + link->body_got, 0}, {&next, sizeof next}};
        if (link->body)
            parts[0].iov_len = link->head.length - link->body_got;
        else
            parts[1] = (struct iovec){(char *)&link->head + link->head_got, sizeof link->head - link->head_got};
        size_t body_left = parts[0].iov_len, wanted = body_left + parts[1].iov_len;
        ssize_t got = readv(link->fd, body_left ? parts : parts + 1, body_left ? 2 : 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        if (got == 0) return errno = 0, -1;
        link->heard = core->at;
        atomic_fetch_add_explicit(&link->received_bytes, (uint64_t)got, memory_order_relaxed);
        if ((size_t)got < body_left) {
            link->body_got += (uint32_t)got;
            return 0;
        }
        link->head_got += (uint32_t)((size_t)got - body_left);
        if (body_left) {
            complete(core, link);
            link->head = next;
        }
        if (link->head_got == sizeof link->head) begin(core, link);
        if ((size_t)got < wanted) return 0;
        /* The rest would come in parts: once the sum needs it, it is there as a whole. */
        if (core->member < 0 && !all && link->body && !flow_lacks(core, link)) return 0;
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
    ssize_t got;
    while ((got = recv(link->fd, unread, sizeof unread, MSG_DONTWAIT)) > 0) continue;
    return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}
