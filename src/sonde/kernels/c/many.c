/* Tensors spread over threads.

   The work is one long line of values, tensor after tensor, cut into as many equal pieces as there
   are threads. A tensor that lies within a piece goes straight into its row; of a tensor that is
   cut, each piece fills a row of its own, and these are merged in order when all are done. So the
   result depends on the input and on the number of threads, never on which thread was faster. */
#define _GNU_SOURCE
#include "sketch.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    /* Values worth a second thread (2-core EPYC, float32, microseconds on one and on two threads).
       Right after an operation of torch: 41 and 36 for 65536 values, 72 and 57 for 131072, 152 and
       93 for 262144. Threads that have slept for some milliseconds cost much more, to torch too. */
    ENOUGH_FOR_OPENMP = 131072,
    /* Starting a thread: 153 and 147 for 262144 values, 606 and 362 for 1048576. */
    ENOUGH_FOR_PTHREADS = 524288,
    /* Tensors are cut at multiples of this. */
    CUT = 8192,
    /* What a tensor costs beyond its values, in values. */
    COST_OF_ONE = 1024,
    MAX_THREADS = 256,
};

/* -- running pieces ---------------------------------------------------------------------------- */

typedef struct {
    void (*run)(void *context, int64_t piece);
    void *context;
    int64_t n;
} Pieces;

/* The OpenMP runtime that the process already has (torch brings one), found by name: its threads
   are awake between torch's operations, and a second set would compete with them for the cores. */
typedef struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*thread)(void);
    int (*n_threads)(void);
} OpenMP;

static pid_t home; /* the process that loaded us: after fork() OpenMP's threads are gone */

void sonde_init_threads(void) { home = getpid(); }

static int find_openmp(OpenMP *found)
{
    if (getpid() != home)
        return 0;
    *(void **)&found->parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    *(void **)&found->thread = dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    *(void **)&found->n_threads = dlsym(RTLD_DEFAULT, "omp_get_num_threads");
    return found->parallel && found->thread && found->n_threads;
}

const char *sonde_thread_runtime(void)
{
    OpenMP openmp;
    return find_openmp(&openmp) ? "openmp" : "pthreads";
}

typedef struct {
    const Pieces *pieces;
    const OpenMP *openmp;
} Team;

static void run_in_team(void *data)
{
    const Team *team = data;
    int64_t step = team->openmp->n_threads();
    for (int64_t i = team->openmp->thread(); i < team->pieces->n; i += step)
        team->pieces->run(team->pieces->context, i);
}

typedef struct {
    const Pieces *pieces;
    int64_t piece;
    pthread_t thread;
    int started;
} Worker;

static void *run_in_thread(void *data)
{
    const Worker *worker = data;
    worker->pieces->run(worker->pieces->context, worker->piece);
    return NULL;
}

static void run_pieces(const Pieces *pieces, const OpenMP *openmp)
{
    if (openmp) {
        /* 0 is the number that torch uses too: a team of another size would make the runtime end
           threads now and start them again at torch's next operation. */
        Team team = {pieces, openmp};
        openmp->parallel(run_in_team, &team, 0, 0);
        return;
    }
    Worker workers[MAX_THREADS];
    for (int64_t i = 1; i < pieces->n; i++) {
        workers[i].pieces = pieces;
        workers[i].piece = i;
        workers[i].started =
            pthread_create(&workers[i].thread, NULL, run_in_thread, &workers[i]) == 0;
    }
    pieces->run(pieces->context, 0);
    for (int64_t i = 1; i < pieces->n; i++) {
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
        else
            run_in_thread(&workers[i]);
    }
}

/* -- cutting the line -------------------------------------------------------------------------- */

/* A piece's share of a tensor that is cut: of the one that began before it, of the one that goes on
   after it. */
typedef struct {
    int64_t item; /* or -1 */
    int64_t row[WORDS];
} Part;

typedef struct {
    const Item *one;    /* the only tensor, or NULL */
    const Items *many;
    int64_t n_items, cost, n_pieces;
    Part *parts;        /* two per piece */
} Work;

static void item_at(const Items *items, int64_t i, Item *item)
{
    item->row = (int64_t *)(intptr_t)items->rows[i];
    item->data = (const char *)(intptr_t)items->datas[i];
    item->copy = items->copies ? (char *)(intptr_t)items->copies[i] : NULL;
    item->old = items->olds ? (const char *)(intptr_t)items->olds[i] : NULL;
    item->n = items->ns[i];
    item->repeat = 1;
    item->format = (int)items->formats[i];
    item->n_dims = 0;
}

