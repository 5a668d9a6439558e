/* Sums over the members of a sum, always in the order of the members, so that every machine gets the same bits. */
#ifndef HERRINGBONE_SUMS_H
#define HERRINGBONE_SUMS_H

#include <stdint.h>

/* One operand. [owner]: the caller of sum_sources. */
struct source {
    const void *data; /* [owner] */
    int element;      /* [owner] enum hb_element */
};

/* Return the bytes of one element; 0 for a number that is no element. */
uint32_t element_size(int element);
/* Return 1 for fp16 and bf16. */
int element_is_16_bit(int element);

/* result = (sources[0] + sources[1] + ...) / divisor; 16-bit floats are summed in fp32. A source may be the result. */
void sum_sources(void *result, int element, const struct source *sources, int count, uint32_t elements,
                 float divisor);

/* Convert 16-bit floats to fp32, and back: to the nearest, ties to even. */
void widen(float *result, const void *data, int element, uint32_t elements);
void narrow(void *result, int element, const float *data, uint32_t elements);

#endif
