/* Random networks, batches and labels through every function of fafed's C code, for a build with
   sanitizers: fuzz FIRST COUNT FILE. Every array is an allocation of its own, of its exact size. The
   file holds the seed under way, so that what ends the process can be repeated. */

#include "network.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int64_t gradients(const layer *, int32_t, int64_t, int64_t, int64_t, int64_t, const real *, int64_t,
                  const real *, const int64_t *, const int64_t *, real *, real *, real *, real *);
int64_t clipped(const layer *, int32_t, int64_t, int64_t, int64_t, int64_t, int64_t, double,
                const real *, const double *, const real *, const int64_t *, real *, double *,
                real *, real *, real *);
void outputs(const layer *, int32_t, int64_t, int64_t, const real *, const real *, real *, real *);
int64_t steps_room(const layer *, int32_t, int64_t, int32_t);
int64_t sgd_steps(const layer *, int32_t, int64_t, int64_t, int64_t, int64_t, const double *,
                const real *, const int64_t *, const int64_t *, const real *, int64_t, const real *,
                int64_t, real *, real *, real *);
int64_t storm_steps(const layer *, int32_t, int64_t, int64_t, int64_t, int64_t, const double *,
              const real *, const int64_t *, const int64_t *, const double *, double, const real *,
              const real *, int64_t, const real *, int64_t, const real *, int64_t, const real *,
              int64_t, real *, int64_t, real *, real *, real *, real *, real *);
void storm_estimate(int64_t, int64_t, const real *, int64_t, const real *, int64_t, const real *, int64_t,
               const real *, int64_t, real *);
void ema_of_squares(int64_t, int64_t, double, const real *, int64_t, const real *, int64_t, real *);
void added(int64_t, int64_t, const double *, const real *, int64_t, double *);
int64_t panels(int64_t);
void decode(int64_t, int64_t, int64_t, int64_t, const real *, const real *, const real *, real *,
            real *, real *, real *);
void decode_back(int64_t, int64_t, int64_t, int64_t, const real *, const real *, const real *,
                 const real *, real *, real *, real *, real *);

static uint64_t state;

