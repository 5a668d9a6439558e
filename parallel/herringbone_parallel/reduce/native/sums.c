#include "sums.h"

#include <stddef.h>
#include <string.h>

#include "reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HAS_AVX2 1
#else
#define HAS_AVX2 0
#endif

/* So many elements are summed before the next ones: the partial sum stays in the L1 cache for any number of members. */
#define BLOCK 2048

/* The kernels are compiled once for any processor and once for AVX2, and the processor is asked when they run: a build
 * for the newest processor would crash on an older one. Both give the same bits: IEEE operations in the same order. */

#define KERNEL(name) name##_plain
#include "kernels.h"
#undef KERNEL

#if defined(__aarch64__)

static void widen_f16_plain(float *restrict wide, const uint16_t *restrict data, uint32_t n) {
    const __fp16 *restrict half = (const __fp16 *)data;
    for (uint32_t i = 0; i < n; i++) wide[i] = (float)half[i];
}

static void narrow_f16_plain(uint16_t *restrict narrow, const float *restrict data, uint32_t n) {
    __fp16 *restrict half = (__fp16 *)narrow;
    for (uint32_t i = 0; i < n; i++) half[i] = (__fp16)data[i];
}

#else

/* Conversions in integer arithmetic, for processors without instructions for half precision. */
static float float_of_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1F, fraction = half & 0x3FF, bits;
    float value;
    if (exponent == 0) { /* zero or subnormal: fraction x 2^-24 */
        value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    if (exponent == 31)
        /* A NaN gets the quiet bit, as the processor's own conversion does it. */
        bits = sign | 0x7F800000 | fraction << 13 | (fraction ? 0x400000 : 0);
    else
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t half_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (rest >> 13 & 0x3FF));
    if (rest >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* rounds to infinity */
    if (rest < 0x38800000) { /* subnormal: adding 0.5 rounds to a multiple of 2^-24 in the low bits */
        float shifted;
        memcpy(&shifted, &rest, 4);
        shifted += 0.5f;
        memcpy(&rest, &shifted, 4);
        return (uint16_t)(sign | (rest - 0x3F000000));
    }
    /* Half a unit less one, plus the last bit that stays: ties go to even. A carry into the exponent is right. */
    return (uint16_t)(sign | ((rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13));
}

static void widen_f16_plain(float *restrict wide, const uint16_t *restrict data, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) wide[i] = float_of_half(data[i]);
}

static void narrow_f16_plain(uint16_t *restrict narrow, const float *restrict data, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) narrow[i] = half_of_float(data[i]);
}

#endif

#if HAS_AVX2
#pragma GCC push_options
#pragma GCC target("avx2,f16c")

#define KERNEL(name) name##_avx2
#include "kernels.h"
#undef KERNEL

static void widen_f16_avx2(float *restrict wide, const uint16_t *restrict data, uint32_t n) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(data + i))));
    widen_f16_plain(wide + i, data + i, n - i);
}

static void narrow_f16_avx2(uint16_t *restrict narrow, const float *restrict data, uint32_t n) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(narrow + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(data + i), _MM_FROUND_TO_NEAREST_INT));
    narrow_f16_plain(narrow + i, data + i, n - i);
}

#pragma GCC pop_options
#define PICK(name, ...) \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? name##_avx2(__VA_ARGS__) \
                                                                      : name##_plain(__VA_ARGS__))
#else
#define PICK(name, ...) name##_plain(__VA_ARGS__)
#endif

uint32_t element_size(int element) {
    static const uint8_t sizes[] = {0, 4, 2, 2, 8, 4, 8, 1};
    return element >= HB_F32 && element <= HB_U8 ? sizes[element] : 0;
}

int element_is_16_bit(int element) { return element == HB_F16 || element == HB_BF16; }

void widen(float *result, const void *data, int element, uint32_t elements) {
    if (element == HB_F16)
        PICK(widen_f16, result, data, elements);
    else if (element == HB_BF16)
        PICK(widen_bf16, result, data, elements);
    else
        memcpy(result, data, 4 * (size_t)elements);
}

void narrow(void *result, int element, const float *data, uint32_t elements) {
    if (element == HB_F16)
        PICK(narrow_f16, result, data, elements);
    else if (element == HB_BF16)
        PICK(narrow_bf16, result, data, elements);
    else
        memcpy(result, data, 4 * (size_t)elements);
}

/* The partial sum of a block, in the format in which it is added up. On the stack of sum_sources. */
union block {
    float f32[BLOCK];
    double f64[BLOCK];
    uint32_t u32[BLOCK];
    uint64_t u64[BLOCK];
    uint8_t u8[BLOCK];
};

static void add(union block *sum, const void *data, int element, uint32_t n) {
    float wide[BLOCK];
    switch (element) {
    case HB_F32: PICK(add_f32, sum->f32, data, n); break;
    case HB_F64: PICK(add_f64, sum->f64, data, n); break;
    case HB_I32: PICK(add_32, sum->u32, data, n); break;
    case HB_I64: PICK(add_64, sum->u64, data, n); break;
    case HB_U8: PICK(add_8, sum->u8, data, n); break;
    default:
        widen(wide, data, element, n);
        PICK(add_f32, sum->f32, wide, n);
    }
}

void sum_sources(void *result, int element, const struct source *sources, int count, uint32_t elements,
                 float divisor) {
    union block sum;
    for (uint32_t at = 0; at < elements; at += BLOCK) {
        uint32_t n = elements - at < BLOCK ? elements - at : BLOCK;
        for (int member = 0; member < count; member++) {
            int kind = sources[member].element;
            const char *data = (const char *)sources[member].data + (size_t)at * element_size(kind);
            /* The first member is copied, not added to zero: 0 + -0 would lose the sign. */
            if (member)
                add(&sum, data, kind, n);
            else if (element_is_16_bit(kind))
                widen(sum.f32, data, kind, n);
            else
                memcpy(&sum, data, (size_t)n * element_size(kind));
        }
        if (divisor != 1 && element == HB_F64)
            for (uint32_t i = 0; i < n; i++) sum.f64[i] /= (double)divisor;
        else if (divisor != 1)
            for (uint32_t i = 0; i < n; i++) sum.f32[i] /= divisor;
        /* Written only now, because a source may be the result. */
        char *target = (char *)result + (size_t)at * element_size(element);
        if (element_is_16_bit(element))
            narrow(target, element, sum.f32, n);
        else
            memcpy(target, &sum, (size_t)n * element_size(element));
    }
}
