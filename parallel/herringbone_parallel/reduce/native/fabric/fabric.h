/* Connections over libfabric, which a core uses like sockets: the functions that Python calls through ctypes.
 *
 * One thread calls them all; hb_fabric_start comes after the last hb_fabric_link, hb_fabric_close last.
 */
#ifndef HERRINGBONE_FABRIC_H
#define HERRINGBONE_FABRIC_H

#include <stdint.h>

struct hb_fabric;

#pragma GCC visibility push(default)

/* Open an endpoint of a provider by its name. `domain` may be NULL: the first one. `library` is one or several paths
 * for dlopen, separated by colons, exactly one of them a bare file name. `address` is an address of this host for
 * providers that use the network's addresses; "" means any. Return NULL with the reason in `why`. */
struct hb_fabric *hb_fabric_open(const char *library, const char *provider, const char *domain, const char *address,
                                 char *why, uint32_t size);
/* Write the address that others send to, and its length to `*size`, which holds the room in `name`. Return 0, or -1 if
 * the room is too small. */
int hb_fabric_name(struct hb_fabric *fabric, uint8_t *name, uint32_t *size);
/* Add a connection to the endpoint with this name. Return the socket for the core, or -1 with the reason in `why`.
 * Messages that come carry `own_tag`, those that go carry `peer_tag`. `lifeline` is a connection to the same process;
 * it is taken over unless the call fails. */
int hb_fabric_link(struct hb_fabric *fabric, const uint8_t *name, uint64_t own_tag, uint64_t peer_tag, int lifeline,
                   char *why, uint32_t size);
/* Start the relay thread. Return 0, or -1 if the system has no thread left. */
int hb_fabric_start(struct hb_fabric *fabric);
/* Wait, two seconds at most, until all that cores sent has left and all connections have ended; then free all. */
void hb_fabric_close(struct hb_fabric *fabric);

#pragma GCC visibility pop

#endif
