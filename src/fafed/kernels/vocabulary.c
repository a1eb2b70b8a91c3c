/* The last layer of a language model and the exponentials of its logits, for one part of the
   vocabulary at a time, so that a part is still in the cache when it is used again.

   `products` does all of the arithmetic. It reads its second factor in panels: the matrix is cut into
   strips of PANEL columns, each stored row after row, with zeros beyond the last column. Exponentials
   are stored by word, so that all three products can read their first factor without a copy. */

#include "lanes.h"

#include <math.h>

#if BYTES == 64
enum { ROWS = 12 };
#else
enum { ROWS = 6 };
#endif
enum { PANEL = 2 * LANES };

typedef vec tile[ROWS][2];

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* n up to a whole number of panels */
int64_t panels(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }

/* sum's row i = sum over k of a[i][k] times row k of the panel, of which `width` columns count */
INLINE void products(const int rows, int64_t width, tile sum, int64_t terms, const real *a,
                     int64_t a_row, int64_t a_term, const real *panel) {
    UNROLL for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = (vec){0};
    if (width > LANES)
        for (int64_t k = 0; k < terms; k++, a += a_term, panel += PANEL) {
            const vec left = load(panel), right = load(panel + LANES);
            UNROLL for (int i = 0; i < rows; i++)
                sum[i][0] += a[i * a_row] * left, sum[i][1] += a[i * a_row] * right;
        }
    else
        for (int64_t k = 0; k < terms; k++, a += a_term, panel += PANEL) {
            const vec left = load(panel);
            UNROLL for (int i = 0; i < rows; i++) sum[i][0] += a[i * a_row] * left;
        }
}

/* TILE(rows, i) for rows i = from .. to - 1 */
#define IN_TILES(TILE, from, to)                             \
    {                                                        \
        int64_t i = from;                                    \
        for (; i + ROWS <= to; i += ROWS) TILE(ROWS, i);     \
        for (; i < to; i++) TILE(1, i);                      \
    }

INLINE void logits_tile(const int rows, int64_t k, const real *weights, const real *biases,
                        const real *panel, real *out, int64_t out_row) {
    tile sum;
    products(rows, PANEL, sum, k, weights, k, 1, panel);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < 2; v++)
            *(loose *)(out + i * out_row + v * LANES) = sum[i][v] + biases[i];
}

/* Logits of some words at a panel of tokens become e^(logit - top). */
static void exponentials(int64_t words, real *logits, int64_t row, real *tops, real *sums) {
    for (int p = 0; p < PANEL; p++) tops[p] = -INFINITY, sums[p] = 0;
    for (int64_t i = 0; i < words; i++)
        for (int p = 0; p < PANEL; p++) {
            const real logit = logits[i * row + p];
            tops[p] = logit > tops[p] ? logit : tops[p];
        }
    const real least = sizeof(real) == 4 ? -87 : -708;
    for (int64_t i = 0; i < words; i++)
        for (int p = 0; p < PANEL; p++) {
            const real x = logits[i * row + p] - tops[p];
            real r;
            const real s = exponential(x > least ? x : least, &r);
            logits[i * row + p] = x == x ? s + s * r : x;
            sums[p] += logits[i * row + p];
        }
}

/* n tokens with k numbers each, v words in parts of `part` -> out (v, panels(n)), and for every part
   the largest logit and the sum of the exponentials: tops and sums (parts, n). The room holds
   panels(n) k numbers. */
void decode(int64_t n, int64_t k, int64_t v, int64_t part, const real *hidden, const real *weights,
            const real *biases, real *out, real *tops, real *sums, real *room) {
    const int64_t row = panels(n);
    memset(room, 0, (size_t)(row * k) * sizeof(real));
    for (int64_t t = 0; t < n; t++)
        for (int64_t p = 0; p < k; p++)
            room[(t / PANEL * k + p) * PANEL + t % PANEL] = hidden[t * k + p];
    for (int64_t from = 0; from < v; from += part, tops += n, sums += n) {
        const int64_t to = least(v, from + part);
        for (int64_t t = 0; t < n; t += PANEL) {
#define LOGITS(R, I) \
    logits_tile(R, k, weights + (I) * k, biases + (I), room + t * k, out + (I) * row + t, row)
            IN_TILES(LOGITS, from, to)
            real top[PANEL], sum[PANEL];
            exponentials(to - from, out + from * row + t, row, top, sum);
            const size_t bytes = (size_t)least(PANEL, n - t) * sizeof(real);
            memcpy(tops + t, top, bytes), memcpy(sums + t, sum, bytes);
        }
    }
}

