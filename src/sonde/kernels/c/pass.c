/* One pass over a tensor: its values, a block at a time, into a row.

   Every format becomes one of two things: float32 values (exact for all formats of up to 16 bits),
   or float64 values with their float32 image, which names the bin. The 8-bit formats have 256
   values and are only counted. */
#include "sketch.h"

#include <math.h>
#include <string.h>

enum {
    /* Up to here bins are counted in the row itself: setting up and folding private histograms
       costs 0.3 us (2-core EPYC). */
    FEW = 192,
    /* Up to here four private histograms are enough: clearing and folding eight costs 0.3 us more. */
    SOME = 8192,
    /* Up to here 8-bit values are converted like all others; above, bytes are counted, which costs
       2 us at the end and half as much per value. */
    SOME_BYTES = 4096,
    /* Contiguous values that need no conversion are taken in longer runs. */
    RUN = 16384,
};

typedef struct {
    const Item *item;
    int64_t *row;
    Moments moments;
    int copies;      /* private histograms; 0: the row's own bins */
    int64_t filled;  /* how much they may hold by now, over all copies */
    uint16_t *bins;
    int64_t *bytes;  /* how often each byte was met: 4 times 256, or NULL */
} Pass;

int64_t sonde_item_size(int format)
{
    static const char sizes[N_FORMATS] = {
        [FLOAT32] = 4, [FLOAT64] = 8, [FLOAT16] = 2, [BFLOAT16] = 2, [FLOAT8_E4M3FN] = 1,
        [FLOAT8_E5M2] = 1, [FLOAT8_E4M3FNUZ] = 1, [FLOAT8_E5M2FNUZ] = 1, [FLOAT8_E8M0FNU] = 1,
        [INT8] = 1, [UINT8] = 1, [BOOL] = 1, [INT16] = 2, [UINT16] = 2, [INT32] = 4, [UINT32] = 4,
        [INT64] = 8, [UINT64] = 8,
    };
    return sizes[format];
}

static int is_wide(int format)
{
    return format == FLOAT64 || (format >= INT32 && format <= UINT64);
}

static void add_double(int64_t *word, double x)
{
    double old;
    memcpy(&old, word, 8);
    x += old;
    memcpy(word, &x, 8);
}

/* Minus zero becomes zero, or the sign would depend on the order of the values. */
static void extend(int64_t *word, double x, int sign)
{
    double old;
    memcpy(&old, word, 8);
    if (sign * x > sign * old) {
        x += 0.0;
        memcpy(word, &x, 8);
    }
}

static void finish(Pass *p, int64_t n)
{
    Moments *m = &p->moments;
    int64_t *row = p->row, repeat = p->item->repeat;
    if (p->copies)
        sonde_path->fold(p->bins, p->copies, repeat, row);
    row[COUNT] += n * repeat;
    row[ZEROS] += m->zeros * repeat;
    row[NANS] += m->nans * repeat;
    row[POS_INFS] += m->pos_infs * repeat;
    row[NEG_INFS] += m->neg_infs * repeat;
    row[SUBNORMALS] += m->subnormals * repeat;
    row[HEADER + POS_INF_BIN] += m->pos_above * repeat;
    row[HEADER + NEG_INF_BIN] += m->neg_above * repeat;
    add_double(row + SUM, m->sum * (double)repeat);
    add_double(row + SUM_ABS, m->sum_abs * (double)repeat);
    add_double(row + SUM_SQ, m->sum_sq * (double)repeat);
    add_double(row + SUM_4, m->sum_4 * (double)repeat);
    extend(row + MIN, m->min, -1);
    extend(row + MAX, m->max, 1);
    extend(row + MIN_ABS, m->min_abs, -1);
}

static void clear_bins(Pass *p)
{
    memset(p->bins, 0, (size_t)p->copies * COPY_STRIDE * sizeof *p->bins);
    p->filled = 0;
}

static void add_values(Pass *p, const float *image, const double *wide, int64_t n)
{
    sonde_path->add(image, wide, n, p->bins, p->copies, &p->moments);
    if (p->copies == 0) {
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, image + i, 4);
            if ((bits & 0x7fffffff) < 0x7f800000)
                p->row[HEADER + (bits >> 21)] += p->item->repeat;
        }
        return;
    }
    p->filled += n + p->copies;
    if (p->filled + RUN > p->copies * (int64_t)UINT16_MAX) {
        sonde_path->fold(p->bins, p->copies, p->item->repeat, p->row);
        clear_bins(p);
    }
}

static void count_bytes(Pass *p, const unsigned char *values, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t eight;
        memcpy(&eight, values + i, 8);
        for (int k = 0; k < 8; k++, eight >>= 8)
            p->bytes[(k % 4) * 256 + (eight & 0xff)]++;
    }
    for (; i < n; i++)
        p->bytes[values[i]]++;
}

