/* Loops over elements. sums.c includes this file once for each kind of processor; KERNEL(name) makes the names differ.
 * `restrict` and simple loops let the compiler vectorize. */

static void KERNEL(add_f32)(float *restrict sum, const float *restrict data, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) sum[i] += data[i];
}

static void KERNEL(add_f64)(double *restrict sum, const double *restrict data, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) sum[i] += data[i];
}

/* Integers wrap around as numpy's do; unsigned, because signed overflow is undefined in C. */
static void KERNEL(add_32)(uint32_t *restrict sum, const uint32_t *restrict data, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) sum[i] += data[i];
}

static void KERNEL(add_64)(uint64_t *restrict sum, const uint64_t *restrict data, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) sum[i] += data[i];
}

static void KERNEL(add_8)(uint8_t *restrict sum, const uint8_t *restrict data, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) sum[i] = (uint8_t)(sum[i] + data[i]);
}

static void KERNEL(widen_bf16)(float *restrict wide, const uint16_t *restrict data, uint32_t n) {
    uint32_t *restrict bits = (uint32_t *)wide;
    for (uint32_t i = 0; i < n; i++) bits[i] = (uint32_t)data[i] << 16;
}

static void KERNEL(narrow_bf16)(uint16_t *restrict narrow, const float *restrict data, uint32_t n) {
    const uint32_t *restrict all = (const uint32_t *)data;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = all[i];
        uint32_t rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16;
        /* Rounding could carry the bits of a NaN over into infinity: a NaN keeps its upper half, with the quiet bit. */
        uint32_t quiet = bits >> 16 | 0x40;
        narrow[i] = (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
    }
}
