/* Updates and sums of the clients' vectors, each in one pass over the memory. The vectors of client
   i begin i strides after the first client's; a stride of 0 is one vector for all. */

#include "lanes.h"

/* g + keep (m - old) */
void storm_estimate(int64_t clients, int64_t d, const real *g, int64_t g_stride, const real *keep,
               int64_t keep_stride, const real *m, int64_t m_stride, const real *old,
               int64_t old_stride, real *restrict out) {
    for (int64_t i = 0; i < clients; i++) {
        for (int64_t p = 0; p < d; p++) out[p] = g[p] + *keep * (m[p] - old[p]);
        g += g_stride, keep += keep_stride, m += m_stride, old += old_stride, out += d;
    }
}

/* beta v + (1 - beta) g^2 */
void ema_of_squares(int64_t clients, int64_t d, double beta, const real *v, int64_t v_stride,
               const real *g, int64_t g_stride, real *restrict out) {
    const real old = (real)beta, new = (real)(1 - beta);
    for (int64_t i = 0; i < clients; i++) {
        for (int64_t p = 0; p < d; p++) out[p] = old * v[p] + new * g[p] * g[p];
        v += v_stride, g += g_stride, out += d;
    }
}

enum { BLOCK = 16384 }; /* of the total: it stays in the cache while all clients are added to it */

/* total + sum of weight times vector, client after client */
void added(int64_t clients, int64_t d, const double *weights, const real *x, int64_t x_stride,
           double *restrict total) {
    for (int64_t from = 0; from < d; from += BLOCK) {
        const int64_t to = d - from < BLOCK ? d : from + BLOCK;
        for (int64_t i = 0; i < clients; i++) {
            const double weight = weights[i];
            const real *row = x + i * x_stride;
            for (int64_t p = from; p < to; p++) total[p] += weight * row[p];
        }
    }
}
