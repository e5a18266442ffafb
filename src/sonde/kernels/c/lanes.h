/* The arithmetic of a sketch, written once in vector words that paths.c defines and then includes
   this text for each instruction set. Not a header: it has no meaning on its own.

   TARGET, NAME(x)        attribute of each function; how its name ends
   F, I, D, L             vectors of LANES floats and their bits; of LANES/2 doubles and their bits
   Everything else is a macro named after the operation it stands for. */

/* One value at a time: what is left over, and every group that holds NaN, Inf or an overflow. */
TARGET static __attribute__((noinline)) void NAME(add_each)(const float *image, const double *wide,
                                                            int64_t n, Moments *m)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits, size;
        double x;
        memcpy(&bits, image + i, 4);
        size = bits & 0x7fffffff;
        if (wide)
            memcpy(&x, wide + i, 8);
        else
            x = float_of(bits);
        if (size > 0x7f800000) {
            m->nans++;
            continue;
        }
        if (size == 0x7f800000) {
            *(bits >> 31 ? &m->neg_above : &m->pos_above) += 1;
            if (x == INFINITY || x == -INFINITY) {
                *(bits >> 31 ? &m->neg_infs : &m->pos_infs) += 1;
                continue;
            }
        }
        double abs = x < 0 ? -x : x, square = x * x;
        m->zeros += x == 0;
        m->subnormals += size != 0 && size < 0x00800000;
        m->sum += x, m->sum_abs += abs, m->sum_sq += square, m->sum_4 += square * square;
        m->min = fmin_(m->min, x), m->max = fmax_(m->max, x);
        if (abs > 0)
            m->min_abs = fmin_(m->min_abs, abs);
    }
}

TARGET static inline __attribute__((always_inline)) void NAME(add_lanes)(
    const float *image, const double *wide, int64_t n, uint16_t *bins, const int copies, Moments *m)
{
    D sum = D_SET(0), sum_abs = D_SET(0), sum_sq = D_SET(0), sum_4 = D_SET(0);
    D sum_4_b = D_SET(0);
    F low = F_SET(INFINITY), high = F_SET(-INFINITY);
    D wide_low = D_SET(INFINITY), wide_high = D_SET(-INFINITY), wide_least = D_SET(INFINITY);
    I least = I_SET(INT32_MAX), zeros = I_SET(0), tiny = I_SET(0);
    L wide_zeros = L_SET(0);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        if (copies)
            count_bins(image + i, LANES, bins, copies);
        F x = F_LOAD(image + i);
        I size = I_ABS(x);
        if (__builtin_expect(I_ANY_ABOVE(size, 0x7f7fffff), 0)) {
            NAME(add_each)(image + i, wide ? wide + i : NULL, LANES, m);
            continue;
        }
        D a, b;
        tiny = I_COUNT_BELOW(tiny, size, 0x00800000);
        zeros = I_COUNT_ZERO(zeros, size);
        if (wide) {
            a = D_LOAD(wide + i), b = D_LOAD(wide + i + LANES / 2);
            wide_low = D_MIN(D_MIN(a, b), wide_low);
            wide_high = D_MAX(D_MAX(a, b), wide_high);
            wide_least = D_MIN(D_MIN(D_NOT_ZERO(D_ABS(a)), D_NOT_ZERO(D_ABS(b))), wide_least);
            wide_zeros = L_COUNT_ZERO(L_COUNT_ZERO(wide_zeros, a), b);
        } else {
            a = D_FROM_LOW(x), b = D_FROM_HIGH(x);
            low = F_MIN(x, low);
            high = F_MAX(x, high);
            least = I_LEAST(least, size);
        }
        D aa = D_MUL(a, a), bb = D_MUL(b, b);
        sum = D_ADD(sum, D_ADD(a, b));
        sum_abs = D_ADD(sum_abs, D_ADD(D_ABS(a), D_ABS(b)));
        sum_sq = D_ADD(sum_sq, D_ADD(aa, bb));
        sum_4 = D_MULTIPLY_ADD(aa, aa, sum_4), sum_4_b = D_MULTIPLY_ADD(bb, bb, sum_4_b);
    }
    if (i) {
        double parts[4][LANES / 2], d[3][LANES / 2];
        float f[2][LANES];
        int32_t counts[3][LANES];
        int64_t wide_counts[LANES / 2];
        D_STORE(parts[0], sum), D_STORE(parts[1], sum_abs), D_STORE(parts[2], sum_sq);
        D_STORE(parts[3], D_ADD(sum_4, sum_4_b));
        I_STORE(counts[0], tiny), I_STORE(counts[1], zeros);
        for (int k = LANES / 4; k; k /= 2)
            for (int j = 0; j < k; j++)
                for (int s = 0; s < 4; s++)
                    parts[s][j] += parts[s][j + k];
        m->sum += parts[0][0], m->sum_abs += parts[1][0];
        m->sum_sq += parts[2][0], m->sum_4 += parts[3][0];
        for (int k = 0; k < LANES; k++)
            m->subnormals += counts[0][k] - counts[1][k];
        if (wide) {
            D_STORE(d[0], wide_low), D_STORE(d[1], wide_high), D_STORE(d[2], wide_least);
            L_STORE(wide_counts, wide_zeros);
            for (int k = 0; k < LANES / 2; k++) {
                m->zeros += wide_counts[k];
                m->min = fmin_(m->min, d[0][k]), m->max = fmax_(m->max, d[1][k]);
                m->min_abs = fmin_(m->min_abs, d[2][k]);
            }
        } else {
            F_STORE(f[0], low), F_STORE(f[1], high), I_STORE(counts[2], least);
            float lowest = f[0][0], highest = f[1][0];
            int32_t smallest = counts[2][0];
            for (int k = 0; k < LANES; k++) {
                m->zeros += counts[1][k];
                lowest = f[0][k] < lowest ? f[0][k] : lowest;
                highest = f[1][k] > highest ? f[1][k] : highest;
                smallest = counts[2][k] < smallest ? counts[2][k] : smallest;
            }
            m->min = fmin_(m->min, lowest), m->max = fmax_(m->max, highest);
            if (smallest < 0x7f7fffff)
                m->min_abs = fmin_(m->min_abs, float_of((uint32_t)smallest + 1));
        }
    }
    if (copies)
        count_bins(image + i, n - i, bins, copies);
    NAME(add_each)(image + i, wide ? wide + i : NULL, n - i, m);
}

