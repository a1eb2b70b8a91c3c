/* Gradients of small feed-forward networks under a cross-entropy, for several clients in one call.

   A network is a list of layers. A layer is a convolution with a 2 x 2 max-pool, or a matrix, then
   nothing, tanh or relu. Two loops do all of the arithmetic: `dots` (rows times rows) and `mixes`
   (rows as sums of rows). A convolution never copies patches. It reads the input as one flat array,
   and the corner (i, j) of a patch is the same array i * width + j further on. Results across the
   right edge are not used. On the way back three of four gradients before a pool are zero. If a row
   of a patch with its channels last fills a vector, only the nonzero gradients are visited (`sparse`).

   fafed.kernels.build compiles this file on first use: in float32, or in float64 with DOUBLE. */

#include "network.h"

#include <math.h>
#include <string.h>

#if BYTES == 64
enum { DOT_ROWS = 5, DOT_COLUMNS = 5, MIX_ROWS = 6, MIX_WIDTH = 4 };
#elif BYTES == 32
enum { DOT_ROWS = 3, DOT_COLUMNS = 3, MIX_ROWS = 4, MIX_WIDTH = 3 };
#else
enum { DOT_ROWS = 4, DOT_COLUMNS = 4, MIX_ROWS = 4, MIX_WIDTH = 4 };
#endif

typedef whole loose_mask __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

enum { NOTHING, TANH, RELU };
enum { IGNORED = -100 };

/* --- two loops ------------------------------------------------------------------------------- */

INLINE vec either(mask m, vec yes, vec no) { return (vec)((m & (mask)yes) | (~m & (mask)no)); }

INLINE vec only(mask m, vec yes) { return (vec)(m & (mask)yes); }

#if BYTES == 64 && !defined(DOUBLE)
#define LOW ((mask){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23})
#elif BYTES == 64 || (BYTES == 32 && !defined(DOUBLE))
#define LOW ((mask){0, 8, 1, 9, 2, 10, 3, 11})
#elif BYTES == 32 || !defined(DOUBLE)
#define LOW ((mask){0, 4, 1, 5})
#else
#define LOW ((mask){0, 2})
#endif

#define EVENS(a, b) __builtin_shuffle(a, b, 2 * COUNT)
#define ODDS(a, b) __builtin_shuffle(a, b, 2 * COUNT + 1)
#define LOWS(a, b) __builtin_shuffle(a, b, LOW) /* a0 b0 a1 b1 ... */
#define HIGHS(a, b) __builtin_shuffle(a, b, LOW + LANES / 2)

/* Ones in the last n lanes. */
INLINE vec last(int64_t n) {
    vec v;
    for (int l = 0; l < LANES; l++) v[l] = l >= LANES - n;
    return v;
}

INLINE void dots_tile(const int m, const int n, int64_t length, int64_t parts, const real *a,
                      int64_t a_row, int64_t a_part, const real *b, const int64_t *b_row,
                      int64_t b_part, real *c, int64_t c_row) {
    vec sum[DOT_ROWS][DOT_COLUMNS];
    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < n; j++) sum[i][j] = (vec){0};
    const int64_t whole = length / LANES * LANES, rest = length - whole;
    const vec mask = last(rest);
    for (int64_t s = 0; s < parts; s++, a += a_part, b += b_part) {
        for (int64_t p = 0; p < whole; p += LANES) {
            vec right[DOT_COLUMNS];
            UNROLL for (int j = 0; j < n; j++) right[j] = load(b + b_row[j] + p);
            UNROLL for (int i = 0; i < m; i++) {
                const vec left = load(a + i * a_row + p);
                UNROLL for (int j = 0; j < n; j++) sum[i][j] += left * right[j];
            }
        }
        if (rest) { /* the last vector overlaps lanes that were counted already */
            const int64_t p = length - LANES;
            UNROLL for (int i = 0; i < m; i++) {
                const vec left = load(a + i * a_row + p) * mask;
                UNROLL for (int j = 0; j < n; j++) sum[i][j] += left * load(b + b_row[j] + p);
            }
        }
    }
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int j = 0; j < n; j++) c[i * c_row + j] = total(sum[i][j]);
}

#define DOTS(M, N)                                                                              \
    dots_tile(M, N, length, parts, a + i * a_row, a_row, a_part, b, b_row + j, b_part,           \
              c + i * c_row + j, c_row)

