/* All local steps of one client, then those of the next, so that the vectors of a client stay in the
   cache. The gradient is never stored as a whole: each block of the vector is updated as soon as its
   gradient is known. */

#include "network.h"

#include <math.h>
#include <string.h>

/* Numbers of a gradient that are computed before they are used: 20 KiB, which stay in the first-level
   cache. */
enum { BLOCK = 5120 };

/* Rows of a layer that are computed at a time. */
static int64_t rows_at_once(const layer *l) {
    const int64_t rows = BLOCK / row_of(l), tile = tile_of(l);
    const int64_t most = rows >= tile ? rows / tile * tile : rows > 1 ? rows : 1;
    return most < l->outputs ? most : l->outputs;
}

static int64_t largest_block(const layer *layers, int32_t n) {
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        const int64_t numbers = rows_at_once(layers + i) * (row_of(layers + i) + 1);
        most = numbers > most ? numbers : most;
    }
    return most;
}

/* The workspace ("room") of one of two networks, in whole vectors, so that each is aligned for int64. */
static int64_t own_room(const layer *layers, int32_t n, int64_t b) {
    return (room(layers, n, b) + LANES - 1) / LANES * LANES;
}

/* Numbers in the workspace of `sgd_steps` (one network) or `storm_steps` (two). It must hold zeros
   before its first use. */
int64_t steps_room(const layer *layers, int32_t n, int64_t b, int32_t networks) {
    return networks * (own_room(layers, n, b) + largest_block(layers, n) + GAP);
}

/* Updates one block of the vector, given the gradients of the networks there. */
typedef void update(void *step, int64_t at, int64_t count, const real *g, const real *old);

static void everywhere(const network *w, const network *other, real *block, update *move,
                       void *step) {
    real *beside = block + largest_block(w->layers, w->n) + GAP;
    keep_off(beside - GAP);
    for (int i = 0; i < w->n; i++) {
        const layer *l = w->layers + i;
        const int64_t row = row_of(l), many = rows_at_once(l);
        for (int64_t from = 0; from < l->outputs; from += many) {
            const int64_t to = l->outputs - from < many ? l->outputs : from + many;
            const int64_t count = (to - from) * row;
            gradient_of(w, i, from, to, block, block + count);
            if (other) gradient_of(other, i, from, to, beside, beside + count);
            move(step, l->weights + from * row, count, block, beside);
            if (l->biases >= 0) move(step, l->biases + from, to - from, block + count, beside + count);
        }
    }
}

static double mean_loss(network *w, const real *x, int64_t b, const real *pool, const int64_t *rows,
                        const int64_t *targets) {
    const int64_t count = counted(b, targets);
    const double loss = ready(w, x, b, pool, rows, targets, (real)(1. / (double)count));
    return count ? loss : NAN;
}

/* --- x - rate (g + correction) --------------------------------------------------------------- */

typedef struct { real *x; const real *correction; real rate; } plain_step;

static void corrected_move(int64_t count, real rate, const real *restrict g, const real *restrict c,
                           real *restrict x) {
    for (int64_t p = 0; p < count; p++) x[p] -= rate * (g[p] + c[p]);
}

static void plain_move(void *step, int64_t at, int64_t count, const real *restrict g,
                       const real *old) {
    const plain_step *s = step;
    const real rate = s->rate;
    real *restrict x = s->x + at;
    (void)old;
    if (s->correction)
        corrected_move(count, rate, g, s->correction + at, x);
    else
        for (int64_t p = 0; p < count; p++) x[p] -= rate * g[p];
}

/* Makes all steps of the clients, from x to out. Batches are rows of a pool, (clients, steps, b).
   Returns the same as `wrong`. */
int64_t sgd_steps(const layer *layers, int32_t n, int64_t clients, int64_t steps, int64_t b, int64_t d,
                const double *rates, const real *pool, const int64_t *rows, const int64_t *targets,
                const real *x, int64_t x_stride, const real *correction, int64_t correction_stride,
                real *out, real *losses, real *space) {
    const int64_t bad = wrong(layers, n, clients * steps * b, targets);
    if (bad) return bad;
    network w;
    arrange(&w, layers, n, b, space);
    real *block = space + room(layers, n, b);
    for (int64_t i = 0; i < clients; i++, x += x_stride, out += d) {
        memcpy(out, x, (size_t)d * sizeof(real));
        plain_step s = {out, correction ? correction + i * correction_stride : 0, 0};
        for (int64_t k = 0; k < steps; k++, rows += b, targets += b) {
            *losses++ = (real)mean_loss(&w, out, b, pool, rows, targets);
            s.rate = (real)rates[k];
            everywhere(&w, 0, block, plain_move, &s);
        }
    }
    return 0;
}

