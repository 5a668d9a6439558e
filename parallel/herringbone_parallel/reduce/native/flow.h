/* The way of chunks through one process, which sends, sums and hands on each one as soon as that is possible.
 *
 *   [1] contribute   own chunks of the other local ranks' lanes -> those ranks' rings in shared memory
 *   [2] join         own lane: all ranks of this host have given a chunk -> their sum, in the buffer
 *   [3] push         a chunk of the own lane -> the server of its shard
 *   [4] serve        all hosts have given a chunk of the shard that this process sums -> the sum, to all of them
 *   [5] hand on      the sum over all hosts is in the buffer -> the rings of the ranks of this host
 *
 * A helper has [4] alone. No step blocks: each does what is possible now.
 */
#ifndef HERRINGBONE_FLOW_H
#define HERRINGBONE_FLOW_H

#include "state.h"

/* Return 0, or -1 with what was allocated left to flow_free. Requires initialized links; hb_new calls it. */
int flow_init(struct core *core);
/* Undo flow_init, also after it failed. */
void flow_free(struct core *core);
/* Do all steps as far as they can be done now. I/O thread only. */
void flow_run(struct core *core);

#endif
