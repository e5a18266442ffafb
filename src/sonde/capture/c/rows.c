/* Tensors read into rows. Nothing is noted before a tensor was read. */
#include "native.h"

#include <stdlib.h>

/* Values above which other Python threads may run while the host reads them. */
enum { LET_OTHERS_RUN = 16384 };

static int format_of(int code, int bits)
{
    switch (code) {
    case FLOAT:
        return bits == 32 ? FLOAT32 : bits == 16 ? FLOAT16 : bits == 64 ? FLOAT64 : -1;
    case BFLOAT:
        return bits == 16 ? BFLOAT16 : -1;
    case E4M3FN:
        return FLOAT8_E4M3FN;
    case E5M2:
        return FLOAT8_E5M2;
    default:
        return -1;
    }
}

/* Whether an attribute, or what a method without arguments returns, is true; 0 if it fails. */
int is_true(PyObject *found)
{
    int is = found == Py_True;
    if (!found)
        PyErr_Clear();
    Py_XDECREF(found);
    return is;
}

/* Whether the tensor lies in one stretch of memory, in order; if so, where. */
static int find(const Exchange *exchange, PyObject *x, View *view)
{
    Tensor t;
    if (exchange->view(x, &t) != 0) {
        PyErr_Clear();
        return 0;
    }
    int64_t n = 1;
    for (int d = t.n_dims - 1; d >= 0; d--) {
        if (t.sizes[d] != 1 && t.strides[d] != n)
            return 0;
        n *= t.sizes[d];
    }
    view->n = n;
    view->data = (const char *)t.data + t.byte_offset;
    view->format = t.dtype.lanes == 1 ? format_of(t.dtype.code, t.dtype.bits) : -1;
    view->device_type = t.device.type;
    view->device = t.device.type == ON_HOST ? 0 : t.device.index;
    return n > 0 && t.data && view->format >= 0; /* those without memory stand for zeros */
}

/* Whether the values of the object can be read as they lie; if so, where. Some tensors stand for the
   negative of what lies there. */
int look(const Native *native, PyObject *x, View *view)
{
    if ((PyObject *)Py_TYPE(x) != native->tensor || !find(native->exchange, x, view))
        return 0;
    PyObject *negative = PyObject_CallMethodObjArgs(x, n_is_neg, NULL);
    if (negative != Py_False) {
        is_true(negative);
        return 0;
    }
    Py_DECREF(negative);
    return 1;
}

/* Whether such a tensor goes to that place. */
static int suits(const Place *place, const View *view)
{
    const Book *book = place->book;
    return !place->off && place->format == view->format &&
           book->device_type == view->device_type && book->device == view->device;
}

/* Whether we know how to read it now: on which stream, if it is on a CUDA device. */
static int can_read(const Native *native, const Book *book, View *view)
{
    if (book->device_type == ON_HOST)
        return 1;
    void *context = NULL;
    return book->functions[view->format] && !book->current(&context) && context == book->context &&
           !native->exchange->stream(ON_CUDA, book->device, &view->stream);
}

int is_for(const Native *native, const Place *place, View *view)
{
    return suits(place, view) && can_read(native, place->book, view);
}

/* Whether that many rows more can be had in this window. */
static int has_rows(const Book *book, long long n)
{
    long long made = book->pages * book->rows_per_page;
    return book->next + n <= (made < book->limit ? made : book->limit);
}

static int is_new(const Place *place) { return place->row->window != place->book->window; }

/* Whether the place has a row that may be added to, or can have one: nobody else points to it. */
int is_open(const Place *place)
{
    if (!place->row)
        return 0;
    return is_new(place) ? has_rows(place->book, 1) : !place->row->shared;
}

/* Where the place's row lies. */
static int64_t address(const Place *place)
{
    const Book *book = place->book;
    long long index = place->row->index;
    return book->bases[index / book->rows_per_page] +
           index % book->rows_per_page * (long long)(WORDS * sizeof(int64_t));
}

/* Add the values to the place's row, a new one if it has none in this window. Nothing else changes:
   see `enter_row`. */
int add(const Place *place, const View *view)
{
    Book *book = place->book;
    if (is_new(place))
        place->row->index = book->next;
    int64_t row = address(place);
    if (book->device_type == ON_HOST) {
        Item item; /* the dimensions stay unset: there are none */
        item.row = (int64_t *)(intptr_t)row;
        item.data = view->data;
        item.copy = NULL;
        item.old = NULL;
        item.n = view->n;
        item.repeat = 1;
        item.format = view->format;
        item.n_dims = 0;
        if (view->n < LET_OTHERS_RUN) {
            book->add(&item, 1);
        } else {
            long long threads = book->threads;
            Py_BEGIN_ALLOW_THREADS
            book->add(&item, threads);
            Py_END_ALLOW_THREADS
        }
        return HANDLED;
    }
    int64_t words[] = {(int64_t)(intptr_t)view->data, view->n, row, 1, 0};
    void *arguments[] = {words, words + 1, words + 2, words + 3, words + 4};
    int64_t blocks = view->n / book->per_block[view->format];
    if (blocks < 1)
        blocks = 1;
    if (blocks > book->most_blocks)
        blocks = book->most_blocks;
    /* Other Python threads do not run meanwhile: giving them the interpreter for so short a call is
       what makes a training thread wait. */
    int failed = book->launch(book->functions[view->format], (unsigned)blocks, 1, 1,
                              book->block_threads, 1, 1, 0, view->stream, arguments, NULL);
    return failed ? NOT_HANDLED : HANDLED;
}

