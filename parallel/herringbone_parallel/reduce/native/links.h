/* Messages over one non-blocking socket, both ways, without a copy of the elements that they carry. */
#ifndef HERRINGBONE_LINKS_H
#define HERRINGBONE_LINKS_H

#include "state.h"

/* The calls from a link to the layers above. The I/O thread makes them once `link->header` is complete. */
struct link_callbacks {
    /* Return where the elements behind a PUSH or SUM header go; NULL: they are not due. */
    uint8_t *(*destination)(struct core *core, struct link *link);
    /* A PUSH or SUM is complete. */
    void (*take)(struct core *core, struct link *link);
    /* Another message is complete. */
    void (*control)(struct core *core, struct link *link);
};

/* Take a descriptor over. Return 0, or -1 with what was allocated left to link_free. */
int link_init(struct core *core, struct link *link, const struct hb_link_spec *spec);
/* Close the descriptor and free the link's memory, also after link_init failed. */
void link_free(struct link *link);
/* Queue a message; `body` has `header.length` bytes and stays unchanged until they are sent. */
void link_send(struct core *core, struct link *link, struct header header, const void *body);
/* Drop the queued messages, except one that is partly sent. */
void link_drop(struct link *link);
/* Send some messages. Return 1 if the socket may take more now, 0 if not, -1 if the connection is gone. */
int link_flush(struct core *core, struct link *link);
/* Receive what has come. Return -1 if the connection is gone. A helper leaves bodies unread that the next sum does not
 * need, unless `all` is set. */
int link_receive(struct core *core, struct link *link, int all);
/* Tell epoll which events of a link wake the thread; `operation` is EPOLL_CTL_ADD, MOD or DEL. Return 0, or -1. */
int link_watch(struct core *core, struct link *link, int operation);
/* Tell the kernel how many bytes must come before the thread is woken: the rest of a body, and at least `due`. */
void link_set_low_water(struct link *link, uint64_t due);
/* Send what is queued and close in order. Return 1 once the other side has closed too. */
int link_finish(struct core *core, struct link *link);

#endif
