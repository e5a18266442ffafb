/* What the files of the C kernel share: the row, the number formats, and the work to be done.

   sketch.h   this page
   paths.c    the arithmetic, once per instruction set, from the one text in lanes.h (lanes_end.h
              takes the words of one set away before the next)
   pass.c     one pass over a tensor: blocks, formats, strides, histograms
   many.c     many tensors over many threads
   pack.c     rows merged, and rows turned into columns
   xla.c      what XLA calls, on the CPU and on CUDA
   module.c   the Python face
*/
#ifndef SONDE_SKETCH_H
#define SONDE_SKETCH_H

#include <stdint.h>

/* A row, as in row.py: 6 counts, 4 sums, 3 extrema, 3 free words, 2048 bins. */
enum {
    COUNT, ZEROS, NANS, POS_INFS, NEG_INFS, SUBNORMALS,
    SUM, SUM_ABS, SUM_SQ, SUM_4,
    MIN, MAX, MIN_ABS,
    HEADER = 16,
    N_BINS = 2048,
    WORDS = HEADER + N_BINS,
    POS_INF_BIN = 1020,
    NEG_INF_BIN = 2044,
};

/* Number formats; c.py has the same codes by name. */
enum {
    FLOAT32, FLOAT64, FLOAT16, BFLOAT16,
    FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT8_E4M3FNUZ, FLOAT8_E5M2FNUZ, FLOAT8_E8M0FNU,
    INT8, UINT8, BOOL, INT16, UINT16, INT32, UINT32, INT64, UINT64,
    N_FORMATS,
};

/* Values converted at a time: three buffers of 8 KiB stay in the first-level cache. */
enum { BLOCK = 1024 };

/* A private histogram: up to 8 copies of 2048 bins of 16 bits, so that equal values in a row do not
   wait for each other's store. 8 copies: 0.34 ns per value whatever the values; 1 copy: 0.44 for
   normal ones, 1.7 for zeros (float32, 2-core EPYC). The copies are 64 bytes out of step, or they
   would compete for the same cache sets. */
enum { COPIES = 8, COPY_STRIDE = N_BINS + 32 };

/* All of a sketch but count and bins. `above` counts what lies in the bin of infinity. */
typedef struct {
    double sum, sum_abs, sum_sq, sum_4, min, max, min_abs;
    int64_t zeros, nans, pos_infs, neg_infs, subnormals, pos_above, neg_above;
} Moments;

/* The arithmetic for one instruction set. */
typedef struct {
    const char *name;
    int copies; /* histograms it can fill at once: no more than it has lanes */
    /* Add n <= 65536 values to `m`, and to `copies` histograms (0, 4 or 8) at `bins`. `image` are
       the values as float32; `wide` are the values themselves, or NULL if the image is exact.
       Histograms count whatever bits they meet, NaN included; see `fold`. */
    void (*add)(const float *image, const double *wide, int64_t n, uint16_t *bins, int copies,
                Moments *m);
    void (*to_float)(const void *values, int format, int64_t n, float *out);
    void (*to_double)(const void *values, int format, int64_t n, double *out);
    void (*to_image)(const double *values, int64_t n, float *out);
    /* Add the histograms to a row, the bins of Inf and NaN left out. */
    void (*fold)(uint16_t *bins, int copies, int64_t repeat, int64_t *row);
} Path;

extern const Path *sonde_path;             /* the one in use */
const Path *sonde_paths(int i);            /* those that this processor can run, best first, or NULL */
extern float sonde_byte_values[N_FORMATS][256]; /* what each byte means in the 8-bit formats */
void sonde_init_paths(void);
int64_t sonde_item_size(int format);

enum { MAX_DIMS = 64 };

/* A tensor to be added to a row. `n_dims` is 0 for contiguous values; `copy` and `old`, which only
   contiguous values may have, are NULL or as long as `data`. */
typedef struct {
    int64_t *row;
    const char *data;
    char *copy;
    const char *old;
    int64_t n, repeat;
    int format, n_dims;
    int64_t sizes[MAX_DIMS], strides[MAX_DIMS]; /* outermost first; strides in elements */
} Item;

/* Bring the strided view of an item to the fewest dimensions, in the order of memory. */
void sonde_collapse(Item *item);

/* Add values `from` to `to` of an item to `row`. */
void sonde_pass(int64_t *row, const Item *item, int64_t from, int64_t to);

/* Contiguous tensors from parallel arrays of int64, as add_many has them. */
typedef struct {
    const int64_t *rows, *datas, *ns, *formats, *copies, *olds; /* the last two may be NULL */
    int64_t n;
} Items;

void sonde_add(const Item *item, int64_t threads);
void sonde_add_many(const Items *items, int64_t threads);
const char *sonde_thread_runtime(void);
void sonde_init_threads(void);

void sonde_clear(int64_t *row);
void sonde_merge(int64_t *row, const int64_t *other);
int64_t sonde_count_bins(const int64_t *table, const int64_t *indices, int64_t n, int64_t *offsets);
int sonde_pack(int64_t *table, const int64_t *indices, int64_t n, const int64_t *offsets,
               int64_t *counts, int64_t *sums, int64_t *extrema, int16_t *ids, int64_t *bin_counts,
               int empties);

#endif