static uint64_t next(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t up_to(int64_t most) { return (int64_t)(next() % (uint64_t)(most + 1)); }
static int64_t from_to(int64_t least, int64_t most) { return least + up_to(most - least); }
static int chance(int of) { return up_to(of - 1) == 0; }

static void *taken(int64_t count, size_t size) {
    void *p = count ? calloc((size_t)count, size) : 0;
    if (count && !p) abort();
    return p;
}

static real *empty(int64_t count) { return taken(count, sizeof(real)); }

static real *numbers(int64_t count, int wild) {
    static const double strange[] = {NAN, INFINITY, -INFINITY, 1e30, -1e30, 0, 1e-40};
    real *p = empty(count);
    for (int64_t i = 0; i < count; i++)
        p[i] = wild && chance(20) ? (real)strange[up_to(6)]
                                  : (real)((double)(next() >> 11) / (1ull << 53) * 2 - 1);
    return p;
}

static void must(int yes, const char *what) {
    if (yes) return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static int same(const real *a, const real *b, int64_t count) {
    return !memcmp(a, b, (size_t)count * sizeof(real));
}

/* Labels, one in some of them ignored; returns 1 + the place of the first that is no class. */
static int64_t *labels(int64_t count, int64_t classes, int64_t *wrong_at) {
    static const int64_t far[] = {INT64_MIN, INT64_MAX, -1, -99, -101};
    int64_t *targets = taken(count, sizeof(int64_t));
    const int all_ignored = chance(20), some_wrong = chance(8);
    *wrong_at = 0;
    for (int64_t t = 0; t < count; t++) {
        targets[t] = all_ignored || chance(8) ? -100 : up_to(classes - 1);
        if (some_wrong && chance(3)) targets[t] = chance(2) ? classes : far[up_to(4)];
        if (!*wrong_at && targets[t] != -100 && (targets[t] < 0 || targets[t] >= classes))
            *wrong_at = t + 1;
    }
    return targets;
}

static int32_t stack(layer *layers, int64_t *one, int64_t *d, int64_t *classes) {
    int32_t n = 0, channels = (int32_t)from_to(1, chance(4) ? 40 : 4);
    int32_t height = (int32_t)from_to(2, 14), width = (int32_t)from_to(2, 14);
    int64_t in = 0;
    *d = 0;
    for (int convolutions = (int)up_to(2); convolutions > 0; convolutions--) {
        const int32_t kernel = (int32_t)from_to(1, 5), padding = (int32_t)up_to(2);
        if (height + 2 * padding <= kernel || width + 2 * padding <= kernel) break;
        const int32_t out = (int32_t)from_to(1, chance(4) ? 30 : 6);
        const int64_t weights = (int64_t)out * channels * kernel * kernel;
        const int64_t biases = chance(3) ? -1 : *d + weights;
        layers[n++] = (layer){CONVOLUTION, (int32_t)up_to(2), channels, out, kernel, padding,
                              height, width, *d, biases};
        if (n == 1) *one = (int64_t)channels * height * width;
        *d += weights + (biases < 0 ? 0 : out);
        height = (height + 2 * padding - kernel + 1) / 2;
        width = (width + 2 * padding - kernel + 1) / 2;
        channels = out, in = (int64_t)out * height * width;
    }
    if (!n) *one = in = from_to(1, 70);
    for (int matrices = (int)from_to(1, 3); matrices > 0; matrices--) {
        const int64_t out = from_to(1, 40), weights = out * in;
        const int64_t biases = chance(3) ? -1 : *d + weights;
        layers[n++] = (layer){MATRIX, (int32_t)up_to(2), (int32_t)in, (int32_t)out, 0, 0, 0, 0, *d,
                              biases};
        *d += weights + (biases < 0 ? 0 : out);
        in = *classes = out;
    }
    return n;
}

static void networks(void) {
    layer layers[8];
    int64_t one, d, classes, bad;
    const int32_t n = stack(layers, &one, &d, &classes);
    const int64_t clients = from_to(1, 3), steps = from_to(1, 3), b = chance(4) ? 1 : from_to(1, 9);
    const int64_t piece = chance(2) ? b : from_to(1, b), held = from_to(1, 12), count = clients * b;
    const int wild = chance(6);
    const int64_t x_stride = chance(3) ? 0 : d;
    real *x = numbers(x_stride ? clients * d : d, wild), *pool = numbers(held * one, wild);
    int64_t *targets = labels(count, classes, &bad), *rows = taken(count, sizeof(int64_t));
    real *side_by_side = empty(count * one);
    for (int64_t t = 0; t < count; t++) {
        rows[t] = up_to(held - 1);
        memcpy(side_by_side + t * one, pool + rows[t] * one, (size_t)one * sizeof(real));
    }
    real *space = empty(room(layers, n, piece)), *rest = empty(piece < b ? d : 0);
    real *g = empty(clients * d), *losses = empty(clients), *g_of_rows = empty(clients * d);
    must(gradients(layers, n, clients, b, piece, d, x, x_stride, side_by_side, 0, targets, g, losses,
                   rest, space) == bad, "gradients: another label is wrong");
    must(gradients(layers, n, clients, b, piece, d, x, x_stride, pool, rows, targets, g_of_rows,
                   losses, rest, space) == bad, "gradients of rows: another label is wrong");
    must(same(g, g_of_rows, clients * d), "rows of a pool: another gradient");
    real *logits = empty(b * classes);
    outputs(layers, n, b, piece, x, side_by_side, logits, space);
    const int64_t points = from_to(1, 2);
    const double factors[2] = {1, -0.9};
    int64_t small = 0;
    for (int32_t i = 0; i < n && layers[i].kind == CONVOLUTION; i++) small = layers[i + 1].weights;
    real *at = numbers(points * d, wild), *sum = empty(d), *alone = empty(d);
    real *kernels = empty(small * piece > d ? small * piece : d);
    double *norms = taken(count, sizeof(double));
    for (int64_t p = 0; p < d; p++) sum[p] = 0;
    must(clipped(layers, n, count, piece, d, one, points, 0.5, at, factors, side_by_side, targets,
                 sum, norms, alone, kernels, space) == bad, "clipped: another label is wrong");
    double length = 0;
    for (int64_t p = 0; p < d; p++) length += (double)sum[p] * (double)sum[p];
    must(sqrt(length) <= 0.5 * (double)count * 1.001, "clipped: the sum is too long");
    free(at), free(sum), free(alone), free(kernels), free(norms);
    free(space), free(rest), free(g), free(losses), free(g_of_rows), free(logits), free(targets);
    free(rows), free(side_by_side);

    const int64_t all = clients * steps * b;
    targets = labels(all, classes, &bad), rows = taken(all, sizeof(int64_t));
    for (int64_t t = 0; t < all; t++) rows[t] = up_to(held - 1);
    double rates[3] = {0.1, 0.2, 0.3}, keeps[3] = {0.9, 0.8, 0.7};
    real *way = chance(2) ? numbers(clients * d, wild) : 0, *end = empty(clients * d);
    losses = empty(clients * steps), space = empty(steps_room(layers, n, b, 1));
    must(sgd_steps(layers, n, clients, steps, b, d, rates, pool, rows, targets, x, x_stride, way,
                 way ? d : 0, end, losses, space) == bad, "sgd_steps: another label is wrong");
    free(space), free(way), space = empty(steps_room(layers, n, b, 2));
    const int adapts = chance(2), keeps_x = chance(2);
    real *before = numbers(d, wild), *m = numbers(clients * d, wild);
    real *v = adapts ? numbers(d, wild) : 0, *inverse = adapts ? numbers(d, wild) : 0;
    real *out_x = empty(keeps_x ? clients * d : d), *out_m = empty(clients * d);
    real *out_v = empty(adapts ? clients * d : 0);
    must(storm_steps(layers, n, clients, steps, b, d, rates, pool, rows, targets, keeps, 0.9, inverse, x,
               x_stride, before, 0, m, d, v, 0, out_x, keeps_x ? d : 0, end, out_m, out_v, losses,
               space) == bad, "storm_steps: another label is wrong");
    free(space), free(before), free(m), free(v), free(inverse), free(out_x), free(out_m);
    free(out_v), free(end), free(losses), free(targets), free(rows), free(x), free(pool);
}

static void vectors(void) {
    const int64_t clients = from_to(1, 4), d = chance(4) ? 16384 + up_to(20) : from_to(1, 99);
    real *g = numbers(clients * d, 1), *m = numbers(d, 1), *out = empty(clients * d);
    real *keep = numbers(clients, 1);
    double *weights = taken(clients, sizeof(double)), *total = taken(d, sizeof(double));
    storm_estimate(clients, d, g, d, keep, 1, m, 0, g, d, out);
    ema_of_squares(clients, d, 0.9, m, 0, g, d, out);
    added(clients, d, weights, g, d, total);
    free(g), free(m), free(out), free(keep), free(weights), free(total);
}

static void vocabulary(void) {
    const int64_t n = from_to(1, 70), k = from_to(1, 70), v = from_to(1, 90), part = from_to(1, 40);
    const int64_t parts = (v + part - 1) / part;
    const int wild = chance(4);
    real *hidden = numbers(n * k, wild), *weights = numbers(v * k, wild);
    real *biases = numbers(v, wild), *p = empty(v * panels(n)), *tops = empty(parts * n);
    real *sums = empty(parts * n), *space = empty(panels(n) * k);
    decode(n, k, v, part, hidden, weights, biases, p, tops, sums, space);
    real *of_hidden = empty(n * k), *of_weights = empty(v * k), *of_biases = empty(v);
    free(space), space = empty(panels(k) * (2 * n + part) + 2 * GAP);
    decode_back(n, k, v, part, hidden, weights, p, sums, of_hidden, of_weights, of_biases, space);
    free(hidden), free(weights), free(biases), free(p), free(tops), free(sums), free(space);
    free(of_hidden), free(of_weights), free(of_biases);
}

int main(int count, char **given) {
    if (count != 4) return 2;
    const uint64_t first = strtoull(given[1], 0, 10), cases = strtoull(given[2], 0, 10);
    for (uint64_t seed = first; seed < first + cases; seed++) {
        FILE *file = fopen(given[3], "w");
        if (!file) return 2;
        fprintf(file, "%llu\n", (unsigned long long)seed);
        fclose(file);
        state = seed;
        networks();
        vectors();
        vocabulary();
    }
    return 0;
}
