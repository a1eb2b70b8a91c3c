/* The functions of network.c, for code that makes steps with their gradients. */

#ifndef FAFED_NETWORK
#define FAFED_NETWORK

#include "lanes.h"

enum { CONVOLUTION, MATRIX };
enum { LAYERS = 64 };

typedef struct {
    int32_t kind, activation;
    int32_t inputs, outputs; /* channels, or numbers */
    int32_t kernel, padding, height, width; /* of a convolution's input, without its padding */
    int64_t weights, biases; /* where they are in the vector; biases < 0: none */
} layer;

/* The parts of a layer's workspace ("room"). Offsets count numbers from the start of the workspace. */
typedef struct {
    int64_t in; /* padded input, all examples */
    int64_t wide; /* a convolution's output before the pool, one example */
    int64_t spread; /* gradient there, all examples, with zeros before each plane (dense) */
    int64_t choices; /* which of its four numbers each pool took */
    int64_t out, g; /* output and its gradient, all examples */
    int64_t turned; /* a convolution's weights by input, or (sparse) with the inputs last */
    int64_t last; /* sparse: the padded input with its channels last, all examples */
    int64_t back; /* sparse: the gradient of that, one example */
    int64_t values, corners; /* sparse: gradients that a pool let through, and where they were */
    int64_t sums; /* sparse: a row of weights */
    int64_t offsets; /* of rows that are read, as int64 */
} place;

/* A network and one piece of a batch at one vector, after the forward pass. */
typedef struct {
    const layer *layers;
    int32_t n;
    int64_t b; /* examples of the piece */
    const real *a; /* its inputs */
    real *room, *beside;
    place places[LAYERS];
} network;

/* Numbers in the room that pieces of b examples need. It must hold zeros before its first use. */
int64_t room(const layer *layers, int32_t n, int64_t b);

void arrange(network *w, const layer *layers, int32_t n, int64_t b, real *room);

/* 0, or 1 + the index of the first target that is not a class. */
int64_t wrong(const layer *layers, int32_t n, int64_t count, const int64_t *targets);

/* How many targets count. */
int64_t counted(int64_t b, const int64_t *targets);

/* Forward and back at x. Inputs are b examples or, with `rows`, a pool and b rows of it. Returns the
   loss of targets that each count `share`. */
double ready(network *w, const real *x, int64_t b, const real *inputs, const int64_t *rows,
             const int64_t *targets, real share);

/* Numbers in a row of a layer's weights. */
int64_t row_of(const layer *l);

/* Rows of a layer's gradient that are best computed together. */
int64_t tile_of(const layer *l);

/* The gradient of layer i's weights and biases, rows from .. to - 1. */
void gradient_of(const network *w, int32_t i, int64_t from, int64_t to, real *weights, real *biases);

/* The same of a part of the examples: so many, from the first one on. */
void gradient_of_some(const network *w, int32_t i, int64_t from, int64_t to, int64_t first,
                      int64_t count, real *weights, real *biases);

#endif
