/* The native path: what a hook does most of the time, in one call and few cache lines.

   A watched step calls hundreds of hooks, each between two operations of the model that have filled
   the caches with their own code: it is less the instructions of a hook that cost then than all that
   they have to fetch. So the common case is here: in a training pass that is recorded, a module
   returns one tensor, dense and of a known format; later its gradient is known. All else, and
   whatever is doubtful, is "not handled" before anything has changed, and goes the way through
   Python, which decides the same. What both ways know is in the same objects:

       Row        a row of a table: in which window it was opened, at which index, how often it was
                  added to
       Book       the rows of a device: where they lie, and which sites were added to which
       Place      where the tensors of a spot go: its row in a book, or rows of others
       Seen       a tensor met in a pass: the row that holds it, the hook on its gradient
       GradHook   a hook on a gradient, for all the spots that its tensor was seen at
       Native      a capture: whether it records now, the pass that is running, its lock
       Lane       a module: for each of its calls, the places of what it returns
       Point      a tap in compiled code: the places of its tensor
       Bunch      several taps that are one operator, for as many tensors

   All is done under the capture's lock.

   native.h     this page
   tensors.h   how tensors are asked what they are
   rows.c      tensors read into rows, and who is noted for which
   hooks.c     what hooks do, and taps in compiled code
   module.c    the Python face
*/
#ifndef SONDE_NATIVE_H
#define SONDE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../../kernels/c/sketch.h"
#include "tensors.h"

enum { NOT_HANDLED, HANDLED };
enum { MOST_PLACES = 8 };    /* of one tensor */
enum { MOST_TOGETHER = 16 }; /* tensors, in one launch */

typedef struct {
    PyObject_HEAD
    long long index, window, events;
    char shared;
} Row;

typedef int (*LaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void *, void **, void **);
typedef int (*CurrentContext)(void **);
typedef void (*AddItem)(const Item *, int64_t);

typedef struct {
    PyObject_HEAD
    long long window, count, room;
    int64_t *entries; /* pairs: id of a site, index of a row */
    int64_t *bases;   /* where the pages of rows lie, */
    PyObject *memory; /* and what keeps them there */
    long long pages, rows_per_page;
    long long next, limit; /* rows are given out in order, anew in each window, up to a limit */
    int device_type, device;
    char has_shared;
    AddItem add; /* on the host */
    long long threads;
    LaunchKernel launch; /* on a CUDA device */
    CurrentContext current;
    void *context;
    unsigned block_threads;
    long long most_blocks, per_block[N_FORMATS];
    void *functions[N_FORMATS];
    void *several; /* and how that one calls a format, -1 if it does not know it */
    long long piece;
    int codes[N_FORMATS];
} Book;

typedef struct {
    PyObject_HEAD
    Book *book;
    Row *row;
    long long id;
    int format;
    char off;
} Place;

typedef struct {
    PyObject_HEAD
    PyObject *ref, *row, *grad;
    long long version, window; /* `row` holds the tensor while it is in that window */
} Seen;

typedef struct {
    PyObject_HEAD
    char live, alone, hears_gradients, bound, waiting;
    unsigned long thread;
    PyObject *stack, *calls, *seen; /* of the pass */
    PyObject *acquire, *release, *root, *tensor, *backward, *has_gradients;
    const Exchange *exchange;
    PyObject *capsule;
    long long spent_ns;
} Native;

typedef struct {
    PyObject_HEAD
    Native *native;
    PyObject *owner, *spots;
    char returned;
} GradHook;

typedef struct {
    PyObject_HEAD
    Native *native;
    Place *places[MOST_PLACES];
    Py_ssize_t n;
    char is_gradient;
} Point;

typedef struct {
    PyObject_HEAD
    Point *points[MOST_TOGETHER];
    Py_ssize_t n;
} Bunch;

typedef struct {
    PyObject_HEAD
    Native *native;
    PyObject *owner, *tap, *module; /* the module weakly */
    PyObject *entries;              /* per call: (place or None, spot of the gradient or None) */
    char enters, looks_at_inputs;
} Lane;

/* -- module.c -- */

extern PyTypeObject *row_type, *book_type, *place_type, *seen_type, *native_type, *hook_type,
    *lane_type, *point_type, *bunch_type;
extern PyObject *ordered_dict, *hook_number;
extern PyObject *n_version, *n_grad_fn, *n_requires_grad, *n_backward_hooks, *n_register, *n_is_neg,
    *n_asleep, *n_gradient, *n_place, *n_training;

/* Put another object, which becomes ours, into a field. */
#define PUT(field, object)                                                                           \
    do {                                                                                             \
        PyObject *was = (PyObject *)(field);                                                         \
        (field) = (void *)(object);                                                                  \
        Py_XDECREF(was);                                                                             \
    } while (0)

/* -- rows.c -- */

/* A tensor as it lies in memory. */
typedef struct {
    const char *data;
    int64_t n;
    int format, device_type, device;
    void *stream; /* on a CUDA device, once somebody asked */
} View;

int is_true(PyObject *found);
int look(const Native *native, PyObject *x, View *view);
int is_for(const Native *native, const Place *place, View *view);
int is_open(const Place *place);
int add(const Place *place, const View *view);
int make_room(Book *book, long long more);
void enter_row(const Place *place);
int can_share(const Place *place, const Row *row);
void share(const Place *place, Row *row);
int add_at(const Native *native, Place *const *places, Py_ssize_t n, View *view);
int add_together(const Native *native, Point *const *points, Py_ssize_t n, View *views);

/* -- hooks.c -- */

PyObject *hook_call(PyObject *object, PyObject *args, PyObject *kwargs);
PyObject *lane_enter(PyObject *self, PyObject *module);
PyObject *lane_leave(PyObject *self, PyObject *const *arguments, Py_ssize_t n);
PyObject *lane_put(PyObject *object, PyObject *const *arguments, Py_ssize_t n);
PyObject *lane_has(PyObject *object, PyObject *number);
PyObject *point_add(PyObject *object, PyObject *x);
PyObject *bunch_add(PyObject *object, PyObject *tensors);

#endif