#define DOTS_OF(N)                                                   \
    switch (m - i < DOT_ROWS ? m - i : DOT_ROWS) {                   \
        case 5: DOTS(5 < DOT_ROWS ? 5 : DOT_ROWS, N); break;         \
        case 4: DOTS(4 < DOT_ROWS ? 4 : DOT_ROWS, N); break;         \
        case 3: DOTS(3, N); break;                                   \
        case 2: DOTS(2, N); break;                                   \
        default: DOTS(1, N);                                         \
    }

/* c[i][j] = sum over parts and positions of a's row i times b's row j; b is read once */
static void dots(int64_t m, int64_t n, int64_t length, int64_t parts, const real *a, int64_t a_row,
                 int64_t a_part, const real *b, const int64_t *b_row, int64_t b_part, real *c,
                 int64_t c_row) {
    if (length < LANES) {
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                real sum = 0;
                for (int64_t s = 0; s < parts; s++)
                    for (int64_t p = 0; p < length; p++)
                        sum += a[i * a_row + s * a_part + p] * b[b_row[j] + s * b_part + p];
                c[i * c_row + j] = sum;
            }
        return;
    }
    int64_t j = 0;
    for (; j + DOT_COLUMNS <= n; j += DOT_COLUMNS)
        for (int64_t i = 0; i < m; i += DOT_ROWS) DOTS_OF(DOT_COLUMNS)
    for (; j < n; j++)
        for (int64_t i = 0; i < m; i += DOT_ROWS) DOTS_OF(1)
}

INLINE void mixes_tile(const int m, const int width, int64_t terms, const real *w, int64_t w_row,
                       int64_t w_term, const real *b, const int64_t *b_row, real *c, int64_t c_row) {
    vec sum[MIX_ROWS][MIX_WIDTH];
    UNROLL for (int i = 0; i < m; i++) UNROLL for (int v = 0; v < width; v++) sum[i][v] = (vec){0};
    for (int64_t k = 0; k < terms; k++) {
        vec right[MIX_WIDTH];
        UNROLL for (int v = 0; v < width; v++) right[v] = load(b + b_row[k] + v * LANES);
        UNROLL for (int i = 0; i < m; i++) {
            const real factor = w[i * w_row + k * w_term];
            UNROLL for (int v = 0; v < width; v++) sum[i][v] += factor * right[v];
        }
    }
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int v = 0; v < width; v++) *(loose *)(c + i * c_row + v * LANES) = sum[i][v];
}

#define MIXES(M, WIDTH) mixes_tile(M, WIDTH, terms, w, w_row, w_term, b + p, b_row, c + p, c_row)

#define MIXES_OF(WIDTH)                                              \
    switch (rows) {                                                  \
        case 6: MIXES(6 < MIX_ROWS ? 6 : MIX_ROWS, WIDTH); break;    \
        case 5: MIXES(5 < MIX_ROWS ? 5 : MIX_ROWS, WIDTH); break;    \
        case 4: MIXES(4, WIDTH); break;                              \
        case 3: MIXES(3, WIDTH); break;                              \
        case 2: MIXES(2, WIDTH); break;                              \
        default: MIXES(1, WIDTH);                                    \
    }

/* c's row i = sum over terms k of w[i][k] times b's row k */
static void mixes(int64_t m, int64_t length, int64_t terms, const real *w, int64_t w_row,
                  int64_t w_term, const real *b, const int64_t *b_row, real *c, int64_t c_row) {
    if (length < LANES) {
        for (int64_t i = 0; i < m; i++)
            for (int64_t p = 0; p < length; p++) {
                real sum = 0;
                for (int64_t k = 0; k < terms; k++)
                    sum += w[i * w_row + k * w_term] * b[b_row[k] + p];
                c[i * c_row + p] = sum;
            }
        return;
    }
    const int64_t tiles = (m + MIX_ROWS - 1) / MIX_ROWS;
    const int even = (int)((m + tiles - 1) / tiles);
    while (m > 0) {
        const int rows = m < even ? (int)m : even;
        int64_t p = 0;
        for (; p + MIX_WIDTH * LANES <= length; p += MIX_WIDTH * LANES) MIXES_OF(MIX_WIDTH)
        for (; p + LANES <= length; p += LANES) MIXES_OF(1)
        if (p < length) { /* the last vector computes some numbers again */
            p = length - LANES;
            MIXES_OF(1)
        }
        m -= rows, w += rows * w_row, c += rows * c_row;
    }
}