TARGET static void NAME(add)(const float *image, const double *wide, int64_t n, uint16_t *bins,
                             int copies, Moments *m)
{
    if (wide) {
        if (copies == 0)
            NAME(add_lanes)(image, wide, n, bins, 0, m);
        else if (copies == 4)
            NAME(add_lanes)(image, wide, n, bins, 4, m);
        else
            NAME(add_lanes)(image, wide, n, bins, 8, m);
    } else {
        if (copies == 0)
            NAME(add_lanes)(image, NULL, n, bins, 0, m);
        else if (copies == 4)
            NAME(add_lanes)(image, NULL, n, bins, 4, m);
        else
            NAME(add_lanes)(image, NULL, n, bins, 8, m);
    }
    /* The compiler forgets it after the calls above, and then all code without AVX runs at half
       speed (gcc 12, 2-core EPYC). */
    LEAVE();
}

TARGET static void NAME(to_float)(const void *values, int format, int64_t n, float *out)
{
    int64_t i = 0;
    switch (format) {
    case FLOAT32:
        memcpy(out, values, (size_t)n * 4);
        break;
    case FLOAT16: {
        const u16 *in = values;
#ifdef F_FROM_HALF
        for (; i + LANES <= n; i += LANES)
            F_STORE(out + i, F_FROM_HALF(in + i));
#endif
        for (; i < n; i++)
            out[i] = float_of_half(in[i]);
        break;
    }
    case BFLOAT16: {
        const u16 *in = values;
        for (; i < n; i++) {
            uint32_t bits = (uint32_t)in[i] << 16;
            memcpy(out + i, &bits, 4);
        }
        break;
    }
    case INT16: {
        const i16 *in = values;
        for (; i < n; i++)
            out[i] = (float)in[i];
        break;
    }
    case UINT16: {
        const u16 *in = values;
        for (; i < n; i++)
            out[i] = (float)in[i];
        break;
    }
    default: {
        const unsigned char *in = values;
        for (; i < n; i++)
            out[i] = sonde_byte_values[format][in[i]];
    }
    }
}

TARGET static void NAME(to_double)(const void *values, int format, int64_t n, double *out)
{
#define CONVERT(type)                                                                              \
    for (int64_t i = 0; i < n; i++)                                                                \
        out[i] = (double)((const type *)values)[i];
    switch (format) {
    case FLOAT64:
        memcpy(out, values, (size_t)n * 8);
        break;
    case INT32:
        CONVERT(i32) break;
    case UINT32:
        CONVERT(u32) break;
    case INT64:
        CONVERT(i64) break;
    default:
        CONVERT(u64) break;
    }
#undef CONVERT
}

TARGET static void NAME(to_image)(const double *values, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)((const f64 *)values)[i];
}

TARGET static inline __attribute__((always_inline)) void NAME(fold_copies)(
    uint16_t *bins, const int copies, int64_t repeat, int64_t *to)
{
    for (int b = 0; b < N_BINS; b += 32) {
        I any = I_SET(0);
        for (int c = 0; c < copies; c++)
            for (int k = 0; k < 32; k += LANES * 2)
                any = I_OR(any, I_LOAD(bins + c * COPY_STRIDE + b + k));
        if (!I_ANY(any)) /* most tensors use few bins: the others stay out of the cache */
            continue;
        for (int k = 0; k < 32; k++) {
            uint32_t total = 0;
            for (int c = 0; c < copies; c++)
                total += bins[c * COPY_STRIDE + b + k];
            to[b + k] += (int64_t)total * repeat;
        }
    }
}

TARGET static void NAME(fold)(uint16_t *bins, int copies, int64_t repeat, int64_t *row)
{
    for (int c = 0; c < copies; c++) {
        memset(bins + c * COPY_STRIDE + POS_INF_BIN, 0, 4 * sizeof *bins);
        memset(bins + c * COPY_STRIDE + NEG_INF_BIN, 0, 4 * sizeof *bins);
    }
    if (copies == 4)
        NAME(fold_copies)(bins, 4, repeat, row + HEADER);
    else
        NAME(fold_copies)(bins, 8, repeat, row + HEADER);
}

static const Path NAME(path) = {
    PATH_NAME,       LANES < COPIES ? LANES : COPIES,
    NAME(add),       NAME(to_float),
    NAME(to_double), NAME(to_image),
    NAME(fold),
};
