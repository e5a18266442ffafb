/* What hooks do: on modules, on gradients, and taps in compiled code. */
#include "native.h"

#include <time.h>

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* False with an exception if somebody interrupts the wait. */
static int lock(const Native *native)
{
    PyObject *taken = PyObject_CallNoArgs(native->acquire);
    Py_XDECREF(taken);
    return taken != NULL;
}

static void unlock(const Native *native)
{
    PyObject *given = PyObject_CallNoArgs(native->release);
    if (!given)
        PyErr_Clear();
    Py_XDECREF(given);
}

/* The gradient of a tensor that was seen at the spots of a hook. */
static int add_gradient(const GradHook *hook, PyObject *grad)
{
    Place *places[MOST_PLACES];
    View view;
    Py_ssize_t n = PyList_Size(hook->spots), found = 0;
    int done = NOT_HANDLED;
    if (n < 1 || n > MOST_PLACES || !look(hook->native, grad, &view))
        return NOT_HANDLED;
    for (; found < n; found++) {
        PyObject *place = PyObject_GetAttr(PyList_GetItem(hook->spots, found), n_place);
        if (!place || Py_TYPE(place) != place_type) {
            PyErr_Clear();
            Py_XDECREF(place);
            break;
        }
        places[found] = (Place *)place;
    }
    if (found == n)
        done = add_at(hook->native, places, n, &view);
    while (found > 0)
        Py_DECREF((PyObject *)places[--found]);
    return done;
}

PyObject *hook_call(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    GradHook *self = (GradHook *)object;
    PyObject *grad = PyTuple_Size(args) == 1 ? PyTuple_GetItem(args, 0) : NULL;
    if (!grad) {
        PyErr_Format(PyExc_TypeError, "A hook takes one gradient, got %zd.", PyTuple_Size(args));
        return NULL;
    }
    if (grad == Py_None) /* of an output of compiled code that nobody used */
        Py_RETURN_NONE;
    Native *native = self->native;
    if (native && native->hears_gradients && !self->returned) {
        int64_t began = now();
        if (!lock(native))
            return NULL;
        int done = native->hears_gradients ? add_gradient(self, grad) : NOT_HANDLED;
        unlock(native);
        if (done == HANDLED) {
            native->spent_ns += now() - began;
            Py_RETURN_NONE;
        }
    }
    PyObject *asleep = PyObject_GetAttr(self->owner, n_asleep);
    if (!asleep)
        return NULL;
    int sleeps = asleep == Py_True;
    Py_DECREF(asleep);
    if (sleeps)
        Py_RETURN_NONE;
    return PyObject_CallMethodObjArgs(self->owner, n_gradient, self->spots, grad,
                                      self->returned ? Py_True : Py_False, NULL);
}

static PyObject *new_hook(Native *native, PyObject *owner, PyObject *spot)
{
    GradHook *hook = (GradHook *)PyType_GenericAlloc(hook_type, 0);
    if (!hook)
        return NULL;
    hook->native = (Native *)Py_NewRef((PyObject *)native);
    hook->owner = Py_NewRef(owner);
    hook->spots = PyList_New(1);
    if (!hook->spots) {
        Py_DECREF(hook);
        return NULL;
    }
    PyList_SetItem(hook->spots, 0, Py_NewRef(spot));
    return (PyObject *)hook;
}

/* Have the hook called with the gradient of a tensor that has no hooks yet; as `hook_gradient`. */
static int hang(PyObject *x, PyObject *grad_fn, PyObject *hook)
{
    PyObject *hooks = PyObject_CallNoArgs(ordered_dict);
    int well = hooks && PyObject_SetItem(hooks, hook_number, hook) == 0 &&
               PyObject_SetAttr(x, n_backward_hooks, hooks) == 0;
    if (well) {
        PyObject *done = PyObject_CallMethodObjArgs(grad_fn, n_register, x, NULL);
        well = done != NULL;
        Py_XDECREF(done);
        if (!well) {
            PyErr_Clear();
            PyObject_SetAttr(x, n_backward_hooks, Py_None);
        }
    }
    Py_XDECREF(hooks);
    if (!well)
        PyErr_Clear();
    return well;
}

/* Take that hook off again. The dict stays where it is, empty: whoever hooks the tensor next uses
   it. */
static void take_off(PyObject *x)
{
    PyObject *hooks = PyObject_GetAttr(x, n_backward_hooks);
    if (!hooks || PyObject_DelItem(hooks, hook_number) < 0)
        PyErr_Clear();
    Py_XDECREF(hooks);
}