enum { STRETCH = 8 }; /* vectors that are kept in registers */

INLINE void gather_tile(const int width, int64_t n, const real *values, const int64_t *corners,
                        const real *from, real *sums) {
    vec sum[STRETCH];
    UNROLL for (int v = 0; v < width; v++) sum[v] = (vec){0};
    for (int64_t k = 0; k < n; k++) {
        const real *row = from + corners[k];
        UNROLL for (int v = 0; v < width; v++) sum[v] += values[k] * load(row + v * LANES);
    }
    UNROLL for (int v = 0; v < width; v++) *(loose *)(sums + v * LANES) = sum[v];
}

INLINE void scatter_tile(const int width, int64_t n, const real *values, const int64_t *corners,
                         const real *row, real *to) {
    vec part[STRETCH];
    UNROLL for (int v = 0; v < width; v++) part[v] = load(row + v * LANES);
    for (int64_t k = 0; k < n; k++) {
        real *here = to + corners[k];
        UNROLL for (int v = 0; v < width; v++)
            *(loose *)(here + v * LANES) = load(here + v * LANES) + values[k] * part[v];
    }
}

#define STRETCHES(TILE)                                                            \
    for (int64_t p = 0; p < length; p += STRETCH * LANES) switch (                 \
        length - p > STRETCH * LANES ? STRETCH : (length - p + LANES - 1) / LANES) { \
            case 8: TILE(8); break;                                                \
            case 7: TILE(7); break;                                                \
            case 6: TILE(6); break;                                                \
            case 5: TILE(5); break;                                                \
            case 4: TILE(4); break;                                                \
            case 3: TILE(3); break;                                                \
            case 2: TILE(2); break;                                                \
            default: TILE(1);                                                      \
        }

/* sums = sum over k of values[k] times the stretch at corners[k], in whole vectors */
static void gathers(int64_t length, int64_t n, const real *values, const int64_t *corners,
                    const real *from, real *sums) {
#define GATHER(W) gather_tile(W, n, values, corners, from + p, sums + p)
    STRETCHES(GATHER)
}

/* the stretch at corners[k] += values[k] times row, which has zeros up to a whole vector */
static void scatters(int64_t length, int64_t n, const real *values, const int64_t *corners,
                     const real *row, real *to) {
#define SCATTER(W) scatter_tile(W, n, values, corners, row + p, to + p)
    STRETCHES(SCATTER)
}

static real sum_of(const real *a, int64_t n) {
    vec sums = {0};
    int64_t p = 0;
    for (; p + LANES <= n; p += LANES) sums += load(a + p);
    real sum = total(sums);
    for (; p < n; p++) sum += a[p];
    return sum;
}

/* --- activations ----------------------------------------------------------------------------- */

/* (e^2x - 1) / (e^2x + 1), without cancellation. NaN stays NaN. */
INLINE real tanh_of(real x) {
    const real above = x > -20 ? x : -20, inside = above < 20 ? above : 20;
    real r;
    const real s = exponential(2 * inside, &r);
    const real less = s * r + (s - 1);
    return x == x ? less / (less + 2) : x;
}

static void activate(int kind, real *y, int64_t n) {
    if (kind == TANH)
        for (int64_t p = 0; p < n; p++) y[p] = tanh_of(y[p]);
    else if (kind == RELU)
        for (int64_t p = 0; p < n; p++) y[p] = y[p] < 0 ? 0 : y[p];
}

static void deactivate(int kind, const real *restrict y, real *restrict g, int64_t n) {
    if (kind == TANH)
        for (int64_t p = 0; p < n; p++) g[p] *= 1 - y[p] * y[p];
    else if (kind == RELU)
        for (int64_t p = 0; p < n; p++) g[p] = y[p] <= 0 ? 0 : g[p];
}

/* --- layers ---------------------------------------------------------------------------------- */

typedef struct { int64_t height, width, plane, rows, columns, reach, lead, spread; } geometry;