/* --- m = g + keep (m - old), v = beta v + (1 - beta) g^2, x - rate m / A ------------------------- */

typedef struct {
    const real *x, *inverse; /* 1 / A; null: 1 */
    real *next, *m, *v; /* v null: v is not updated */
    real rate, keep, beta, fresh;
} tracked_step;

static void estimated_move(int64_t count, const tracked_step *s, const real *restrict g,
                           const real *restrict old, const real *restrict x, real *restrict next,
                           real *restrict m) {
    const real rate = s->rate, keep = s->keep;
    for (int64_t p = 0; p < count; p++) {
        m[p] = g[p] + keep * (m[p] - old[p]);
        next[p] = x[p] - rate * m[p];
    }
}

static void adaptive_move(int64_t count, const tracked_step *s, const real *restrict g,
                          const real *restrict old, const real *restrict x, real *restrict next,
                          real *restrict m, real *restrict v, const real *restrict inverse) {
    const real rate = s->rate, keep = s->keep, beta = s->beta, fresh = s->fresh;
    for (int64_t p = 0; p < count; p++) {
        m[p] = g[p] + keep * (m[p] - old[p]);
        v[p] = beta * v[p] + fresh * g[p] * g[p];
        next[p] = x[p] - rate * (m[p] * inverse[p]);
    }
}

static void tracked_move(void *step, int64_t at, int64_t count, const real *g, const real *old) {
    const tracked_step *s = step;
    if (s->v)
        adaptive_move(count, s, g, old, s->x + at, s->next + at, s->m + at, s->v + at,
                      s->inverse + at);
    else
        estimated_move(count, s, g, old, s->x + at, s->next + at, s->m + at);
}

/* Makes all steps of the clients, from (x, before, m, v) to out_... With a stride of 0 all clients
   write x to the same memory: it is not kept. v and inverse are both null, or neither is. */
int64_t storm_steps(const layer *layers, int32_t n, int64_t clients, int64_t steps, int64_t b, int64_t d,
              const double *rates, const real *pool, const int64_t *rows, const int64_t *targets,
              const double *keeps, double beta, const real *inverse, const real *x, int64_t x_stride,
              const real *before, int64_t before_stride, const real *m, int64_t m_stride,
              const real *v, int64_t v_stride, real *out_x, int64_t out_x_stride, real *out_before,
              real *out_m, real *out_v, real *losses, real *space) {
    const int64_t bad = wrong(layers, n, clients * steps * b, targets);
    if (bad) return bad;
    const int64_t each = own_room(layers, n, b);
    const size_t bytes = (size_t)d * sizeof(real);
    network here, there;
    arrange(&here, layers, n, b, space);
    arrange(&there, layers, n, b, space + each);
    real *block = space + 2 * each;
    for (int64_t i = 0; i < clients; i++) {
        /* the two change places in each step, so that the last step ends in out_x */
        real *now = steps % 2 ? out_before : out_x, *old = steps % 2 ? out_x : out_before;
        memcpy(now, x, bytes), memcpy(old, before, bytes), memcpy(out_m, m, bytes);
        if (v) memcpy(out_v, v, bytes);
        for (int64_t k = 0; k < steps; k++, rows += b, targets += b) {
            *losses++ = (real)mean_loss(&here, now, b, pool, rows, targets);
            mean_loss(&there, old, b, pool, rows, targets);
            tracked_step s = {now, inverse, old, out_m, v ? out_v : 0, (real)rates[k],
                              (real)keeps[k], (real)beta, (real)(1 - beta)};
            everywhere(&here, &there, block, tracked_move, &s);
            real *const moved = old;
            old = now, now = moved;
        }
        x += x_stride, before += before_stride, m += m_stride;
        out_x += out_x_stride, out_before += d, out_m += d;
        if (v) v += v_stride, out_v += d;
    }
    return 0;
}
