/* The Python face of the native path; native.py says what each of these is. */
#include "native.h"

#include <structmember.h>

#include <stdlib.h>
#include <string.h>

PyTypeObject *row_type, *book_type, *place_type, *seen_type, *native_type, *hook_type,
    *lane_type, *point_type, *bunch_type;
PyObject *ordered_dict, *hook_number;
PyObject *n_version, *n_grad_fn, *n_requires_grad, *n_backward_hooks, *n_register, *n_is_neg,
    *n_asleep, *n_gradient, *n_place, *n_training;

/* -- books --------------------------------------------------------------------------------------- */

static PyObject *book_on_host(PyObject *object, PyObject *const *arguments, Py_ssize_t n)
{
    Book *self = (Book *)object;
    if (n != 1)
        return PyErr_Format(PyExc_TypeError, "`on_host` takes the entry that adds, got %zd.", n);
    self->add = (AddItem)(intptr_t)PyLong_AsLongLong(arguments[0]);
    self->device_type = ON_HOST;
    self->device = 0;
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *book_on_cuda(PyObject *object, PyObject *args)
{
    Book *self = (Book *)object;
    long long launch, current, context, blocks, threads;
    long long several;
    PyObject *functions;
    if (!PyArg_ParseTuple(args, "iLLLLLLLO", &self->device, &launch, &current, &context, &blocks,
                          &threads, &several, &self->piece, &functions))
        return NULL;
    Py_ssize_t n = PySequence_Size(functions);
    for (Py_ssize_t i = 0; i < n; i++) {
        long long format, function, per_block;
        int code;
        PyObject *one = PySequence_GetItem(functions, i);
        int well = one && PyArg_ParseTuple(one, "LLLi", &format, &function, &per_block, &code);
        Py_XDECREF(one);
        if (!well)
            return NULL;
        if (format < 0 || format >= N_FORMATS || per_block < 1)
            return PyErr_Format(PyExc_ValueError, "There is no format %lld.", format);
        self->functions[format] = (void *)(intptr_t)function;
        self->per_block[format] = per_block;
        self->codes[format] = code;
    }
    self->device_type = ON_CUDA;
    self->launch = (LaunchKernel)(intptr_t)launch;
    self->current = (CurrentContext)(intptr_t)current;
    self->context = (void *)(intptr_t)context;
    self->most_blocks = blocks;
    self->block_threads = (unsigned)threads;
    self->several = self->piece > 0 ? (void *)(intptr_t)several : NULL;
    return n < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *book_move(PyObject *object, PyObject *const *arguments, Py_ssize_t n)
{
    Book *self = (Book *)object;
    long long per_page = n == 3 ? PyLong_AsLongLong(arguments[0]) : -1;
    Py_ssize_t pages = n == 3 ? PySequence_Size(arguments[1]) : -1;
    if (per_page < 1 || pages < 0) {
        PyErr_Clear();
        PyErr_SetString(PyExc_TypeError, "`move` takes rows per page, addresses of pages, and "
                                         "what keeps them.");
        return NULL;
    }
    if (pages > self->pages) {
        int64_t *grown = realloc(self->bases, (size_t)pages * sizeof(int64_t));
        if (!grown)
            return PyErr_NoMemory();
        self->bases = grown;
    }
    self->pages = 0; /* none may be used if one of them cannot be */
    for (Py_ssize_t i = 0; i < pages; i++) {
        PyObject *base = PySequence_GetItem(arguments[1], i);
        self->bases[i] = base ? PyLong_AsLongLong(base) : -1;
        Py_XDECREF(base);
        if (PyErr_Occurred())
            return NULL;
    }
    PUT(self->memory, Py_NewRef(arguments[2]));
    self->rows_per_page = per_page;
    self->pages = pages;
    Py_RETURN_NONE;
}

static PyObject *book_turn(PyObject *object, PyObject *number)
{
    Book *self = (Book *)object;
    long long window = PyLong_AsLongLong(number);
    if (window == -1 && PyErr_Occurred())
        return NULL;
    PyObject *page = PyBytes_FromStringAndSize(
        (const char *)self->entries, (Py_ssize_t)(self->count * 2 * (long long)sizeof(int64_t)));
    if (!page)
        return NULL;
    self->window = window;
    self->count = self->next = 0;
    self->has_shared = 0;
    return page;
}

static PyObject *book_forget(PyObject *object, PyObject *number)
{
    Book *self = (Book *)object;
    long long id = PyLong_AsLongLong(number), kept = 0;
    if (id == -1 && PyErr_Occurred())
        return NULL;
    for (long long i = 0; i < self->count; i++)
        if (self->entries[2 * i] != id) {
            memmove(self->entries + 2 * kept, self->entries + 2 * i, 2 * sizeof(int64_t));
            kept++;
        }
    self->count = kept;
    Py_RETURN_NONE;
}

/* -- what can be made ---------------------------------------------------------------------------- */

static int row_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Row *self = (Row *)object;
    self->events = 1;
    self->shared = 0;
    return PyArg_ParseTuple(args, "LL", &self->index, &self->window) ? 0 : -1;
}

static int place_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Place *self = (Place *)object;
    PyObject *book, *row;
    if (!PyArg_ParseTuple(args, "O!OLi", book_type, &book, &row, &self->id, &self->format))
        return -1;
    if (row != Py_None && Py_TYPE(row) != row_type) {
        PyErr_SetString(PyExc_TypeError, "`row` must be a Row or None.");
        return -1;
    }
    PUT(self->book, Py_NewRef(book));
    PUT(self->row, row == Py_None ? NULL : Py_NewRef(row));
    return 0;
}

