/* The machine's vectors, and an exponential that compilers turn into them. */

#ifndef FAFED_LANES
#define FAFED_LANES

#include <stdint.h>
#include <string.h>

#ifdef DOUBLE
typedef double real;
typedef int64_t whole;
enum { MANTISSA = 52, EXPONENT = 1023, POWERS = 13 };
static const real ROUNDING = 6755399441055744., LOG2_HIGH = 6.93147180369123816490e-01,
                  LOG2_LOW = 1.90821492927058770002e-10;
#else
typedef float real;
typedef int32_t whole;
enum { MANTISSA = 23, EXPONENT = 127, POWERS = 7 };
static const real ROUNDING = 12582912, LOG2_HIGH = 0.693359375f, LOG2_LOW = -2.12194440e-4f;
#endif

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

typedef real vec __attribute__((vector_size(BYTES)));
typedef real loose __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
typedef whole mask __attribute__((vector_size(BYTES))); /* -1 for yes, 0 for no */
enum { LANES = BYTES / sizeof(real) };

/* 0, 1, 2, ... */
#if BYTES == 64 && !defined(DOUBLE)
#define COUNT ((mask){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
#elif BYTES == 64 || (BYTES == 32 && !defined(DOUBLE))
#define COUNT ((mask){0, 1, 2, 3, 4, 5, 6, 7})
#elif BYTES == 32 || !defined(DOUBLE)
#define COUNT ((mask){0, 1, 2, 3})
#else
#define COUNT ((mask){0, 1})
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* In tests there are gaps between the parts of one allocation, which no code may touch. */
#ifdef POISON
#include <sanitizer/asan_interface.h>
enum { GAP = 16 * LANES };
INLINE void keep_off(real *gap) { ASAN_POISON_MEMORY_REGION(gap, GAP * sizeof(real)); }
#else
enum { GAP = 0 };
INLINE void keep_off(real *gap) { (void)gap; }
#endif

INLINE vec load(const real *p) { return *(const loose *)p; }

/* The upper half of the lanes is added to the lower one, until one is left. */
INLINE real total(vec v) {
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) v += __builtin_shuffle(v, COUNT + half);
    return v[0];
}

/* s and r with e^x = s + s r, from x = n log 2 + a small rest; |x| below 87, or 708 with DOUBLE */
INLINE real exponential(real x, real *r) {
    static const real inverse[] = {1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040,
        1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800.};
    const real n = (x * (real)1.4426950408889634 + ROUNDING) - ROUNDING;
    const real rest = x - n * LOG2_HIGH - n * LOG2_LOW;
    real p = inverse[POWERS];
    UNROLL for (int k = POWERS - 1; k > 0; k--) p = p * rest + inverse[k];
    const whole bits = ((whole)n + EXPONENT) << MANTISSA;
    real two_to_n;
    memcpy(&two_to_n, &bits, sizeof bits);
    *r = p * rest;
    return two_to_n;
}

#endif
