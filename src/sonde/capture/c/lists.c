/* Questions to many objects at once: what Python would ask them one by one, at every step. */
#include "native.h"

#include <stdlib.h>

/* Words that grow. */
typedef struct {
    int64_t *words;
    Py_ssize_t n, room;
} Words;

static int put(Words *to, int64_t word)
{
    if (to->n == to->room) {
        Py_ssize_t room = 2 * to->room + 64;
        int64_t *grown = realloc(to->words, (size_t)room * sizeof(int64_t));
        if (!grown)
            return 0;
        to->words = grown;
        to->room = room;
    }
    to->words[to->n++] = word;
    return 1;
}

static int put_values(Words *to, PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value))
        if (!put(to, (int64_t)(intptr_t)value))
            return 0;
    return 1;
}

/* 1 if all was asked, 0 if that is for Python to do, -1 with an exception. */
static int put_held(Words *to, PyObject *object, PyObject *dicts, PyObject *name)
{
    PyObject *own = PyObject_GenericGetDict(object, NULL);
    int well = own != NULL;
    for (Py_ssize_t i = 0; well == 1 && i < PyTuple_Size(dicts); i++) {
        PyObject *dict = PyDict_GetItemWithError(own, PyTuple_GetItem(dicts, i));
        well = dict && PyDict_Check(dict) ? 1 : 0;
        if (well && !put_values(to, dict))
            well = -1;
    }
    if (well == 1 && !put(to, (int64_t)(intptr_t)PyDict_GetItemWithError(own, name)))
        well = -1;
    Py_XDECREF(own);
    if (well < 0)
        PyErr_NoMemory();
    return well;
}

PyObject *holdings(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t n)
{
    if (n != 3 || !PyList_Check(arguments[0]) || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "`holdings` takes a list of weak references, a tuple of "
                                         "names of dicts, and a name.");
        return NULL;
    }
    Words found = {NULL, 0, 0};
    int well = 1;
    for (Py_ssize_t i = 0; well == 1 && i < PyList_Size(arguments[0]); i++) {
        PyObject *object = referent(PyList_GetItem(arguments[0], i));
        if (object)
            well = put_held(&found, object, arguments[1], arguments[2]);
        Py_XDECREF(object);
    }
    PyObject *told = NULL;
    if (well == 1)
        told = PyBytes_FromStringAndSize((const char *)found.words,
                                         found.n * (Py_ssize_t)sizeof(int64_t));
    free(found.words);
    if (well == 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return told;
}

PyObject *referents(PyObject *Py_UNUSED(module), PyObject *references)
{
    if (!PyList_Check(references)) {
        PyErr_SetString(PyExc_TypeError, "`referents` takes a list of weak references.");
        return NULL;
    }
    Py_ssize_t n = PyList_Size(references);
    PyObject *found = PyList_New(n);
    for (Py_ssize_t i = 0; found && i < n; i++) {
        PyObject *object = referent(PyList_GetItem(references, i));
        PyList_SetItem(found, i, object ? object : Py_NewRef(Py_None));
    }
    return found;
}

PyObject *signs(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t n)
{
    if (n != 2 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "`signs` takes a list of objects and a name.");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(arguments[0]);
    int64_t *found = malloc((size_t)(2 * count + 1) * sizeof(int64_t));
    if (!found)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *object = PyList_GetItem(arguments[0], i);
        PyObject *value = PyObject_GetAttr(object, arguments[1]);
        int is = value ? PyObject_IsTrue(value) : -1;
        Py_XDECREF(value);
        if (is < 0) {
            free(found);
            return NULL;
        }
        found[2 * i] = (int64_t)(intptr_t)object;
        found[2 * i + 1] = is;
    }
    PyObject *told = PyBytes_FromStringAndSize((const char *)found,
                                               2 * count * (Py_ssize_t)sizeof(int64_t));
    free(found);
    return told;
}

/* What one owner keeps under these keys, added to `found`; whether that is all as it should be. */
static int pick_from(PyObject *kept, PyObject *made, PyTypeObject *type, PyObject *found)
{
    if (!PyDict_Check(kept) || !PyTuple_Check(made) || PyTuple_Size(made) != 2 ||
        PyDict_Size(kept) != PyLong_AsSsize_t(PyTuple_GetItem(made, 0)))
        return 0;
    PyObject *keys = PyTuple_GetItem(made, 1);
    for (Py_ssize_t i = 0; PyList_Check(keys) && i < PyList_Size(keys); i++) {
        PyObject *x = PyDict_GetItemWithError(kept, PyList_GetItem(keys, i));
        if (!x || !PyType_IsSubtype(Py_TYPE(x), type) || PyList_Append(found, x) < 0)
            return 0;
    }
    return 1;
}

PyObject *pick(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t n)
{
    if (n != 4 || !PyDict_Check(arguments[0]) || !PyList_Check(arguments[1]) ||
        !PyList_Check(arguments[2]) || !PyType_Check(arguments[3])) {
        PyErr_SetString(PyExc_TypeError, "`pick` takes a dict, a list of its keys, a list of what "
                                         "their values are made of, and a type.");
        return NULL;
    }
    PyObject *owner, *kept, *found = PyList_New(0);
    Py_ssize_t at = 0, i = 0, count = PyList_Size(arguments[1]);
    int well = found && PyList_Size(arguments[2]) == count && PyDict_Size(arguments[0]) == count;
    while (well && PyDict_Next(arguments[0], &at, &owner, &kept)) {
        well = i < count && owner == PyList_GetItem(arguments[1], i) &&
               pick_from(kept, PyList_GetItem(arguments[2], i), (PyTypeObject *)arguments[3], found);
        i++;
    }
    if (well)
        return found;
    Py_XDECREF(found);
    PyErr_Clear();
    Py_RETURN_NONE;
}

PyObject *measure(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t n)
{
    if (n != 3 || !PyTuple_Check(arguments[1]) || !PyList_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "`measure` takes the exchange, a tuple of types, and a "
                                         "list of tensors.");
        return NULL;
    }
    const Exchange *exchange = PyCapsule_GetPointer(arguments[0], "dlpack_exchange_api");
    Py_ssize_t count = PyList_Size(arguments[2]), kinds = PyTuple_Size(arguments[1]);
    if (!exchange)
        return NULL;
    int64_t *where = malloc((size_t)(3 * count + 1) * sizeof(int64_t)), *what = where + count;
    if (!where)
        return PyErr_NoMemory();
    PyObject *found = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *x = PyList_GetItem(arguments[2], i);
        View view;
        Py_ssize_t k = 0;
        while (k < kinds && (PyObject *)Py_TYPE(x) != PyTuple_GetItem(arguments[1], k))
            k++;
        if (k == kinds || exchange->major != 1 || !find(exchange, x, &view)) {
            found = Py_NewRef(Py_None);
            break;
        }
        where[i] = (int64_t)(intptr_t)view.data;
        what[2 * i] = view.n;
        what[2 * i + 1] =
            view.format | (int64_t)view.device_type << 16 | (int64_t)view.device << 32;
    }
    if (!found)
        found = Py_BuildValue("(y#y#)", (const char *)where, count * (Py_ssize_t)sizeof(int64_t),
                              (const char *)what, 2 * count * (Py_ssize_t)sizeof(int64_t));
    free(where);
    return found;
}