static int seen_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Seen *self = (Seen *)object;
    PyObject *x;
    if (!PyArg_ParseTuple(args, "OL", &x, &self->version))
        return -1;
    PUT(self->ref, PyWeakref_NewRef(x, NULL));
    PUT(self->row, Py_NewRef(Py_None));
    PUT(self->grad, Py_NewRef(Py_None));
    return self->ref ? 0 : -1;
}

static int hook_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"owner", "spot", "returned", NULL};
    GradHook *self = (GradHook *)object;
    PyObject *owner, *spot;
    int returned = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|p", names, &owner, &spot, &returned))
        return -1;
    PyObject *native = PyObject_GetAttrString(owner, "native");
    if (native && Py_TYPE(native) == native_type)
        PUT(self->native, Py_NewRef(native));
    Py_XDECREF(native);
    PyErr_Clear();
    PUT(self->owner, Py_NewRef(owner));
    PUT(self->spots, PyList_New(0));
    self->returned = (char)returned;
    return self->spots && PyList_Append(self->spots, spot) == 0 ? 0 : -1;
}

static int point_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Point *self = (Point *)object;
    PyObject *native, *places;
    int is_gradient;
    if (!PyArg_ParseTuple(args, "O!O!p", native_type, &native, &PyTuple_Type, &places, &is_gradient))
        return -1;
    Py_ssize_t n = PyTuple_Size(places);
    if (n < 1 || n > MOST_PLACES) {
        PyErr_Format(PyExc_ValueError, "A point has 1 to %d places, got %zd.", MOST_PLACES, n);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *place = PyTuple_GetItem(places, i);
        if (Py_TYPE(place) != place_type) {
            PyErr_SetString(PyExc_TypeError, "`places` must be a tuple of Place.");
            return -1;
        }
        PUT(self->places[i], Py_NewRef(place));
    }
    self->n = n;
    self->is_gradient = (char)is_gradient;
    PUT(self->native, Py_NewRef(native));
    return 0;
}

