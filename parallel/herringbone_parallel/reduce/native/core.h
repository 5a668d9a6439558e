/* The I/O thread of one core. */
#ifndef HERRINGBONE_CORE_H
#define HERRINGBONE_CORE_H

#include "links.h"
#include "state.h"

/* The calls from links to flow and to the thread. */
extern const struct link_callbacks core_callbacks;

/* Start routine of the thread: runs until the core is closed in order or an error stops it. */
void *core_run(void *core);

#endif