static void add_bytes(Pass *p)
{
    Moments *m = &p->moments;
    for (int b = 0; b < 256; b++) {
        int64_t n = p->bytes[b] + p->bytes[256 + b] + p->bytes[512 + b] + p->bytes[768 + b];
        if (n == 0)
            continue;
        float value = sonde_byte_values[p->item->format][b];
        Moments one = {.min = INFINITY, .max = -INFINITY, .min_abs = INFINITY};
        sonde_path->add(&value, NULL, 1, NULL, 0, &one);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if ((bits & 0x7fffffff) < 0x7f800000)
            p->row[HEADER + (bits >> 21)] += n * p->item->repeat;
        m->zeros += n * one.zeros, m->nans += n * one.nans;
        m->pos_infs += n * one.pos_infs, m->neg_infs += n * one.neg_infs;
        m->pos_above += n * one.pos_above, m->neg_above += n * one.neg_above;
        m->subnormals += n * one.subnormals;
        m->sum += (double)n * one.sum, m->sum_abs += (double)n * one.sum_abs;
        m->sum_sq += (double)n * one.sum_sq, m->sum_4 += (double)n * one.sum_4;
        m->min = one.min < m->min ? one.min : m->min;
        m->max = one.max > m->max ? one.max : m->max;
        m->min_abs = one.min_abs < m->min_abs ? one.min_abs : m->min_abs;
    }
}

/* The functions below keep their buffers to themselves, so that a pass needs no more stack than its
   format does. */

static __attribute__((noinline)) void add_narrow(Pass *p, const char *values, int64_t n)
{
    float image[BLOCK];
    sonde_path->to_float(values, p->item->format, n, image);
    add_values(p, image, NULL, n);
}

static __attribute__((noinline)) void add_wide(Pass *p, const char *values, int64_t n)
{
    float image[BLOCK];
    double wide[BLOCK];
    const double *x = wide;
    if (p->item->format == FLOAT64)
        x = (const double *)(const void *)values;
    else
        sonde_path->to_double(values, p->item->format, n, wide);
    sonde_path->to_image(x, n, image);
    add_values(p, image, x, n);
}

static __attribute__((noinline)) void add_difference(Pass *p, const char *values, const char *old,
                                                     int64_t n)
{
    union {
        float narrow[2][BLOCK];
        double wide[2][BLOCK];
    } x;
    int format = p->item->format;
    if (is_wide(format)) {
        float image[BLOCK];
        sonde_path->to_double(values, format, n, x.wide[0]);
        sonde_path->to_double(old, format, n, x.wide[1]);
        for (int64_t i = 0; i < n; i++)
            x.wide[0][i] -= x.wide[1][i];
        sonde_path->to_image(x.wide[0], n, image);
        add_values(p, image, x.wide[0], n);
    } else {
        sonde_path->to_float(values, format, n, x.narrow[0]);
        sonde_path->to_float(old, format, n, x.narrow[1]);
        for (int64_t i = 0; i < n; i++)
            x.narrow[0][i] -= x.narrow[1][i];
        add_values(p, x.narrow[0], NULL, n);
    }
}

static void add_block(Pass *p, const char *values, int64_t n)
{
    int format = p->item->format;
    if (p->bytes)
        count_bytes(p, (const unsigned char *)values, n);
    else if (format == FLOAT32)
        add_values(p, (const float *)(const void *)values, NULL, n);
    else if (is_wide(format))
        add_wide(p, values, n);
    else
        add_narrow(p, values, n);
}

static void add_contiguous(Pass *p, int64_t from, int64_t to)
{
    const Item *item = p->item;
    int64_t size = sonde_item_size(item->format);
    int is_plain = !item->copy && !item->old && (p->bytes || item->format == FLOAT32);
    int64_t step = is_plain ? RUN : BLOCK;
    for (int64_t i = from; i < to; i += step) {
        int64_t n = to - i < step ? to - i : step;
        const char *values = item->data + i * size;
        if (item->copy)
            memcpy(item->copy + i * size, values, (size_t)(n * size));
        if (item->old)
            add_difference(p, values, item->old + i * size, n);
        else
            add_block(p, values, n);
    }
}

static void gather(char *to, const char *from, int64_t n, int64_t stride, int64_t size)
{
#define GATHER(bytes)                                                                              \
    for (int64_t i = 0; i < n; i++)                                                                \
        memcpy(to + i * (bytes), from + i * stride * (bytes), bytes);
    if (stride == 1)
        memcpy(to, from, (size_t)(n * size));
    else if (size == 1)
        GATHER(1)
    else if (size == 2)
        GATHER(2)
    else if (size == 4)
        GATHER(4)
    else
        GATHER(8)
#undef GATHER
}

