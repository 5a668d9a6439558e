/* Connections over libfabric, as the core's: see relay.c. This part is the flat ABI that fabric.py calls by ctypes.
 *
 * All functions but hb_fabric_close are called before hb_fabric_start, from one thread.
 */
#ifndef HERRINGBONE_FABRIC_H
#define HERRINGBONE_FABRIC_H

#include <stdint.h>

struct hb_fabric;

/* Open an endpoint of a provider, by its name and, unless it is NULL, its domain's. `library` is what dlopen takes, or
 * several of that with colons between them, of which one is a name alone. `address` is one of this host's, for
 * providers that have the network's own; "": any. NULL: `why` says why not. */
struct hb_fabric *hb_fabric_open(const char *library, const char *provider, const char *domain, const char *address,
                                 char *why, uint32_t size);
/* Where others send to: an address of `*size` bytes at most, which becomes what it has. 0, or -1 where that is too few. */
int hb_fabric_name(struct hb_fabric *fabric, uint8_t *name, uint32_t *size);
/* Add a connection to the endpoint of this name; returns the core's end, -1: `why` says why not. What comes is marked
 * with the tag `own`, what goes with `theirs`. `lifeline` is a connection to the same process, taken over. */
int hb_fabric_link(struct hb_fabric *fabric, const uint8_t *name, uint64_t own, uint64_t theirs, int lifeline, char *why,
                   uint32_t size);
int hb_fabric_start(struct hb_fabric *fabric); /* -1: no thread */
/* Wait until what cores have sent is gone and all connections have ended, two seconds at most; then free everything. */
void hb_fabric_close(struct hb_fabric *fabric);

#endif
