/* An endpoint of a libfabric provider, and the memory that it may send from and receive into.
 *
 * [owner]: no lock guards the members; they belong to the thread that owns the struct which contains the provider.
 */
#ifndef HERRINGBONE_PROVIDER_H
#define HERRINGBONE_PROVIDER_H

#include "libfabric.h"

struct provider {
    struct lf_fabric *fabric;    /* [owner] */
    struct lf_domain *domain;    /* [owner] */
    struct lf_av *addresses;     /* [owner] table of the endpoints that messages go to */
    struct lf_cq *completions;   /* [owner] queue of completed sends and receives */
    struct lf_ep *endpoint;      /* [owner] */
    int wait;                    /* [owner] readable when there are completions; -1: ask again and again */
    int registers;               /* [owner] the provider wants memory to be registered */
    struct lf_mr **regions;      /* [owner] registered memory */
    size_t region_count;         /* [owner] */
};

/* Return 0, or -1 with the reason in `why`. */
int provider_open(struct provider *provider, const char *library, const char *name, const char *domain,
                  const char *address, char *why, size_t size);
/* Register memory where the provider wants that, until provider_close; each use of the memory names `*descriptor`. The
 * memory stays valid until then. */
int provider_register(struct provider *provider, void *start, size_t size, void **descriptor);
/* Return 1 if the thread may sleep until `wait` is readable: no completion is in the queue already. */
int provider_may_wait(struct provider *provider);
/* Close what was opened, also after provider_open failed. */
void provider_close(struct provider *provider);

#endif