static int bunch_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Bunch *self = (Bunch *)object;
    PyObject *points;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &points))
        return -1;
    Py_ssize_t n = PyTuple_Size(points);
    if (n < 1 || n > MOST_TOGETHER) {
        PyErr_Format(PyExc_ValueError, "A bunch has 1 to %d points, got %zd.", MOST_TOGETHER, n);
        return -1;
    }
    Point *first = (Point *)PyTuple_GetItem(points, 0);
    for (Py_ssize_t i = 0; i < n; i++) {
        Point *point = (Point *)PyTuple_GetItem(points, i);
        if (Py_TYPE((PyObject *)point) != point_type || point->native != first->native ||
            point->is_gradient != first->is_gradient) {
            PyErr_SetString(PyExc_TypeError, "`points` must be a tuple of Point, of one Native and "
                                             "either of gradients or of none.");
            return -1;
        }
        for (Py_ssize_t k = 0; k < i; k++)
            if (self->points[k]->places[0]->row == point->places[0]->row) {
                PyErr_SetString(PyExc_ValueError, "Two of the points have the same row.");
                return -1;
            }
        PUT(self->points[i], Py_NewRef((PyObject *)point));
        self->n = i + 1;
    }
    return 0;
}

static int native_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Native *self = (Native *)object;
    PyObject *lock, *root, *tensor, *backward, *has_gradients, *capsule;
    if (!PyArg_ParseTuple(args, "OOOOOO", &lock, &root, &tensor, &capsule, &backward,
                          &has_gradients))
        return -1;
    if (!PyWeakref_Check(root)) {
        PyErr_SetString(PyExc_TypeError, "`root` must be a weak reference.");
        return -1;
    }
    const Exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!exchange)
        return -1;
    if (exchange->major != 1 || !exchange->view || !exchange->stream) {
        PyErr_Format(PyExc_ValueError, "This is DLPack %u.%u, and we know version 1.",
                     exchange->major, exchange->minor);
        return -1;
    }
    self->exchange = exchange;
    PUT(self->capsule, Py_NewRef(capsule));
    PUT(self->root, Py_NewRef(root));
    PUT(self->tensor, Py_NewRef(tensor));
    PUT(self->backward, Py_NewRef(backward));
    PUT(self->has_gradients, Py_NewRef(has_gradients));
    PUT(self->acquire, PyObject_GetAttrString(lock, "acquire"));
    PUT(self->release, PyObject_GetAttrString(lock, "release"));
    return self->acquire && self->release ? 0 : -1;
}

static PyObject *native_bind(PyObject *object, PyObject *args)
{
    Native *self = (Native *)object;
    PyObject *stack, *calls, *seen;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &stack, &PyDict_Type, &calls, &PyDict_Type,
                          &seen))
        return NULL;
    PUT(self->stack, Py_NewRef(stack));
    PUT(self->calls, Py_NewRef(calls));
    PUT(self->seen, Py_NewRef(seen));
    self->thread = PyThread_get_thread_ident();
    self->bound = 1;
    Py_RETURN_NONE;
}

static int lane_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Lane *self = (Lane *)object;
    PyObject *native, *owner, *tap, *module;
    int enters, looks_at_inputs;
    if (!PyArg_ParseTuple(args, "O!OOOpp", native_type, &native, &owner, &tap, &module, &enters,
                          &looks_at_inputs))
        return -1;
    if (!PyWeakref_Check(module)) {
        PyErr_SetString(PyExc_TypeError, "`module` must be a weak reference.");
        return -1;
    }
    self->enters = (char)enters;
    self->looks_at_inputs = (char)looks_at_inputs;
    PUT(self->native, Py_NewRef(native));
    PUT(self->owner, Py_NewRef(owner));
    PUT(self->tap, Py_NewRef(tap));
    PUT(self->module, Py_NewRef(module));
    PUT(self->entries, PyList_New(0));
    return self->entries ? 0 : -1;
}

/* -- the types ----------------------------------------------------------------------------------- */

