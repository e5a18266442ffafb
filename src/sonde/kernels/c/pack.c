/* Rows merged and emptied, and rows turned into the sparse columns that records travel in. */
#include "sketch.h"

#include <math.h>
#include <string.h>

static double double_at(const int64_t *word)
{
    double x;
    memcpy(&x, word, 8);
    return x;
}

static void clear_extrema(int64_t *row)
{
    const double extrema[3] = {INFINITY, -INFINITY, INFINITY};
    memcpy(row + MIN, extrema, sizeof extrema);
}

void sonde_clear(int64_t *row)
{
    memset(row, 0, WORDS * sizeof *row);
    clear_extrema(row);
}

void sonde_merge(int64_t *row, const int64_t *other)
{
    for (int i = COUNT; i <= SUBNORMALS; i++)
        row[i] += other[i];
    for (int i = SUM; i <= SUM_4; i++) {
        double x = double_at(row + i) + double_at(other + i);
        memcpy(row + i, &x, 8);
    }
    for (int i = MIN; i <= MIN_ABS; i++) {
        double x = double_at(row + i), y = double_at(other + i);
        if (i == MAX ? y > x : y < x)
            memcpy(row + i, &y, 8);
    }
    for (int b = HEADER; b < WORDS; b += 8) {
        int64_t any = 0;
        for (int k = 0; k < 8; k++)
            any |= other[b + k];
        if (any)
            for (int k = 0; k < 8; k++)
                row[b + k] += other[b + k];
    }
}

int64_t sonde_count_bins(const int64_t *table, const int64_t *indices, int64_t n, int64_t *offsets)
{
    offsets[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t *row = table + indices[i] * WORDS;
        int64_t held = 0;
        for (int b = HEADER; b < WORDS; b++)
            held += row[b] != 0;
        offsets[i + 1] = offsets[i] + held;
    }
    return offsets[n];
}

/* A row of which only the bins that are not empty are written to: the rest stays out of the cache. */
static void empty(int64_t *row)
{
    for (int b = HEADER; b < WORDS; b += 8) {
        int64_t *bins = row + b;
        if (bins[0] | bins[1] | bins[2] | bins[3] | bins[4] | bins[5] | bins[6] | bins[7])
            memset(bins, 0, 8 * sizeof *bins);
    }
    memset(row, 0, HEADER * sizeof *row);
    clear_extrema(row);
}

/* Every chosen row becomes one row of the columns; then all are emptied, if asked for. False if a
   row's bins are not as many as were counted. */
int sonde_pack(int64_t *table, const int64_t *indices, int64_t n, const int64_t *offsets,
               int64_t *counts, int64_t *sums, int64_t *extrema, int16_t *ids, int64_t *bin_counts,
               int empties)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t *row = table + indices[i] * WORDS;
        int64_t at = offsets[i], end = offsets[i + 1];
        memcpy(counts + i * 6, row + COUNT, 6 * 8);
        memcpy(sums + i * 4, row + SUM, 4 * 8);
        memcpy(extrema + i * 3, row + MIN, 3 * 8);
        for (int b = 0; b < N_BINS; b += 8) {
            const int64_t *bins = row + HEADER + b;
            if (!(bins[0] | bins[1] | bins[2] | bins[3] | bins[4] | bins[5] | bins[6] | bins[7]))
                continue;
            for (int k = 0; k < 8; k++) {
                if (!bins[k])
                    continue;
                if (at == end)
                    return 0;
                ids[at] = (int16_t)(b + k);
                bin_counts[at++] = bins[k];
            }
        }
        if (at != end)
            return 0;
    }
    for (int64_t i = 0; empties && i < n; i++)
        empty(table + indices[i] * WORDS);
    return 1;
}
