/* The Python face of the C kernel. Every argument is an integer, most of them addresses that the
   caller vouches for; c.py says what each entry does. */
#include <Python.h>

#include "sketch.h"

#include <string.h>

/* Above this many values other Python threads may run meanwhile; below, letting them would cost
   more than the work. */
enum { LET_OTHERS_RUN = 16384 };

typedef PyObject *const *Arguments;

static int take(const char *name, Arguments arguments, Py_ssize_t n, Py_ssize_t expected,
                int64_t *out)
{
    if (n != expected) {
        PyErr_Format(PyExc_TypeError, "`%s` takes %zd arguments, got %zd.", name, expected, n);
        return 0;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(arguments[i]);
        if (out[i] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

static int check(int64_t format, int64_t n, int64_t repeat)
{
    if (format < 0 || format >= N_FORMATS) {
        PyErr_Format(PyExc_ValueError, "`dtype` must be a code from `DTYPES`, got %lld.",
                     (long long)format);
        return 0;
    }
    if (n < 0 || repeat < 0) {
        PyErr_Format(PyExc_ValueError, "`n` and `repeat` must not be negative, got %lld and %lld.",
                     (long long)n, (long long)repeat);
        return 0;
    }
    return 1;
}

/* Some tensors of torch stand for zeros and have no memory: reading it would end the process. */
static int has_memory(int64_t data, int64_t n)
{
    if (data || n <= 0)
        return 1;
    PyErr_SetString(PyExc_ValueError, "`data` is no address. Give a tensor that has memory.");
    return 0;
}

static PyObject *add_item(const Item *item, int64_t threads)
{
    if (item->n == 0 || item->repeat == 0)
        Py_RETURN_NONE;
    if (!has_memory((int64_t)(intptr_t)item->data, item->n))
        return NULL;
    if (item->n < LET_OTHERS_RUN) {
        sonde_add(item, 1);
        Py_RETURN_NONE;
    }
    Py_BEGIN_ALLOW_THREADS
    sonde_add(item, threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *add_contiguous(int64_t row, int64_t data, int64_t copy, int64_t old, int64_t n,
                                int64_t format, int64_t repeat, int64_t threads)
{
    if (!check(format, n, repeat))
        return NULL;
    Item item; /* the dimensions stay unset: there are none */
    item.row = (int64_t *)(intptr_t)row;
    item.data = (const char *)(intptr_t)data;
    item.copy = (char *)(intptr_t)copy;
    item.old = (const char *)(intptr_t)old;
    item.n = n;
    item.repeat = repeat;
    item.format = (int)format;
    item.n_dims = 0;
    return add_item(&item, threads);
}

static PyObject *add(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    int64_t a[6];
    if (!take("add", arguments, n, 6, a))
        return NULL;
    return add_contiguous(a[0], a[1], 0, 0, a[2], a[3], a[4], a[5]);
}

static PyObject *add_copy(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    int64_t a[6];
    if (!take("add_copy", arguments, n, 6, a))
        return NULL;
    return add_contiguous(a[0], a[1], a[2], 0, a[3], a[4], 1, a[5]);
}

static PyObject *add_difference(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    int64_t a[6];
    if (!take("add_difference", arguments, n, 6, a))
        return NULL;
    return add_contiguous(a[0], a[1], 0, a[2], a[3], a[4], 1, a[5]);
}

static int take_tuple(PyObject *tuple, Py_ssize_t n, int64_t *out)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (out[i] == -1 && PyErr_Occurred())
            return 0;
        if (out[i] < 0) {
            PyErr_Format(PyExc_ValueError, "Sizes and strides must not be negative, got %lld.",
                         (long long)out[i]);
            return 0;
        }
    }
    return 1;
}

static PyObject *add_strided(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    int64_t a[3], b[2];
    if (n != 7) {
        PyErr_Format(PyExc_TypeError, "`add_strided` takes 7 arguments, got %zd.", n);
        return NULL;
    }
    PyObject *sizes = arguments[3], *strides = arguments[4];
    if (!take("add_strided", arguments, 3, 3, a) || !take("add_strided", arguments + 5, 2, 2, b) ||
        !check(a[2], 0, b[0]))
        return NULL;
    if (!PyTuple_Check(sizes) || !PyTuple_Check(strides) ||
        PyTuple_Size(sizes) != PyTuple_Size(strides) || PyTuple_Size(sizes) > MAX_DIMS) {
        PyErr_Format(PyExc_TypeError,
                     "`sizes` and `strides` must be tuples of one length, at most %d.", MAX_DIMS);
        return NULL;
    }
    Item item;
    item.row = (int64_t *)(intptr_t)a[0];
    item.data = (const char *)(intptr_t)a[1];
    item.copy = NULL;
    item.old = NULL;
    item.repeat = b[0];
    item.format = (int)a[2];
    item.n_dims = (int)PyTuple_Size(sizes);
    if (!take_tuple(sizes, item.n_dims, item.sizes) ||
        !take_tuple(strides, item.n_dims, item.strides))
        return NULL;
    sonde_collapse(&item);
    return add_item(&item, b[1]);
}

static PyObject *add_many(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    int64_t a[8];
    if (!take("add_many", arguments, n, 8, a))
        return NULL;
    Items items = {
        (const int64_t *)(intptr_t)a[0], (const int64_t *)(intptr_t)a[1],
        (const int64_t *)(intptr_t)a[2], (const int64_t *)(intptr_t)a[3],
        (const int64_t *)(intptr_t)a[4], (const int64_t *)(intptr_t)a[5], a[6],
    };
    for (int64_t i = 0; i < items.n; i++)
        if (!check(items.formats[i], items.ns[i], 1) || !has_memory(items.datas[i], items.ns[i]))
            return NULL;
    Py_BEGIN_ALLOW_THREADS
    sonde_add_many(&items, a[7]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Whether two stretches of memory hold the same bytes. */
static PyObject *same(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    int64_t a[3];
    int is_same;
    if (!take("same", arguments, n, 3, a) || !has_memory(a[0], a[2]) || !has_memory(a[1], a[2]))
        return NULL;
    if (a[2] < LET_OTHERS_RUN)
        return PyBool_FromLong(!memcmp((void *)(intptr_t)a[0], (void *)(intptr_t)a[1], (size_t)a[2]));
    Py_BEGIN_ALLOW_THREADS
    is_same = !memcmp((void *)(intptr_t)a[0], (void *)(intptr_t)a[1], (size_t)a[2]);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_same);
}

static PyObject *merge(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    int64_t a[2];
    if (!take("merge", arguments, n, 2, a))
        return NULL;
    sonde_merge((int64_t *)(intptr_t)a[0], (const int64_t *)(intptr_t)a[1]);
    Py_RETURN_NONE;
}

static PyObject *count_bins(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    int64_t a[4], found;
    if (!take("count_bins", arguments, n, 4, a))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    found = sonde_count_bins((const int64_t *)(intptr_t)a[0], (const int64_t *)(intptr_t)a[1], a[2],
                             (int64_t *)(intptr_t)a[3]);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(found);
}

static PyObject *pack(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    int64_t a[10];
    int is_whole;
    if (!take("pack", arguments, n, 10, a))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    is_whole = sonde_pack((int64_t *)(intptr_t)a[0], (const int64_t *)(intptr_t)a[1], a[2],
                          (const int64_t *)(intptr_t)a[3], (int64_t *)(intptr_t)a[4],
                          (int64_t *)(intptr_t)a[5], (int64_t *)(intptr_t)a[6],
                          (int16_t *)(intptr_t)a[7], (int64_t *)(intptr_t)a[8], a[9] != 0);
    Py_END_ALLOW_THREADS
    if (!is_whole) {
        PyErr_SetString(PyExc_RuntimeError, "A row changed while it was packed. Fill none meanwhile.");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Launch a function on a CUDA device. The driver is not linked: the caller found `cuLaunchKernel`, and
   passes its address. All arguments of the function are words. Other Python threads do not run
   meanwhile: giving them the interpreter for so short a call is what makes a training thread wait. */
static PyObject *launch(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, void *, void **, void **);
    enum { FIXED = 5, MOST = 24 };
    int64_t a[MOST];
    void *pointers[MOST - FIXED];
    if (n < FIXED || n > MOST) {
        PyErr_Format(PyExc_TypeError, "`launch` takes 5 to 24 arguments, got %zd.", n);
        return NULL;
    }
    if (!take("launch", arguments, n, n, a))
        return NULL;
    for (Py_ssize_t i = FIXED; i < n; i++)
        pointers[i - FIXED] = a + i;
    int failed = ((Launch)(intptr_t)a[0])((void *)(intptr_t)a[1], (unsigned)a[2], 1, 1,
                                          (unsigned)a[3], 1, 1, 0, (void *)(intptr_t)a[4], pointers,
                                          NULL);
    return PyLong_FromLong(failed);
}

/* Call a function of the CUDA driver that takes up to four words, at that address; as `launch`. What
   is passed beyond those that it takes, it does not see. */
static PyObject *call(PyObject *Py_UNUSED(self), Arguments arguments, Py_ssize_t n)
{
    typedef int (*Entry)(int64_t, int64_t, int64_t, int64_t);
    enum { MOST = 5 };
    int64_t a[MOST] = {0};
    if (n < 1 || n > MOST) {
        PyErr_Format(PyExc_TypeError, "`call` takes 1 to 5 arguments, got %zd.", n);
        return NULL;
    }
    if (!take("call", arguments, n, n, a))
        return NULL;
    return PyLong_FromLong(((Entry)(intptr_t)a[0])(a[1], a[2], a[3], a[4]));
}

static PyObject *paths(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    PyObject *names = PyList_New(0);
    for (int i = 0; names && sonde_paths(i); i++) {
        PyObject *name = PyUnicode_FromString(sonde_paths(i)->name);
        if (!name || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *use_path(PyObject *Py_UNUSED(self), PyObject *name)
{
    for (int i = 0; sonde_paths(i); i++)
        if (PyUnicode_Check(name) &&
            PyUnicode_CompareWithASCIIString(name, sonde_paths(i)->name) == 0) {
            sonde_path = sonde_paths(i);
            Py_RETURN_NONE;
        }
    PyErr_Format(PyExc_ValueError, "`name` must be one of `paths()`, got %R.", name);
    return NULL;
}

static PyObject *thread_runtime(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    return PyUnicode_FromString(sonde_thread_runtime());
}

/* Where `sonde_add` is, for another extension of ours. */
static PyObject *entry(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLongLong((long long)(intptr_t)sonde_add);
}

/* In xla.c. */
PyObject *sonde_xla_handlers(PyObject *self, PyObject *none);
PyObject *sonde_xla_device(PyObject *self, PyObject *address);

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FAST(add),
    FAST(add_strided),
    FAST(add_copy),
    FAST(add_difference),
    FAST(add_many),
    FAST(merge),
    FAST(same),
    FAST(count_bins),
    FAST(pack),
    FAST(launch),
    FAST(call),
    {"entry", entry, METH_NOARGS, NULL},
    {"paths", paths, METH_NOARGS, NULL},
    {"use_path", use_path, METH_O, NULL},
    {"thread_runtime", thread_runtime, METH_NOARGS, NULL},
    {"xla_handlers", sonde_xla_handlers, METH_NOARGS, NULL},
    {"xla_device", sonde_xla_device, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    return PyModule_AddStringConstant(module, "SOURCES", SONDE_SOURCES);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* rows belong to the caller; nothing else is written */
#endif
    {0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "sonde.kernels._c", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__c(void)
{
    sonde_init_paths();
    sonde_init_threads();
    return PyModuleDef_Init(&module);
}