#define OBJECT(name, Type, VISITS, CLEARS)                                                           \
    static int name##_traverse(PyObject *object, visitproc visit, void *arg)                         \
    {                                                                                                \
        Type *self = (Type *)object;                                                                 \
        (void)self;                                                                                  \
        Py_VISIT(Py_TYPE(object));                                                                   \
        VISITS;                                                                                      \
        return 0;                                                                                    \
    }                                                                                                \
    static int name##_clear(PyObject *object)                                                        \
    {                                                                                                \
        Type *self = (Type *)object;                                                                 \
        (void)self;                                                                                  \
        CLEARS;                                                                                      \
        return 0;                                                                                    \
    }                                                                                                \
    static void name##_dealloc(PyObject *object)                                                     \
    {                                                                                                \
        PyTypeObject *type = Py_TYPE(object);                                                        \
        PyObject_GC_UnTrack(object);                                                                 \
        name##_clear(object);                                                                        \
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);                                        \
        Py_DECREF(type);                                                                             \
    }

OBJECT(row, Row, , )
OBJECT(book, Book, Py_VISIT(self->memory), Py_CLEAR(self->memory); free(self->entries);
       self->entries = NULL; free(self->bases); self->bases = NULL; self->count = self->room = self->pages = 0)
OBJECT(place, Place, Py_VISIT(self->book); Py_VISIT(self->row), Py_CLEAR(self->book);
       Py_CLEAR(self->row))
OBJECT(seen, Seen, Py_VISIT(self->ref); Py_VISIT(self->row); Py_VISIT(self->grad),
       Py_CLEAR(self->ref); Py_CLEAR(self->row); Py_CLEAR(self->grad))
OBJECT(hook, GradHook, Py_VISIT(self->native); Py_VISIT(self->owner); Py_VISIT(self->spots),
       Py_CLEAR(self->native); Py_CLEAR(self->owner); Py_CLEAR(self->spots))
OBJECT(native, Native, Py_VISIT(self->stack); Py_VISIT(self->calls); Py_VISIT(self->seen);
       Py_VISIT(self->acquire); Py_VISIT(self->release); Py_VISIT(self->tensor);
       Py_VISIT(self->root); Py_VISIT(self->backward); Py_VISIT(self->has_gradients);
       Py_VISIT(self->capsule), self->bound = self->live = self->hears_gradients = 0;
       Py_CLEAR(self->stack); Py_CLEAR(self->calls); Py_CLEAR(self->seen); Py_CLEAR(self->acquire);
       Py_CLEAR(self->release); Py_CLEAR(self->tensor); Py_CLEAR(self->root);
       Py_CLEAR(self->backward); Py_CLEAR(self->has_gradients); Py_CLEAR(self->capsule))
OBJECT(lane, Lane, Py_VISIT(self->native); Py_VISIT(self->owner); Py_VISIT(self->tap);
       Py_VISIT(self->module); Py_VISIT(self->entries), Py_CLEAR(self->native);
       Py_CLEAR(self->owner); Py_CLEAR(self->tap); Py_CLEAR(self->module); Py_CLEAR(self->entries))

OBJECT(point, Point, Py_VISIT(self->native);
       for (Py_ssize_t i = 0; i < self->n; i++) Py_VISIT(self->places[i]), Py_CLEAR(self->native);
       for (Py_ssize_t i = 0; i < MOST_PLACES; i++) Py_CLEAR(self->places[i]); self->n = 0)

OBJECT(bunch, Bunch, for (Py_ssize_t i = 0; i < self->n; i++) Py_VISIT(self->points[i]),
       for (Py_ssize_t i = 0; i < MOST_TOGETHER; i++) Py_CLEAR(self->points[i]); self->n = 0)

#define MEMBER(Type, kind, name) {#name, kind, offsetof(Type, name), 0, NULL}
#define FIXED(Type, kind, name) {#name, kind, offsetof(Type, name), READONLY, NULL}
#define END_OF_MEMBERS {NULL, 0, 0, 0, NULL}
#define FAST(name, function) {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, NULL}

