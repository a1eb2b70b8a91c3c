/* The sum of the examples' gradients, each clipped to a norm: differential privacy of an example.

   One backward pass for a piece of the batch gives a matrix's inputs a and the gradients g of its
   outputs. The gradient of one example is g a^T, and its norm |g| |a|. So it is never written down:
   the norms follow, g is scaled, and one product adds up all examples (Goodfellow 2015, "Efficient
   per-example gradient computations"). The gradients of a convolution's kernel are small. They are
   written down for each example.

   A combination of gradients at several points is computed one example after another: where the
   gradients almost cancel, the norm must be that of the numbers which are added. */

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

static double length(int64_t d, const real *a) {
    double total = 0;
    for (int64_t p = 0; p < d; p++) total += (double)a[p] * (double)a[p];
    return total;
}

static void gradient(const network *w, real *g) {
    for (int i = 0; i < w->n; i++) {
        const layer *l = w->layers + i;
        gradient_of(w, i, 0, l->outputs, g + l->weights, g + l->biases);
    }
}

static const real *inputs_of(const network *w, int i) {
    return i ? w->room + w->places[i - 1].out : w->a;
}

/* Adds the clipped gradients of a piece to `total`. `kernels` has `before` numbers for each example:
   the gradients of all convolutions, which come first in x. Returns 0, and adds nothing, if a norm
   is not finite. */
static int add_piece(const network *w, int64_t before, double clip, real *total, double *norms,
                     real *kernels, real *part) {
    int finite = 1;
    for (int64_t e = 0; e < w->b; e++) {
        real *own = kernels + e * before;
        double square = 0;
        for (int i = 0; i < w->n; i++) {
            const layer *l = w->layers + i;
            if (l->kind == CONVOLUTION) {
                gradient_of_some(w, i, 0, l->outputs, e, 1, own + l->weights, own + l->biases);
                continue;
            }
            const double g = length(l->outputs, w->room + w->places[i].g + e * l->outputs);
            const double a = length(l->inputs, inputs_of(w, i) + e * l->inputs);
            square += g * (a + (l->biases >= 0));
        }
        norms[e] = sqrt(square + squared(before, own));
        finite &= !!isfinite(norms[e]);
    }
    if (!finite) return 0;
    for (int64_t e = 0; e < w->b; e++) {
        const double scale = norms[e] > clip ? clip / norms[e] : 1;
        const real *own = kernels + e * before;
        for (int64_t p = 0; p < before; p++) total[p] += (real)scale * own[p];
        if (scale == 1) continue;
        for (int i = 0; i < w->n; i++) {
            const layer *l = w->layers + i;
            if (l->kind == CONVOLUTION) continue;
            real *g = w->room + w->places[i].g + e * l->outputs;
            for (int64_t o = 0; o < l->outputs; o++) g[o] = (real)(scale * (double)g[o]);
        }
    }
    for (int i = 0; i < w->n; i++) {
        const layer *l = w->layers + i;
        if (l->kind == CONVOLUTION) continue;
        const int64_t numbers = (int64_t)l->outputs * l->inputs;
        gradient_of(w, i, 0, l->outputs, part, part + numbers);
        for (int64_t p = 0; p < numbers; p++) total[l->weights + p] += part[p];
        if (l->biases >= 0)
            for (int64_t o = 0; o < l->outputs; o++) total[l->biases + o] += part[numbers + o];
    }
    return 1;
}

/* Adds to `total` the gradients of b examples of so many numbers, sum over points of factor times
   gradient at x, each scaled to the norm `clip` at most. `norms` are those before. A gradient whose
   norm is not finite is not added. The room is one for a piece; `one` has d numbers, and `kernels`
   d, or as many as the convolutions have parameters for each example of a piece if that is more.
   Returns what `wrong` does. */
int64_t clipped(const layer *layers, int32_t n, int64_t b, int64_t piece, int64_t d,
                int64_t numbers, int64_t points, double clip, const real *x, const double *factors,
                const real *inputs, const int64_t *targets, real *total, double *norms, real *one,
                real *kernels, real *room) {
    const int64_t bad = wrong(layers, n, b, targets);
    if (bad) return bad;
    network w;
    arrange(&w, layers, n, piece, room);
    if (points == 1 && *factors == 1) {
        int64_t before = 0;
        for (int i = 0; i < n && layers[i].kind == CONVOLUTION; i++)
            before = layers[i + 1].weights; /* the last layer is a matrix */
        for (int64_t done = 0; done < b; done += piece) {
            const int64_t here = b - done < piece ? b - done : piece;
            ready(&w, x, here, inputs + done * numbers, 0, targets + done, 1);
            if (add_piece(&w, before, clip, total, norms + done, kernels, one)) continue;
            for (int64_t e = done; e < done + here; e++) { /* zero times infinity is no zero */
                ready(&w, x, 1, inputs + e * numbers, 0, targets + e, 1);
                add_piece(&w, before, clip, total, norms + e, kernels, one);
            }
        }
        return 0;
    }
    real *part = kernels;
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
