/* The clock that all deadlines of the native code use. */
#ifndef HERRINGBONE_CLOCK_H
#define HERRINGBONE_CLOCK_H

#include <time.h>

/* Seconds of the monotonic clock: a change of the system's date must not end a job as "silent". */
static inline double clock_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

#endif
