/* The sum of the examples' gradients, each clipped to a norm: differential privacy of an example.

   One example's gradient stays in the cache: it is written, measured, and added to the sum before the
   next one. A gradient may be a combination at several points. */

#include "network.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 16, STRETCH = 4096 }; /* numbers that are added up side by side, and in real */

static double squared(int64_t d, const real *g) {
    double total = 0;
    for (int64_t start = 0; start < d; start += STRETCH) {
        const int64_t end = start + STRETCH < d ? start + STRETCH : d;
        real sums[WIDTH] = {0};
        int64_t p = start;
        for (; p + WIDTH <= end; p += WIDTH)
            for (int k = 0; k < WIDTH; k++) sums[k] += g[p + k] * g[p + k];
        for (; p < end; p++) sums[0] += g[p] * g[p];
        for (int k = 0; k < WIDTH; k++) total += sums[k];
    }
    return total;
}

static void gradient(const network *w, real *g) {
    for (int i = 0; i < w->n; i++) {
        const layer *l = w->layers + i;
        gradient_of(w, i, 0, l->outputs, g + l->weights, g + l->biases);
    }
}

/* Adds to `total` the gradients of b examples of so many numbers, sum over points of factor times
   gradient at x, each scaled to the norm `clip` at most. `norms` are those before. A gradient whose
   norm is not finite is not added. `one` and `part` have d numbers. Returns what `wrong` does. */
int64_t clipped(const layer *layers, int32_t n, int64_t b, int64_t d, int64_t numbers,
                int64_t points, double clip, const real *x, const double *factors,
                const real *inputs, const int64_t *targets, real *total, double *norms, real *one,
                real *part, real *room) {
    const int64_t bad = wrong(layers, n, b, targets);
    if (bad) return bad;
    network w;
    arrange(&w, layers, n, 1, room);
    for (int64_t e = 0; e < b; e++) {
        for (int64_t k = 0; k < points; k++) {
            const real factor = (real)factors[k];
            ready(&w, x + k * d, 1, inputs + e * numbers, 0, targets + e, 1);
            gradient(&w, k ? part : one);
            if (k)
                for (int64_t p = 0; p < d; p++) one[p] += factor * part[p];
            else if (factor != 1)
                for (int64_t p = 0; p < d; p++) one[p] *= factor;
        }
        norms[e] = sqrt(squared(d, one));
        if (!isfinite(norms[e])) continue;
        const real scale = norms[e] > clip ? (real)(clip / norms[e]) : 1;
        for (int64_t p = 0; p < d; p++) total[p] += scale * one[p];
    }
    return 0;
}