INLINE void weights_tile(const int rows, int64_t width, int64_t n, const real *p, int64_t p_row,
                         const real *panel, real *out, int64_t k) {
    tile sum;
    products(rows, width, sum, n, p, p_row, 1, panel);
    if (width >= PANEL)
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int v = 0; v < 2; v++) *(loose *)(out + i * k + v * LANES) = sum[i][v];
    else
        UNROLL for (int i = 0; i < rows; i++)
            memcpy(out + i * k, sum[i], (size_t)width * sizeof(real));
}

INLINE void hidden_tile(const int rows, int64_t width, int64_t words, const real *p, int64_t p_row,
                        const real *panel, const real *scales, real *out, int64_t out_row) {
    tile sum;
    products(rows, width, sum, words, p, 1, p_row, panel);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < 2; v++) {
            real *here = out + i * out_row + v * LANES;
            *(loose *)here = load(here) + scales[i] * sum[i][v];
        }
}

/* panels of rows times scales, or of the rows themselves; those of one strip are `n` rows apart */
static void cut(int64_t rows, int64_t k, const real *from, const real *scales, int64_t n, real *to) {
    for (int64_t c = 0; c < k; c += PANEL)
        for (int64_t i = 0; i < rows; i++) {
            const real scale = scales ? scales[i] : 1;
            const real *row = from + i * k + c;
            real *here = to + c * n + i * PANEL;
            if (c + PANEL <= k)
                for (int p = 0; p < PANEL; p++) here[p] = scale * row[p];
            else
                for (int p = 0; p < k - c; p++) here[p] = scale * row[p];
        }
}

/* With the exponentials p of `decode` and scales (parts, n): of_hidden = sum over words of scale p
   times their weights, of_weights = sum over tokens of scale p times hidden, of_biases = sum over
   tokens of scale p. The room holds panels(k) (2 n + part) + 2 GAP numbers. */
void decode_back(int64_t n, int64_t k, int64_t v, int64_t part, const real *hidden,
                 const real *weights, const real *p, const real *scales, real *of_hidden,
                 real *of_weights, real *of_biases, real *room) {
    const int64_t row = panels(n), wide = panels(k);
    real *tokens = room, *sums = tokens + wide * n + GAP, *words = sums + wide * n + GAP;
    memset(room, 0, (size_t)(wide * (2 * n + part) + 2 * GAP) * sizeof(real));
    keep_off(sums - GAP), keep_off(words - GAP);
    for (int64_t from = 0; from < v; from += part, scales += n) {
        const int64_t to = least(v, from + part);
        cut(n, k, hidden, scales, n, tokens);
        cut(to - from, k, weights + from * k, 0, part, words);
        for (int64_t c = 0; c < k; c += PANEL) {
#define WEIGHTS(R, I) \
    weights_tile(R, k - c, n, p + (I) * row, row, tokens + c * n, of_weights + (I) * k + c, k)
            IN_TILES(WEIGHTS, from, to)
#define HIDDEN(R, T)                                                                              \
    hidden_tile(R, k - c, to - from, p + from * row + (T), row, words + c * part, scales + (T),    \
                sums + (T) * wide + c, wide)
            IN_TILES(HIDDEN, 0, n)
        }
        for (int64_t i = from; i < to; i++) {
            vec sum = {0};
            int64_t t = 0;
            for (; t + LANES <= n; t += LANES) sum += load(p + i * row + t) * load(scales + t);
            of_biases[i] = total(sum);
            for (; t < n; t++) of_biases[i] += p[i * row + t] * scales[t];
        }
    }
    for (int64_t t = 0; t < n; t++)
        memcpy(of_hidden + t * k, sums + t * wide, (size_t)k * sizeof(real));
}