/* What a weak reference refers to, NULL if it is gone. */
static PyObject *referent(PyObject *reference)
{
    PyObject *found = NULL;
#if !defined(Py_LIMITED_API) && PY_VERSION_HEX >= 0x030D0000
    PyWeakref_GetRef(reference, &found);
#else
    found = Py_XNewRef(PyWeakref_GetObject(reference));
#endif
    if (!found || found == Py_None) {
        PyErr_Clear();
        Py_XDECREF(found);
        return NULL;
    }
    return found;
}

static int refers_to(PyObject *reference, PyObject *object)
{
    PyObject *found = referent(reference);
    Py_XDECREF(found);
    return found == object;
}

/* What is known of the tensor in this pass, borrowed; NULL if nothing, or if it has changed since.
   -1 in `version` if that cannot be told. */
static Seen *known(const Native *native, PyObject *x, PyObject *key, long long *version)
{
    PyObject *counted = PyObject_GetAttr(x, n_version);
    *version = counted ? PyLong_AsLongLong(counted) : -1;
    Py_XDECREF(counted);
    if (*version < 0) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *found = PyDict_GetItemWithError(native->seen, key);
    if (!found || Py_TYPE(found) != seen_type)
        return NULL;
    Seen *seen = (Seen *)found;
    return seen->version == *version && refers_to(seen->ref, x) ? seen : NULL;
}

static Seen *new_seen(PyObject *x, long long version)
{
    PyObject *reference = PyWeakref_NewRef(x, NULL);
    Seen *seen = reference ? (Seen *)PyType_GenericAlloc(seen_type, 0) : NULL;
    if (!seen) {
        Py_XDECREF(reference);
        return NULL;
    }
    seen->ref = reference;
    seen->row = Py_NewRef(Py_None);
    seen->grad = Py_NewRef(Py_None);
    seen->version = version;
    return seen;
}

/* Whether the pass that is recorded runs in this thread. */
static int is_here(const Native *native)
{
    return native->live && native->bound && native->thread == PyThread_get_thread_ident();
}

/* Whether this is no backward pass, in which a part of a model may be called again. */
static int is_forward(const Native *native)
{
    PyObject *backward = PyObject_CallNoArgs(native->backward);
    int is = backward && PyLong_AsLongLong(backward) == -1;
    Py_XDECREF(backward);
    PyErr_Clear();
    return is;
}

/* Whether the lane may go on: the module is itself, and called with gradients. */
static int is_usual(const Lane *lane, PyObject *module)
{
    const Native *native = lane->native;
    return is_here(native) && !native->waiting && refers_to(lane->module, module) &&
           is_forward(native) && is_true(PyObject_CallNoArgs(native->has_gradients));
}

/* The innermost call that is running: its tap, borrowed, and its number. */
static PyObject *innermost(const Native *native, long long *call)
{
    Py_ssize_t n = PyList_Size(native->stack);
    PyObject *top = n > 0 ? PyList_GetItem(native->stack, n - 1) : NULL;
    if (!top || !PyTuple_Check(top) || PyTuple_Size(top) != 2) {
        PyErr_Clear();
        return NULL;
    }
    *call = PyLong_AsLongLong(PyTuple_GetItem(top, 1));
    return PyTuple_GetItem(top, 0);
}

static long long calls_of(const Lane *lane)
{
    PyObject *found = PyDict_GetItemWithError(lane->native->calls, lane->tap);
    return found ? PyLong_AsLongLong(found) : 0;
}

static int count_call(const Lane *lane, long long call)
{
    PyObject *number = PyLong_FromLongLong(call + 1);
    int well = number && PyDict_SetItem(lane->native->calls, lane->tap, number) == 0;
    Py_XDECREF(number);
    return well;
}

static int lane_enters(const Lane *lane, PyObject *module)
{
    const Native *native = lane->native;
    long long outer = -1;
    if (!lane->enters || lane->looks_at_inputs || !is_usual(lane, module) ||
        !innermost(native, &outer) || outer < 0)
        return NOT_HANDLED;
    long long call = calls_of(lane);
    PyObject *entry = call < 0 ? NULL : Py_BuildValue("(OL)", lane->tap, call);
    int well = entry && count_call(lane, call) && PyList_Append(native->stack, entry) == 0;
    Py_XDECREF(entry);
    if (!well)
        PyErr_Clear();
    return well ? HANDLED : NOT_HANDLED;
}

/* What is to be done about the gradient of an output. */
typedef struct {
    PyObject *spot, *grad_fn;
    GradHook *hook; /* borrowed: there is one already */
} Wish;

