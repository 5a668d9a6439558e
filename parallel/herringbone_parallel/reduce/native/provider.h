/* An endpoint of one of libfabric's providers, and the memory that it may send from and receive into. */
#ifndef HERRINGBONE_PROVIDER_H
#define HERRINGBONE_PROVIDER_H

#include "libfabric.h"

struct provider {
    struct lf_fabric *fabric;
    struct lf_domain *domain;
    struct lf_av *addresses;
    struct lf_cq *completions;
    struct lf_ep *endpoint;
    int wait; /* readable when there are completions; -1: the provider must be asked again and again */
    int registers;
    struct lf_mr **regions;
    size_t region_count;
};

/* 0, or -1 with the reason in `why`. */
int provider_open(struct provider *provider, const char *library, const char *name, const char *domain,
                  const char *address, char *why, size_t size);
/* Make memory known where the provider wants that, until it is closed; `*descriptor` goes with each use of it. */
int provider_register(struct provider *provider, void *start, size_t size, void **descriptor);
/* Whether the thread may wait for `wait`. */
int provider_may_wait(struct provider *provider);
void provider_close(struct provider *provider);

#endif
