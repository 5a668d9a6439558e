/* Lets hb_new fail at each call that can fail, for test_native.py: nothing may stay allocated or open.
 *
 * The linker replaces the calls by those below (`--wrap`), which count what is allocated and fail the one whose turn it
 * is: first, second, and so on, until hb_new succeeds. Prints how often it failed. Exits 1 if anything was left.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "reduce.h"

#define MAX_DESCRIPTORS 256
#define RING_BYTES 4096

static atomic_int calls_before_failure; /* calls that succeed before one fails */
static atomic_int allocated;  /* blocks of memory; the core's thread frees some */

static int fails(void) { return atomic_fetch_sub(&calls_before_failure, 1) == 0; }

static void *counted(void *block) {
    if (block) atomic_fetch_add(&allocated, 1);
    return block;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
char *__real_strdup(const char *text);
void __real_free(void *block);
int __real_epoll_create1(int flags);
int __real_epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event);
int __real_eventfd(unsigned count, int flags);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);

void *__wrap_malloc(size_t size) { return fails() ? NULL : counted(__real_malloc(size)); }
void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : counted(__real_calloc(count, size)); }
char *__wrap_strdup(const char *text) { return fails() ? NULL : counted(__real_strdup(text)); }
int __wrap_epoll_create1(int flags) { return fails() ? -1 : __real_epoll_create1(flags); }
int __wrap_eventfd(unsigned count, int flags) { return fails() ? -1 : __real_eventfd(count, flags); }

void __wrap_free(void *block) {
    if (block) atomic_fetch_sub(&allocated, 1);
    __real_free(block);
}

int __wrap_epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event) {
    return operation == EPOLL_CTL_ADD && fails() ? -1 : __real_epoll_ctl(epoll, operation, descriptor, event);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    return fails() ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

static int open_descriptors(void) {
    int count = 0;
    for (int descriptor = 0; descriptor < MAX_DESCRIPTORS; descriptor++) count += fcntl(descriptor, F_GETFD) >= 0;
    return count;
}

/* Start a core with one link of each role; all calls after the first `succeeding` ones fail once. */
static struct hb_core *start(int succeeding, int *ends) {
    static uint8_t inbox[RING_BYTES], outbox[RING_BYTES];
    struct hb_link_spec specs[3];
    for (int i = 0; i < 3; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) abort();
        ends[i] = pair[1];
        specs[i] = (struct hb_link_spec){.descriptor = pair[0], .role = i, .index = i > 0, .label = "the other end"};
    }
    specs[HB_LOCAL].inbox = (uint64_t)(uintptr_t)inbox;
    specs[HB_LOCAL].outbox = (uint64_t)(uintptr_t)outbox;
    struct hb_config config = {.label = "the core",
                               .members = 2,
                               .helpers = 1,
                               .local_ranks = 2,
                               .lanes = 2,
                               .chunk_bytes = RING_BYTES / 4,
                               .ring_bytes = RING_BYTES,
                               .max_chunks = 4,
                               .local_ring_bytes = RING_BYTES,
                               .local_max_chunks = 4,
                               .links = 3,
                               .silence = 60,
                               .late = 60,
                               .specs = specs};
    atomic_store(&calls_before_failure, succeeding);
    struct hb_core *core = hb_new(&config);
    atomic_store(&calls_before_failure, -1); /* no call fails from here on */
    return core;
}

int main(void) {
    int before = open_descriptors(), ends[3];
    for (int failures = 0;; failures++) {
        struct hb_core *core = start(failures, ends);
        for (int i = 0; i < 3; i++) close(ends[i]); /* a running core ends with this */
        if (core) {
            hb_close(core);
            hb_free(core);
        }
        int descriptors = open_descriptors() - before, blocks = atomic_load(&allocated);
        if (descriptors || blocks) {
            printf("after failure %d: %d descriptors and %d blocks are left\n", failures, descriptors, blocks);
            return 1;
        }
        if (!core) continue;
        printf("%d failures left nothing behind\n", failures);
        return 0;
    }
}