/* Whether it can be done here; `wish->spot` is NULL if there is nothing to do. */
static int plan_gradient(PyObject *x, PyObject *spot, const Seen *seen, Wish *wish)
{
    wish->spot = wish->grad_fn = NULL;
    wish->hook = NULL;
    if (spot == Py_None || !is_true(PyObject_GetAttr(x, n_requires_grad)))
        return 1;
    wish->spot = spot;
    if (seen && seen->grad != Py_None) {
        wish->hook = (GradHook *)seen->grad;
        return Py_TYPE(seen->grad) == hook_type;
    }
    PyObject *hooks = PyObject_GetAttr(x, n_backward_hooks);
    int is_free = hooks == Py_None;
    Py_XDECREF(hooks);
    wish->grad_fn = is_free ? PyObject_GetAttr(x, n_grad_fn) : NULL;
    PyErr_Clear();
    return wish->grad_fn && wish->grad_fn != Py_None;
}

/* The number of the call that ends, -1 if it is not handled. */
static long long lane_leaves(const Lane *lane, PyObject *module, PyObject *x)
{
    Native *native = lane->native;
    View view;
    Wish wish = {NULL, NULL, NULL};
    Seen *seen = NULL, *made = NULL;
    PyObject *key = NULL, *hook = NULL;
    long long call, version, done = -1;

    /* Look: nothing changes yet. */
    if ((PyObject *)Py_TYPE(x) != native->tensor || !is_usual(lane, module))
        return -1;
    PyObject *top = innermost(native, &call);
    if (!top || call < 0)
        return -1;
    if (lane->enters ? top != lane->tap : (call = calls_of(lane)) < 0)
        return -1;
    if (call >= PyList_Size(lane->entries) || !look(native, x, &view))
        return -1;
    PyObject *entry = PyList_GetItem(lane->entries, (Py_ssize_t)call);
    if (entry == Py_None)
        return -1;
    PyObject *given = PyTuple_GetItem(entry, 0);
    Place *place = given == Py_None ? NULL : (Place *)given;
    if (place && (!is_for(native, place, &view) || !make_room(place->book, 1)))
        return -1;
    key = PyLong_FromVoidPtr(x);
    if (!key)
        goto end;
    seen = known(native, x, key, &version);
    if (version < 0 || !plan_gradient(x, PyTuple_GetItem(entry, 1), seen, &wish))
        goto end;
    Row *held = seen && Py_TYPE(seen->row) == row_type ? (Row *)seen->row : NULL;
    if (held && held->window != seen->window)
        held = NULL; /* by now it holds something else */
    int shares = place && held && can_share(place, held);
    if (place && !shares && !is_open(place))
        goto end;
    if (!seen && !(made = new_seen(x, version)))
        goto end;

    /* Do. */
    if (wish.grad_fn && (!(hook = new_hook(native, lane->owner, wish.spot)) ||
                         !hang(x, wish.grad_fn, hook)))
        goto end;
    if (place && !shares && add(place, &view) != HANDLED) {
        native->live = 0; /* the device does not do as it is told: Python will see why */
        if (hook)
            take_off(x); /* and put its own there: the gradient counts once */
        goto end;
    }
    done = call;
    if (made && PyDict_SetItem(native->seen, key, (PyObject *)made) == 0)
        seen = made;
    if (wish.hook)
        PyList_Append(wish.hook->spots, wish.spot);
    if (place) {
        if (shares)
            share(place, held);
        else
            enter_row(place);
        if (seen && !shares) {
            PUT(seen->row, Py_NewRef((PyObject *)place->row));
            seen->window = place->row->window;
        }
    }
    if (seen && hook)
        PUT(seen->grad, Py_NewRef(hook));
    if (lane->enters) {
        Py_ssize_t n = PyList_Size(native->stack);
        PyList_SetSlice(native->stack, n - 1, n, NULL);
    } else {
        count_call(lane, call);
    }
end:
    PyErr_Clear();
    Py_XDECREF(key);
    Py_XDECREF(hook);
    Py_XDECREF((PyObject *)made);
    Py_XDECREF(wish.grad_fn);
    return done;
}

PyObject *lane_enter(PyObject *self, PyObject *module)
{
    const Lane *lane = (Lane *)self;
    Native *native = lane->native;
    if (!native->live || !native->bound)
        Py_RETURN_FALSE;
    int64_t began = now();
    if (!lock(native))
        return NULL;
    int done = lane_enters(lane, module);
    unlock(native);
    if (done != HANDLED)
        Py_RETURN_FALSE;
    native->spent_ns += now() - began;
    Py_RETURN_TRUE;
}