static geometry shape_of(const layer *l) {
    geometry s;
    s.height = l->height + 2 * l->padding, s.width = l->width + 2 * l->padding;
    s.plane = s.height * s.width;
    s.rows = (s.height - l->kernel + 1) / 2, s.columns = (s.width - l->kernel + 1) / 2;
    s.reach = (2 * s.rows - 1) * s.width + 2 * s.columns; /* outputs that a pool looks at */
    s.lead = (l->kernel - 1) * (s.width + 1);
    s.spread = s.lead + s.plane;
    return s;
}

static int64_t numbers_out(const layer *l) {
    if (l->kind == MATRIX) return l->outputs;
    const geometry s = shape_of(l);
    return l->outputs * s.rows * s.columns;
}

static int64_t numbers_in(const layer *l) {
    return l->kind == MATRIX ? l->inputs : (int64_t)l->inputs * l->height * l->width;
}

static int sparse(const layer *l) {
    return l->kind == CONVOLUTION && l->inputs * l->kernel >= LANES;
}

static int64_t whole_vectors(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Returns how many numbers that are. Without a room nothing is touched. */
static int64_t lay_out(const layer *layers, int n, int64_t b, place *places, real *room) {
    int64_t end = 0;
#define TAKE(field, count)                                                     \
    {                                                                          \
        places[i].field = end, end += (count) / LANES * LANES + 3 * LANES;     \
        if (room) keep_off(room + end);                                        \
        end += GAP;                                                            \
    }
    for (int i = 0; i < n; i++) {
        const layer *l = layers + i;
        const int64_t out = numbers_out(l);
        if (l->kind == CONVOLUTION) {
            const geometry s = shape_of(l);
            const int64_t square = (int64_t)l->kernel * l->kernel;
            TAKE(in, l->padding ? b * l->inputs * s.plane : 0);
            TAKE(wide, (l->outputs > l->inputs ? l->outputs : l->inputs) * s.plane);
            TAKE(choices, b * out);
            if (sparse(l)) {
                const int64_t row = whole_vectors((int64_t)l->kernel * l->inputs);
                TAKE(last, b * l->inputs * s.plane + row);
                TAKE(back, l->inputs * s.plane + row);
                TAKE(turned, l->outputs * l->kernel * row);
                TAKE(values, b * s.rows * s.columns);
                TAKE(corners, b * s.rows * s.columns * (int64_t)(8 / sizeof(real)));
                TAKE(sums, l->kernel * row);
            } else {
                TAKE(spread, b * l->outputs * s.spread);
                TAKE(turned, square * l->inputs * l->outputs);
            }
            TAKE(offsets, square * (l->inputs + l->outputs) * (int64_t)(8 / sizeof(real)));
        } else {
            const int64_t most = l->inputs > l->outputs ? l->inputs : l->outputs;
            TAKE(offsets, (most > b ? most : b) * (int64_t)(8 / sizeof(real)));
        }
        TAKE(out, b * out);
        TAKE(g, b * out);
    }
    return end;
}

/* Rows are done in whole vectors: what stands behind a row's end is written, too, and is overwritten
   by what comes next; `choices` and `out` have room for that at their end. */

/* Whether a is the one to take: the larger one, on a tie the first, and whatever is not a number. */
INLINE mask first(vec a, vec b) { return (a >= b) | (a != a); }

/* The largest of each square, as in torch. */
static void pool(const geometry *s, int64_t outputs, const real *wide, const real *biases,
                 real *out, whole *choices) {
    for (int64_t o = 0; o < outputs; o++) {
        const real bias = biases ? biases[o] : 0;
        for (int64_t r = 0; r < s->rows; r++) {
            const real *up = wide + o * s->plane + 2 * r * s->width, *down = up + s->width;
            const int64_t row = (o * s->rows + r) * s->columns;
            for (int64_t c = 0; c < s->columns; c += LANES) {
                const vec u0 = load(up + 2 * c), u1 = load(up + 2 * c + LANES);
                const vec d0 = load(down + 2 * c), d1 = load(down + 2 * c + LANES);
                const vec a = EVENS(u0, u1), b = ODDS(u0, u1), d = EVENS(d0, d1), e = ODDS(d0, d1);
                const mask left = first(a, b), left_below = first(d, e);
                const vec top = either(left, a, b), bottom = either(left_below, d, e);
                const mask upper = first(top, bottom);
                *(loose *)(out + row + c) = either(upper, top, bottom) + bias;
                *(loose_mask *)(choices + row + c) =
                    (upper & (left + 1)) | (~upper & (left_below + 3));
            }
        }
    }
}

static void unpool(const geometry *s, int64_t outputs, const real *g, const whole *choices,
                   real *spread) {
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t r = 0; r < 2 * s->rows; r++) {
            real *to = spread + o * s->spread + s->lead + r * s->width;
            const int64_t row = (o * s->rows + r / 2) * s->columns;
            const whole left = (whole)(r % 2 * 2);
            for (int64_t c = 0; c < s->columns; c += LANES) {
                const vec from = load(g + row + c);
                const mask inside = COUNT < (whole)(s->columns - c);
                const mask which = *(const loose_mask *)(choices + row + c) | ~inside;
                const vec a = only(which == left, from), b = only(which == left + 1, from);
                *(loose *)(to + 2 * c) = LOWS(a, b), *(loose *)(to + 2 * c + LANES) = HIGHS(a, b);
            }
        }
}