static PyMemberDef row_members[] = {
    MEMBER(Row, T_LONGLONG, index),  MEMBER(Row, T_LONGLONG, window), MEMBER(Row, T_LONGLONG, events),
    MEMBER(Row, T_BOOL, shared), END_OF_MEMBERS,
};
static PyMemberDef book_members[] = {
    FIXED(Book, T_LONGLONG, window), FIXED(Book, T_LONGLONG, count),
    MEMBER(Book, T_LONGLONG, next), MEMBER(Book, T_LONGLONG, limit),
    MEMBER(Book, T_LONGLONG, threads), FIXED(Book, T_BOOL, has_shared), END_OF_MEMBERS,
};
static PyMethodDef book_methods[] = {
    FAST("on_host", book_on_host), {"on_cuda", book_on_cuda, METH_VARARGS, NULL},
    FAST("move", book_move),       {"turn", book_turn, METH_O, NULL},
    {"forget", book_forget, METH_O, NULL}, {NULL, NULL, 0, NULL},
};
static PyMemberDef place_members[] = {
    FIXED(Place, T_OBJECT, row), FIXED(Place, T_OBJECT_EX, book), MEMBER(Place, T_BOOL, off),
    END_OF_MEMBERS,
};
static PyMemberDef seen_members[] = {
    FIXED(Seen, T_OBJECT_EX, ref), FIXED(Seen, T_LONGLONG, version),
    MEMBER(Seen, T_OBJECT_EX, grad), END_OF_MEMBERS,
};

/* The row that holds the tensor, None once it is in a later window. */
static PyObject *seen_get_row(PyObject *object, void *Py_UNUSED(context))
{
    Seen *self = (Seen *)object;
    int is_held = Py_TYPE(self->row) == row_type && ((Row *)self->row)->window == self->window;
    return Py_NewRef(is_held ? self->row : Py_None);
}

static int seen_set_row(PyObject *object, PyObject *row, void *Py_UNUSED(context))
{
    Seen *self = (Seen *)object;
    if (!row || (row != Py_None && Py_TYPE(row) != row_type)) {
        PyErr_SetString(PyExc_TypeError, "`row` must be a Row or None.");
        return -1;
    }
    self->window = row == Py_None ? -1 : ((Row *)row)->window;
    PUT(self->row, Py_NewRef(row));
    return 0;
}