PyObject *lane_leave(PyObject *self, PyObject *const *arguments, Py_ssize_t n)
{
    if (n != 2) {
        PyErr_Format(PyExc_TypeError, "`leave` takes a module and its output, got %zd.", n);
        return NULL;
    }
    const Lane *lane = (Lane *)self;
    Native *native = lane->native;
    if (!native->live || !native->bound)
        return PyLong_FromLong(-1);
    int64_t began = now();
    if (!lock(native))
        return NULL;
    long long call = lane_leaves(lane, arguments[0], arguments[1]);
    unlock(native);
    if (call >= 0)
        native->spent_ns += now() - began;
    return PyLong_FromLongLong(call);
}

PyObject *lane_put(PyObject *object, PyObject *const *arguments, Py_ssize_t n)
{
    Lane *self = (Lane *)object;
    long long call = n == 3 ? PyLong_AsLongLong(arguments[0]) : -1;
    if (call < 0 || (arguments[1] != Py_None && Py_TYPE(arguments[1]) != place_type)) {
        PyErr_Clear();
        PyErr_SetString(PyExc_TypeError, "`put` takes a call, a Place or None, and a spot or None.");
        return NULL;
    }
    while (PyList_Size(self->entries) <= call)
        if (PyList_Append(self->entries, Py_None) < 0)
            return NULL;
    PyObject *entry = PyTuple_Pack(2, arguments[1], arguments[2]);
    if (!entry || PyList_SetItem(self->entries, (Py_ssize_t)call, entry) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *lane_has(PyObject *object, PyObject *number)
{
    Lane *self = (Lane *)object;
    long long call = PyLong_AsLongLong(number);
    if (call == -1 && PyErr_Occurred())
        return NULL;
    if (call < 0 || call >= PyList_Size(self->entries))
        Py_RETURN_FALSE;
    PyObject *entry = PyList_GetItem(self->entries, (Py_ssize_t)call);
    if (entry == Py_None)
        Py_RETURN_FALSE;
    PyObject *place = PyTuple_GetItem(entry, 0);
    return PyBool_FromLong(place == Py_None || !((Place *)place)->off);
}

/* Whether taps in compiled code are heard here, and nowhere else. */
static int hears(const Point *point)
{
    const Native *native = point->native;
    return point->is_gradient ? native->hears_gradients : native->live && native->alone;
}

/* Whether what compiled code sees now belongs to the pass that is recorded. */
static int is_in_pass(const Point *point)
{
    const Native *native = point->native;
    if (point->is_gradient)
        return native->hears_gradients &&
               (native->bound || native->thread != PyThread_get_thread_ident());
    if (!is_here(native) || !is_forward(native))
        return 0;
    if (PyList_Size(native->stack) > 0)
        return 1;
    /* Nobody calls the model in our sight: its mode says whether this is still the same pass. */
    PyObject *root = referent(native->root);
    int trains = root && is_true(PyObject_GetAttr(root, n_training));
    Py_XDECREF(root);
    return trains;
}

PyObject *point_add(PyObject *object, PyObject *x)
{
    Point *self = (Point *)object;
    Native *native = self->native;
    View view;
    if (!hears(self))
        Py_RETURN_FALSE;
    int64_t began = now();
    int done = NOT_HANDLED;
    if (!lock(native))
        return NULL;
    if (is_in_pass(self) && look(native, x, &view))
        done = add_at(native, self->places, self->n, &view);
    unlock(native);
    if (done != HANDLED)
        Py_RETURN_FALSE;
    native->spent_ns += now() - began;
    Py_RETURN_TRUE;
}

PyObject *bunch_add(PyObject *object, PyObject *tensors)
{
    Bunch *self = (Bunch *)object;
    View views[MOST_TOGETHER];
    if (self->n < 1 || !PyList_Check(tensors) || PyList_Size(tensors) != self->n ||
        !hears(self->points[0]))
        Py_RETURN_FALSE;
    Native *native = self->points[0]->native;
    int64_t began = now();
    if (!lock(native))
        return NULL;
    int done = is_in_pass(self->points[0]) ? HANDLED : NOT_HANDLED;
    for (Py_ssize_t i = 0; done == HANDLED && i < self->n; i++)
        if (!look(native, PyList_GetItem(tensors, i), &views[i]))
            done = NOT_HANDLED;
    if (done == HANDLED)
        done = add_together(native, self->points, self->n, views);
    unlock(native);
    if (done != HANDLED)
        Py_RETURN_FALSE;
    native->spent_ns += now() - began;
    Py_RETURN_TRUE;
}