static __attribute__((noinline)) void add_strided(Pass *p, int64_t from, int64_t to)
{
    char block[BLOCK * 8];
    const Item *item = p->item;
    int last = item->n_dims - 1;
    int64_t size = sonde_item_size(item->format), index[MAX_DIMS], rest = from, held = 0;
    const char *at = item->data;
    for (int d = last; d >= 0; d--) {
        index[d] = rest % item->sizes[d];
        rest /= item->sizes[d];
        at += index[d] * item->strides[d] * size;
    }
    for (int64_t left = to - from; left > 0;) {
        int64_t n = item->sizes[last] - index[last];
        n = n < left ? n : left;
        if (item->strides[last] == 1 && held == 0 && n >= BLOCK) {
            n = BLOCK;
            add_block(p, at, n);
        } else {
            n = n < BLOCK - held ? n : BLOCK - held;
            gather(block + held * size, at, n, item->strides[last], size);
            held += n;
        }
        left -= n;
        if (held == BLOCK || (left == 0 && held)) {
            add_block(p, block, held);
            held = 0;
        }
        index[last] += n;
        at += n * item->strides[last] * size;
        for (int d = last; d > 0 && index[d] == item->sizes[d]; d--) {
            at += (item->strides[d - 1] - item->sizes[d] * item->strides[d]) * size;
            index[d] = 0;
            index[d - 1]++;
        }
    }
}

void sonde_collapse(Item *item)
{
    int n = 0;
    item->n = 1;
    for (int d = 0; d < item->n_dims; d++) {
        int64_t size = item->sizes[d], stride = item->strides[d];
        if (size == 1)
            continue;
        if (stride == 0 && size > 0) {
            item->repeat *= size;
            continue;
        }
        item->n *= size;
        int at = n++;
        for (; at > 0 && item->strides[at - 1] < stride; at--) {
            item->strides[at] = item->strides[at - 1];
            item->sizes[at] = item->sizes[at - 1];
        }
        item->sizes[at] = size, item->strides[at] = stride;
    }
    int kept = 0;
    for (int d = 0; d < n; d++) {
        if (kept && item->strides[kept - 1] == item->sizes[d] * item->strides[d]) {
            item->sizes[kept - 1] *= item->sizes[d];
            item->strides[kept - 1] = item->strides[d];
        } else {
            item->sizes[kept] = item->sizes[d];
            item->strides[kept++] = item->strides[d];
        }
    }
    item->n_dims = kept == 1 && item->strides[0] == 1 ? 0 : kept;
}

static void run(Pass *p, int64_t from, int64_t to)
{
    if (p->item->n_dims)
        add_strided(p, from, to);
    else
        add_contiguous(p, from, to);
    if (p->bytes)
        add_bytes(p);
    finish(p, to - from);
}

static __attribute__((noinline)) void run_with_bytes(Pass *p, int64_t from, int64_t to)
{
    int64_t bytes[4 * 256];
    memset(bytes, 0, sizeof bytes);
    p->bytes = bytes;
    run(p, from, to);
}

static __attribute__((noinline)) void run_with_bins(Pass *p, int64_t from, int64_t to)
{
    uint16_t bins[COPIES * COPY_STRIDE] __attribute__((aligned(64)));
    p->copies = to - from <= SOME ? 4 : sonde_path->copies;
    p->bins = bins;
    clear_bins(p);
    run(p, from, to);
}

/* Rounding, and what becomes of subnormals, are the caller's to choose and ours to ignore:
   `torch.set_flush_denormal` must not change a count. */
#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned FloatMode;
static FloatMode enter_float_mode(void)
{
    FloatMode mode = _mm_getcsr();
    if ((mode & ~0x3fu) != 0x1f80)
        _mm_setcsr(0x1f80);
    return mode;
}
static void leave_float_mode(FloatMode mode)
{
    if ((mode & ~0x3fu) != 0x1f80)
        _mm_setcsr(mode);
}
#elif defined(__aarch64__)
typedef uint64_t FloatMode;
static FloatMode enter_float_mode(void)
{
    FloatMode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    if (mode)
        __asm__ volatile("msr fpcr, %0" ::"r"((FloatMode)0) : "memory");
    return mode;
}
static void leave_float_mode(FloatMode mode)
{
    if (mode)
        __asm__ volatile("msr fpcr, %0" ::"r"(mode) : "memory");
}
#else
typedef int FloatMode;
static FloatMode enter_float_mode(void) { return 0; }
static void leave_float_mode(FloatMode mode) { (void)mode; }
#endif

void sonde_pass(int64_t *row, const Item *item, int64_t from, int64_t to)
{
    if (from >= to)
        return;
    FloatMode mode = enter_float_mode();
    Pass p = {.item = item, .row = row,
              .moments = {.min = INFINITY, .max = -INFINITY, .min_abs = INFINITY}};
    if (to - from <= FEW)
        run(&p, from, to);
    else if (sonde_item_size(item->format) == 1 && !item->old && to - from > SOME_BYTES)
        run_with_bytes(&p, from, to);
    else
        run_with_bins(&p, from, to);
    leave_float_mode(mode);
}
