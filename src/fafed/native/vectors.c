/* Updates of the clients' vectors, each in one pass over the memory. The vectors of client i begin
   i strides after the first client's; a stride of 0 is one vector for all. */

#include <stdint.h>

#ifdef DOUBLE
typedef double real;
#else
typedef float real;
#endif

/* g + keep (m - old) */
void corrected(int64_t clients, int64_t d, const real *g, int64_t g_stride, const real *keep,
               int64_t keep_stride, const real *m, int64_t m_stride, const real *old,
               int64_t old_stride, real *restrict out) {
    for (int64_t i = 0; i < clients; i++) {
        for (int64_t p = 0; p < d; p++) out[p] = g[p] + *keep * (m[p] - old[p]);
        g += g_stride, keep += keep_stride, m += m_stride, old += old_stride, out += d;
    }
}

/* beta v + (1 - beta) g^2 */
void collected(int64_t clients, int64_t d, double beta, const real *v, int64_t v_stride,
               const real *g, int64_t g_stride, real *restrict out) {
    const real old = (real)beta, new = (real)(1 - beta);
    for (int64_t i = 0; i < clients; i++) {
        for (int64_t p = 0; p < d; p++) out[p] = old * v[p] + new * g[p] * g[p];
        v += v_stride, g += g_stride, out += d;
    }
}