/* Where a line that reaches `offset` values into a tensor of n cuts it. */
static int64_t cut_at(int64_t offset, int64_t n)
{
    if (n < 2 * CUT)
        return offset > 0 ? n : 0;
    if (offset <= 0)
        return 0;
    return offset >= n ? n : offset / CUT * CUT;
}

static void run_piece(void *context, int64_t piece)
{
    Work *work = context;
    /* In this order it cannot overflow: the product of cost and piece could. */
    int64_t each = work->cost / work->n_pieces, rest = work->cost % work->n_pieces;
    int64_t begin = each * piece + (piece < rest ? piece : rest);
    int64_t end = begin + each + (piece < rest);
    Part *parts = work->parts + 2 * piece;
    parts[0].item = parts[1].item = -1;
    Item item;
    for (int64_t i = 0, at = 0; i < work->n_items && at < end; i++) {
        int64_t n = work->one ? work->one->n : work->many->ns[i];
        int64_t next = at + n + COST_OF_ONE;
        if (next > begin) {
            int64_t from = cut_at(begin - at, n), to = cut_at(end - at, n);
            if (from < to) {
                const Item *it = work->one;
                if (!it) {
                    item_at(work->many, i, &item);
                    it = &item;
                }
                int64_t *row = it->row;
                if (from > 0 || to < n) {
                    Part *part = parts + (from == 0);
                    part->item = i;
                    sonde_clear(part->row);
                    row = part->row;
                }
                sonde_pass(row, it, from, to);
            }
        }
        at = next;
    }
}

static void run_work(Work *work, int64_t threads)
{
    int64_t values = work->cost - work->n_items * COST_OF_ONE;
    int64_t limit = threads < MAX_THREADS ? threads : MAX_THREADS;
    OpenMP openmp;
    int has_openmp = 0;
    if (limit > 1 && work->cost >= 2 * CUT && values >= ENOUGH_FOR_OPENMP) {
        has_openmp = find_openmp(&openmp);
        if (!has_openmp && values < ENOUGH_FOR_PTHREADS)
            limit = 1;
        if (limit > work->cost / (2 * CUT))
            limit = work->cost / (2 * CUT);
    } else {
        limit = 1;
    }
    work->n_pieces = limit;
    work->parts = limit > 1 ? malloc((size_t)limit * 2 * sizeof *work->parts) : NULL;
    if (!work->parts) {
        Item item;
        if (work->one)
            sonde_pass(work->one->row, work->one, 0, work->one->n);
        else
            for (int64_t i = 0; i < work->n_items; i++) {
                item_at(work->many, i, &item);
                sonde_pass(item.row, &item, 0, item.n);
            }
        return;
    }
    Pieces pieces = {run_piece, work, limit};
    run_pieces(&pieces, has_openmp ? &openmp : NULL);
    for (int64_t p = 0; p < 2 * limit; p++) {
        Part *part = work->parts + p;
        if (part->item >= 0) {
            int64_t *row = work->one ? work->one->row
                                     : (int64_t *)(intptr_t)work->many->rows[part->item];
            sonde_merge(row, part->row);
        }
    }
    free(work->parts);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Whether two tensors go into the same row, which two threads must not fill at once. */
static int has_twins(const Items *items)
{
    int64_t i = 1;
    while (i < items->n && items->rows[i] > items->rows[i - 1])
        i++;
    if (i >= items->n)
        return 0;
    int64_t *sorted = malloc((size_t)items->n * sizeof *sorted);
    if (!sorted)
        return 1;
    for (i = 0; i < items->n; i++)
        sorted[i] = items->rows[i];
    qsort(sorted, (size_t)items->n, sizeof *sorted, compare);
    int found = 0;
    for (i = 1; i < items->n && !found; i++)
        found = sorted[i] == sorted[i - 1];
    free(sorted);
    return found;
}

void sonde_add(const Item *item, int64_t threads)
{
    Work work = {.one = item, .n_items = 1, .cost = item->n + COST_OF_ONE};
    run_work(&work, threads);
}

void sonde_add_many(const Items *items, int64_t threads)
{
    Work work = {.many = items, .n_items = items->n};
    for (int64_t i = 0; i < items->n; i++)
        work.cost += items->ns[i] + COST_OF_ONE;
    run_work(&work, threads > 1 && has_twins(items) ? 1 : threads);
}