/* The padded input: the input itself if there is no padding. */
static const real *padded(const layer *l, const geometry *s, int64_t b, const real *a, real *room) {
    if (!l->padding) return a;
    for (int64_t plane = 0; plane < b * l->inputs; plane++)
        for (int64_t r = 0; r < l->height; r++)
            memcpy(room + plane * s->plane + (r + l->padding) * s->width + l->padding,
                   a + (plane * l->height + r) * l->width, (size_t)l->width * sizeof(real));
    return room;
}

static void forward(const layer *l, const place *at, real *room, const real *x, int64_t b,
                    const real *a) {
    const real *weights = x + l->weights, *biases = l->biases < 0 ? 0 : x + l->biases;
    real *out = room + at->out;
    int64_t *offsets = (int64_t *)(room + at->offsets);
    if (l->kind == MATRIX) {
        const int64_t most = l->outputs > b ? l->outputs : b;
        for (int64_t k = 0; k < most; k++) offsets[k] = k * l->inputs;
        dots(b, l->outputs, l->inputs, 1, a, l->inputs, 0, weights, offsets, 0, out, l->outputs);
        if (biases)
            for (int64_t e = 0; e < b; e++)
                for (int64_t o = 0; o < l->outputs; o++) out[e * l->outputs + o] += biases[o];
    } else {
        const geometry s = shape_of(l);
        const int64_t squares = s.rows * s.columns * l->outputs;
        const int64_t terms = (int64_t)l->inputs * l->kernel * l->kernel;
        const real *in = padded(l, &s, b, a, room + at->in);
        whole *choices = (whole *)(room + at->choices);
        for (int64_t k = 0, c = 0; c < l->inputs; c++)
            for (int64_t i = 0; i < l->kernel; i++)
                for (int64_t j = 0; j < l->kernel; j++)
                    offsets[k++] = c * s.plane + i * s.width + j;
        for (int64_t e = 0; e < b; e++) {
            mixes(l->outputs, s.reach, terms, weights, terms, 1, in + e * l->inputs * s.plane,
                  offsets, room + at->wide, s.plane);
            pool(&s, l->outputs, room + at->wide, biases, out + e * squares, choices + e * squares);
        }
    }
    activate(l->activation, out, b * numbers_out(l));
}

/* The gradients that the pool let through in some examples of output o, none of them zero: values,
   and the corners of their patches in an input with its channels last. Returns how many. */
static int64_t let_through(const layer *l, const geometry *s, const real *g, const whole *choices,
                           int64_t o, int64_t examples, real *values, int64_t *corners) {
    const int64_t squares = s->rows * s->columns, out = squares * l->outputs;
    int64_t n = 0;
    for (int64_t e = 0; e < examples; e++)
        for (int64_t r = 0; r < s->rows; r++)
            for (int64_t c = 0; c < s->columns; c++) {
                const int64_t p = e * out + o * squares + r * s->columns + c;
                const int64_t y = 2 * r + choices[p] / 2, x = 2 * c + choices[p] % 2;
                values[n] = g[p];
                corners[n] = (e * s->plane + y * s->width + x) * l->inputs;
                n += g[p] != 0;
            }
    return n;
}