/* Room for that many entries more. */
int make_room(Book *book, long long more)
{
    if (book->count + more <= book->room)
        return 1;
    long long room = 2 * (book->count + more) + 64;
    int64_t *grown = realloc(book->entries, (size_t)room * 2 * sizeof(int64_t));
    if (!grown)
        return 0;
    book->entries = grown;
    book->room = room;
    return 1;
}

static void enter(Book *book, long long id, long long index)
{
    book->entries[2 * book->count] = id;
    book->entries[2 * book->count + 1] = index;
    book->count++;
}

/* The place's row was added to. */
void enter_row(const Place *place)
{
    Row *row = place->row;
    Book *book = place->book;
    if (row->window == book->window) {
        row->events++;
        return;
    }
    row->window = book->window;
    row->events = 1;
    row->shared = 0;
    book->next = row->index + 1;
    enter(book, place->id, row->index);
}

/* Whether a row holds this one tensor and nothing else. */
int can_share(const Place *place, const Row *row)
{
    return row->window == place->book->window && row->events == 1;
}

void share(const Place *place, Row *row)
{
    row->shared = 1;
    place->book->has_shared = 1;
    enter(place->book, place->id, row->index);
}

/* Whether a tensor can be read into the row of its first place, and all others point there. */
static int can_add_at(Place *const *places, Py_ssize_t n, const View *view)
{
    const Book *book = places[0]->book;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!suits(places[i], view) || places[i]->book != book)
            return 0;
    /* A row that several point to must hold nothing else. */
    return is_open(places[0]) && (n == 1 || places[0]->row->window != book->window);
}

static void enter_all(Place *const *places, Py_ssize_t n)
{
    enter_row(places[0]);
    for (Py_ssize_t i = 1; i < n; i++)
        share(places[i], places[0]->row);
}

/* A tensor at several places: it is read once, all point to the row that holds it. */
int add_at(const Native *native, Place *const *places, Py_ssize_t n, View *view)
{
    if (!can_add_at(places, n, view) || !can_read(native, places[0]->book, view) ||
        !make_room(places[0]->book, n) || add(places[0], view) != HANDLED)
        return NOT_HANDLED;
    enter_all(places, n);
    return HANDLED;
}

/* What the kernel `several` takes: see sketch.cu. */
typedef struct {
    const void *x[MOST_TOGETHER];
    int64_t first[MOST_TOGETHER + 1], n[MOST_TOGETHER], row[MOST_TOGETHER];
    int32_t format[MOST_TOGETHER];
} Several;

static int launch_several(Book *book, Point *const *points, int n, const View *views)
{
    Several table;
    int64_t pieces = 0, gate = 0;
    long long next = book->next;
    for (int i = 0; i < n; i++) {
        if (is_new(points[i]->places[0]))
            points[i]->places[0]->row->index = next++;
        table.x[i] = views[i].data;
        table.n[i] = views[i].n;
        table.row[i] = address(points[i]->places[0]);
        table.format[i] = book->codes[views[i].format];
        table.first[i] = pieces;
        pieces += (views[i].n + book->piece - 1) / book->piece;
        if (!book->functions[views[i].format] || table.format[i] < 0)
            return NOT_HANDLED;
    }
    table.first[n] = pieces;
    void *arguments[] = {&table, &n, &gate};
    unsigned blocks = (unsigned)(pieces < book->most_blocks ? pieces : book->most_blocks);
    int failed = book->launch(book->several, blocks, 1, 1, book->block_threads, 1, 1, 0,
                              views[0].stream, arguments, NULL);
    return failed ? NOT_HANDLED : HANDLED;
}

/* Several tensors, each at the places of a point, and in a row of its own. */
int add_together(const Native *native, Point *const *points, Py_ssize_t n, View *views)
{
    Book *book = points[0]->places[0]->book;
    Py_ssize_t entries = 0;
    long long new_rows = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (points[i]->places[0]->book != book ||
            !can_add_at(points[i]->places, points[i]->n, &views[i]))
            return NOT_HANDLED;
        entries += points[i]->n;
        new_rows += is_new(points[i]->places[0]);
    }
    if (!has_rows(book, new_rows) || !can_read(native, book, &views[0]) || !make_room(book, entries))
        return NOT_HANDLED;
    if (book->device_type != ON_HOST &&
        (!book->several || launch_several(book, points, (int)n, views) != HANDLED))
        return NOT_HANDLED;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (book->device_type == ON_HOST)
            add(points[i]->places[0], &views[i]);
        enter_all(points[i]->places, points[i]->n);
    }
    return HANDLED;
}
