/* Sums of what several members gave, taken in the order of the members, whatever machine takes them. */
#ifndef HERRINGBONE_SUMS_H
#define HERRINGBONE_SUMS_H

#include <stdint.h>

struct source {
    const void *data;
    int element;
};

uint32_t element_size(int element);

/* result = (sources[0] + sources[1] + ...) / divisor; 16-bit floats are summed in fp32. A source may be the result. */
void sum_sources(void *result, int element, const struct source *sources, int count, uint32_t elements,
                 uint32_t divisor);

/* fp32 from 16-bit floats, and the other way: to the nearest, ties to even. */
void widen(float *result, const void *data, int element, uint32_t elements);
void narrow(void *result, int element, const float *data, uint32_t elements);

#endif