static void backward_sparse(const layer *l, const place *at, real *room, const real *weights,
                            int64_t b, const real *in, real *g_in) {
    const geometry s = shape_of(l);
    const int64_t inputs = l->inputs, kernel = l->kernel, square = kernel * kernel;
    const int64_t out = numbers_out(l), length = kernel * inputs, row = whole_vectors(length);
    real *last = room + at->last, *back = room + at->back, *turned = room + at->turned;
    for (int64_t e = 0; e < b; e++)
        for (int64_t c = 0; c < inputs; c++)
            for (int64_t p = 0; p < s.plane; p++)
                last[(e * s.plane + p) * inputs + c] = in[(e * inputs + c) * s.plane + p];
    if (!g_in) return;
    for (int64_t o = 0; o < l->outputs; o++)
        for (int64_t i = 0; i < kernel; i++)
            for (int64_t j = 0; j < kernel; j++)
                for (int64_t c = 0; c < inputs; c++)
                    turned[(o * kernel + i) * row + j * inputs + c] =
                        weights[(o * inputs + c) * square + i * kernel + j];
    const whole *choices = (const whole *)(room + at->choices);
    real *values = room + at->values;
    int64_t *corners = (int64_t *)(room + at->corners);
    for (int64_t e = 0; e < b; e++) {
        memset(back, 0, (size_t)(s.plane * inputs) * sizeof(real));
        for (int64_t o = 0; o < l->outputs; o++) {
            const int64_t n = let_through(l, &s, room + at->g + e * out, choices + e * out, o, 1,
                                          values, corners);
            for (int64_t i = 0; i < kernel; i++)
                scatters(length, n, values, corners, turned + (o * kernel + i) * row,
                         back + i * s.width * inputs);
        }
        real *to = g_in + e * numbers_in(l);
        for (int64_t r = 0; r < l->height; r++)
            for (int64_t c = 0; c < l->width; c++)
                for (int64_t k = 0; k < inputs; k++)
                    to[(k * l->height + r) * l->width + c] =
                        back[((r + l->padding) * s.width + c + l->padding) * inputs + k];
    }
}

static void gradient_sparse(const layer *l, const place *at, real *room, int64_t first,
                            int64_t count, int64_t from, int64_t to, real *weights) {
    const geometry s = shape_of(l);
    const int64_t inputs = l->inputs, kernel = l->kernel, square = kernel * kernel;
    const int64_t length = kernel * inputs, row = whole_vectors(length);
    const int64_t skipped = first * numbers_out(l);
    const real *g = room + at->g + skipped, *last = room + at->last + first * s.plane * inputs;
    const whole *choices = (const whole *)(room + at->choices) + skipped;
    real *values = room + at->values, *sums = room + at->sums;
    int64_t *corners = (int64_t *)(room + at->corners);
    for (int64_t o = from; o < to; o++, weights += inputs * square) {
        const int64_t n = let_through(l, &s, g, choices, o, count, values, corners);
        for (int64_t i = 0; i < kernel; i++)
            gathers(length, n, values, corners, last + i * s.width * inputs, sums + i * row);
        for (int64_t c = 0; c < inputs; c++)
            for (int64_t i = 0; i < kernel; i++)
                for (int64_t j = 0; j < kernel; j++)
                    weights[c * square + i * kernel + j] = sums[i * row + j * inputs + c];
    }
}

/* Ready for the layer's part of the gradient; unless g_in is null, the gradient of its input, too. */
static void backward(const layer *l, const place *at, real *room, const real *x, int64_t b,
                     const real *a, real *g_in) {
    const real *weights = x + l->weights;
    real *g = room + at->g;
    int64_t *offsets = (int64_t *)(room + at->offsets);
    const int64_t out = numbers_out(l);
    deactivate(l->activation, room + at->out, g, b * out);
    if (l->kind == MATRIX) {
        if (g_in)
            mixes(b, l->inputs, l->outputs, g, l->outputs, 1, weights, offsets, g_in, l->inputs);
        return;
    }
    if (sparse(l)) {
        backward_sparse(l, at, room, weights, b, l->padding ? room + at->in : a, g_in);
        return;
    }
    const geometry s = shape_of(l);
    const whole *choices = (const whole *)(room + at->choices);
    real *spread = room + at->spread;
    for (int64_t e = 0; e < b; e++)
        unpool(&s, l->outputs, g + e * out, choices + e * out, spread + e * l->outputs * s.spread);
    if (!g_in) return;
    const int64_t terms = row_of(l), square = (int64_t)l->kernel * l->kernel;
    int64_t *back = offsets + terms;
    real *turned = room + at->turned, *wide = room + at->wide;
    for (int64_t k = 0, o = 0; o < l->outputs; o++)
        for (int64_t i = 0; i < l->kernel; i++)
            for (int64_t j = 0; j < l->kernel; j++, k++) {
                back[k] = o * s.spread + s.lead - i * s.width - j;
                for (int64_t c = 0; c < l->inputs; c++)
                    turned[c * l->outputs * square + k] =
                        weights[o * terms + c * square + i * l->kernel + j];
            }
    for (int64_t e = 0; e < b; e++) {
        const real *from = spread + e * l->outputs * s.spread;
        real *to = g_in + e * numbers_in(l);
        mixes(l->inputs, s.plane, l->outputs * square, turned, l->outputs * square, 1, from, back,
              l->padding ? wide : to, s.plane);
        if (l->padding)
            for (int64_t c = 0; c < l->inputs; c++)
                for (int64_t r = 0; r < l->height; r++)
                    memcpy(to + (c * l->height + r) * l->width,
                           wide + c * s.plane + (r + l->padding) * s.width + l->padding,
                           (size_t)l->width * sizeof(real));
    }
}