static PyGetSetDef seen_properties[] = {
    {"row", seen_get_row, seen_set_row, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef hook_members[] = {
    FIXED(GradHook, T_OBJECT_EX, owner), FIXED(GradHook, T_OBJECT_EX, spots),
    FIXED(GradHook, T_BOOL, returned), END_OF_MEMBERS,
};
static PyMemberDef native_members[] = {
    MEMBER(Native, T_BOOL, live), MEMBER(Native, T_BOOL, alone),
    MEMBER(Native, T_BOOL, hears_gradients),
    MEMBER(Native, T_BOOL, bound), MEMBER(Native, T_BOOL, waiting),
    MEMBER(Native, T_LONGLONG, spent_ns), END_OF_MEMBERS,
};
static PyMethodDef native_methods[] = {
    {"bind", native_bind, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL},
};
static PyMethodDef lane_methods[] = {
    {"enter", lane_enter, METH_O, NULL}, FAST("leave", lane_leave), FAST("put", lane_put),
    {"has", lane_has, METH_O, NULL}, {NULL, NULL, 0, NULL},
};

static PyMethodDef point_methods[] = {
    {"add", point_add, METH_O, NULL}, {NULL, NULL, 0, NULL},
};
static PyMethodDef bunch_methods[] = {
    {"add", bunch_add, METH_O, NULL}, {NULL, NULL, 0, NULL},
};

#define SLOT(id, value) {id, (void *)(value)}
#define TYPE(name, Type, ...)                                                                        \
    static PyType_Slot name##_slots[] = {                                                            \
        SLOT(Py_tp_traverse, name##_traverse), SLOT(Py_tp_clear, name##_clear),                      \
        SLOT(Py_tp_dealloc, name##_dealloc), SLOT(Py_tp_new, PyType_GenericNew), __VA_ARGS__,        \
        {0, NULL}};                                                                                  \
    static PyType_Spec name##_spec = {"sonde.capture._native." #Type, sizeof(Type), 0,                \
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, name##_slots}

TYPE(row, Row, SLOT(Py_tp_init, row_init), SLOT(Py_tp_members, row_members));
TYPE(book, Book, SLOT(Py_tp_members, book_members), SLOT(Py_tp_methods, book_methods));
TYPE(place, Place, SLOT(Py_tp_init, place_init), SLOT(Py_tp_members, place_members));
TYPE(seen, Seen, SLOT(Py_tp_init, seen_init), SLOT(Py_tp_members, seen_members),
     SLOT(Py_tp_getset, seen_properties));
TYPE(hook, GradHook, SLOT(Py_tp_init, hook_init), SLOT(Py_tp_call, hook_call),
     SLOT(Py_tp_members, hook_members));
TYPE(native, Native, SLOT(Py_tp_init, native_init), SLOT(Py_tp_members, native_members),
     SLOT(Py_tp_methods, native_methods));
TYPE(lane, Lane, SLOT(Py_tp_init, lane_init), SLOT(Py_tp_methods, lane_methods));

TYPE(point, Point, SLOT(Py_tp_init, point_init), SLOT(Py_tp_methods, point_methods));

TYPE(bunch, Bunch, SLOT(Py_tp_init, bunch_init), SLOT(Py_tp_methods, bunch_methods));

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type && PyModule_AddType(module, *type) == 0;
}

static PyObject *use_number(PyObject *Py_UNUSED(module), PyObject *number)
{
    PUT(hook_number, Py_NewRef(number));
    Py_RETURN_NONE;
}

static int begin(PyObject *module)
{
    PyObject *collections = PyImport_ImportModule("collections");
    ordered_dict = collections ? PyObject_GetAttrString(collections, "OrderedDict") : NULL;
    Py_XDECREF(collections);
    n_version = PyUnicode_InternFromString("_version");
    n_grad_fn = PyUnicode_InternFromString("grad_fn");
    n_requires_grad = PyUnicode_InternFromString("requires_grad");
    n_backward_hooks = PyUnicode_InternFromString("_backward_hooks");
    n_register = PyUnicode_InternFromString("_register_hook_dict");
    n_is_neg = PyUnicode_InternFromString("is_neg");
    n_asleep = PyUnicode_InternFromString("asleep");
    n_gradient = PyUnicode_InternFromString("gradient");
    n_place = PyUnicode_InternFromString("place");
    n_training = PyUnicode_InternFromString("training");
    hook_number = PyLong_FromLong(-1);
    int well = ordered_dict && hook_number && n_place && add_type(module, &row_spec, &row_type) &&
               add_type(module, &book_spec, &book_type) &&
               add_type(module, &place_spec, &place_type) &&
               add_type(module, &seen_spec, &seen_type) &&
               add_type(module, &hook_spec, &hook_type) &&
               add_type(module, &native_spec, &native_type) &&
               add_type(module, &lane_spec, &lane_type) &&
               add_type(module, &point_spec, &point_type) &&
               add_type(module, &bunch_spec, &bunch_type) &&
               PyModule_AddIntMacro(module, MOST_PLACES) == 0 &&
               PyModule_AddIntMacro(module, MOST_TOGETHER) == 0 &&
               PyModule_AddStringConstant(module, "SOURCES", SONDE_SOURCES) == 0;
    return well ? 0 : -1;
}

static PyMethodDef methods[] = {
    {"use_number", use_number, METH_O, NULL}, {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)begin},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* whoever calls holds the lock of what is changed */
#endif
    {0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "sonde.capture._native", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module);
}