int64_t tile_of(const layer *l) { return l->kind == MATRIX ? MIX_ROWS : DOT_ROWS; }

int64_t row_of(const layer *l) {
    return l->kind == MATRIX ? l->inputs : (int64_t)l->inputs * l->kernel * l->kernel;
}

void gradient_of_some(const network *w, int32_t i, int64_t from, int64_t to, int64_t first,
                      int64_t count, real *weights, real *biases) {
    const layer *l = w->layers + i;
    const place *at = w->places + i;
    const int64_t out = numbers_out(l), each = out / l->outputs, in = numbers_in(l);
    const real *a = (i ? w->room + w->places[i - 1].out : w->a) + first * in;
    const real *g = w->room + at->g + first * out;
    const int64_t *offsets = (const int64_t *)(w->room + at->offsets);
    if (l->biases >= 0)
        for (int64_t o = from; o < to; o++) {
            real sum = 0;
            for (int64_t e = 0; e < count; e++) sum += sum_of(g + e * out + o * each, each);
            biases[o - from] = sum;
        }
    if (l->kind == MATRIX) {
        mixes(to - from, in, count, g + from, 1, out, a, offsets, weights, in);
        return;
    }
    if (sparse(l)) {
        gradient_sparse(l, at, w->room, first, count, from, to, weights);
        return;
    }
    const geometry s = shape_of(l);
    const int64_t terms = row_of(l), planes = l->inputs * s.plane;
    dots(to - from, terms, s.reach, count,
         w->room + at->spread + (first * l->outputs + from) * s.spread + s.lead, s.spread,
         l->outputs * s.spread, l->padding ? w->room + at->in + first * planes : a, offsets, planes,
         weights, terms);
}

void gradient_of(const network *w, int32_t i, int64_t from, int64_t to, real *weights,
                 real *biases) {
    gradient_of_some(w, i, from, to, 0, w->b, weights, biases);
}

/* --- a network ------------------------------------------------------------------------------- */

static const real *through(const layer *layers, int n, const place *places, real *room,
                           const real *x, int64_t b, const real *a) {
    for (int i = 0; i < n; i++) {
        forward(layers + i, places + i, room, x, b, a);
        a = room + places[i].out;
    }
    return a;
}

/* Loss, and the gradient of the logits, of targets that each count `share`. */
static double entropy(int64_t b, int64_t classes, const real *logits, const int64_t *targets,
                      real share, real *g) {
    double loss = 0;
    for (int64_t e = 0; e < b; e++, logits += classes, g += classes) {
        if (targets[e] == IGNORED) {
            memset(g, 0, (size_t)classes * sizeof(real));
            continue;
        }
        real most = logits[0], sum = 0;
        for (int64_t k = 1; k < classes; k++) most = logits[k] > most ? logits[k] : most;
        for (int64_t k = 0; k < classes; k++) {
            g[k] = sizeof(real) == 4 ? expf(logits[k] - most) : exp(logits[k] - most);
            sum += g[k];
        }
        loss += (log(sum) + most - logits[targets[e]]) * share;
        for (int64_t k = 0; k < classes; k++) g[k] *= share / sum;
        g[targets[e]] -= share;
    }
    return loss;
}

int64_t room(const layer *layers, int32_t n, int64_t b) {
    place places[LAYERS];
    return lay_out(layers, n, b, places, 0) + b * numbers_in(layers) + GAP;
}

void arrange(network *w, const layer *layers, int32_t n, int64_t b, real *room) {
    w->layers = layers, w->n = n, w->room = room;
    w->beside = room + lay_out(layers, n, b, w->places, room);
    keep_off(w->beside + b * numbers_in(layers));
}

int64_t wrong(const layer *layers, int32_t n, int64_t count, const int64_t *targets) {
    const int64_t classes = numbers_out(layers + n - 1);
    for (int64_t t = 0; t < count; t++)
        if (targets[t] != IGNORED && (targets[t] < 0 || targets[t] >= classes)) return t + 1;
    return 0;
}

int64_t counted(int64_t b, const int64_t *targets) {
    int64_t count = 0;
    for (int64_t e = 0; e < b; e++) count += targets[e] != IGNORED;
    return count;
}

/* Rows of a pool side by side, or what is side by side already. */
static const real *gathered(const real *inputs, const int64_t *rows, int64_t b, int64_t one,
                            real *room) {
    if (!rows) return inputs;
    for (int64_t e = 0; e < b; e++)
        memcpy(room + e * one, inputs + rows[e] * one, (size_t)one * sizeof(real));
    return room;
}

double ready(network *w, const real *x, int64_t b, const real *inputs, const int64_t *rows,
             const int64_t *targets, real share) {
    const layer *layers = w->layers;
    const place *places = w->places;
    const int last = w->n - 1;
    w->b = b, w->a = gathered(inputs, rows, b, numbers_in(layers), w->beside);
    const real *logits = through(layers, w->n, places, w->room, x, b, w->a);
    const double loss = entropy(b, numbers_out(layers + last), logits, targets, share,
                                w->room + places[last].g);
    for (int i = last; i >= 0; i--)
        backward(layers + i, places + i, w->room, x, b, i ? w->room + places[i - 1].out : w->a,
                 i ? w->room + places[i - 1].g : 0);
    return loss;
}

/* clients x (vector, batch) -> gradients and losses, in pieces of at most `piece` examples. With
   `rows`, inputs are a pool and these the rows of the clients' batches. Returns what `wrong` does. */
int64_t gradients(const layer *layers, int32_t n, int64_t clients, int64_t b, int64_t piece,
                  int64_t d, const real *x, int64_t x_stride, const real *inputs,
                  const int64_t *rows, const int64_t *targets, real *gradient, real *losses,
                  real *rest, real *room) {
    const int64_t bad = wrong(layers, n, clients * b, targets), one = numbers_in(layers);
    if (bad) return bad;
    network w;
    arrange(&w, layers, n, piece, room);
    for (int64_t client = 0; client < clients; client++) {
        const int64_t count = counted(b, targets);
        double loss = count ? 0 : NAN;
        for (int64_t done = 0; done < b; done += piece) {
            const int64_t here = b - done < piece ? b - done : piece, from = client * b + done;
            loss += ready(&w, x, here, rows ? inputs : inputs + from * one, rows ? rows + from : 0,
                          targets + done, (real)(1. / (double)count));
            real *part = done ? rest : gradient;
            for (int i = 0; i < n; i++)
                gradient_of(&w, i, 0, layers[i].outputs, part + layers[i].weights,
                            part + layers[i].biases);
            if (done)
                for (int64_t p = 0; p < d; p++) gradient[p] += rest[p];
        }
        *losses++ = (real)loss;
        x += x_stride, gradient += d, targets += b;
    }
    return 0;
}

/* One vector, b examples -> logits. */
void outputs(const layer *layers, int32_t n, int64_t b, int64_t piece, const real *x,
             const real *inputs, real *logits, real *room) {
    place places[LAYERS];
    lay_out(layers, n, piece, places, room);
    const int64_t one = numbers_in(layers), classes = numbers_out(layers + n - 1);
    for (int64_t done = 0; done < b; done += piece) {
        const int64_t here = b - done < piece ? b - done : piece;
        const real *found = through(layers, n, places, room, x, here, inputs + done * one);
        memcpy(logits + done * classes, found, (size_t)(here * classes) * sizeof(real));
    }
}
