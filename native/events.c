/* A list of 64-bit integers, of which numpy reads a slice in place. */

#include "native.h"

#include <string.h>

#define LEAST_CAPACITY 64
#define KEPT_CAPACITY (1 << 16) /* integers; a longer array shrinks once it is mostly empty */

static Events *events_new(PyTypeObject *type, Py_ssize_t length, int is_slice)
{
    Events *events = (Events *)PyType_GenericAlloc(type, 0);
    if (events == NULL)
        return NULL;
    events->is_slice = is_slice;
    if (length) {
        events->items = PyMem_Malloc((size_t)length * sizeof(int64_t));
        if (events->items == NULL) {
            Py_DECREF((PyObject *)events);
            return (Events *)PyErr_NoMemory();
        }
        events->length = events->capacity = length;
    }
    return events;
}

static void events_dealloc(Events *events)
{
    PyTypeObject *type = Py_TYPE((PyObject *)events);
    PyMem_Free(events->items);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(events);
    Py_DECREF(type);
}

static int events_allocate(Events *events, Py_ssize_t capacity)
{
    if (capacity > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(int64_t)) {
        PyErr_NoMemory();
        return -1;
    }
    int64_t *items = PyMem_Realloc(events->items, (size_t)capacity * sizeof(int64_t));
    if (items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    events->items = items;
    events->capacity = capacity;
    return 0;
}

int events_grow(Events *events, Py_ssize_t more)
{
    Py_ssize_t needed = events->length + more;
    return events_allocate(events, needed < LEAST_CAPACITY ? LEAST_CAPACITY : needed + needed / 2);
}

/* Replace `removed` integers at `at` by those of a tuple, which may be NULL. */
static int events_splice(Events *events, Py_ssize_t at, Py_ssize_t removed, PyObject *integers)
{
    Py_ssize_t added = integers == NULL ? 0 : PyTuple_Size(integers);
    if (added > removed && events_reserve(events, added - removed) < 0)
        return -1;
    Py_ssize_t behind = events->length - at - removed;
    if (behind && added != removed)
        memmove(events->items + at + added, events->items + at + removed, (size_t)behind * sizeof(int64_t));
    for (Py_ssize_t i = 0; i < added; i++)
        events->items[at + i] = PyLong_AsLongLong(PyTuple_GetItem(integers, i));
    events->length += added - removed;
    if (events->capacity > KEPT_CAPACITY && events->length < events->capacity / 4)
        return events_allocate(events, KEPT_CAPACITY > 2 * events->length ? KEPT_CAPACITY : 2 * events->length);
    return 0;
}

int events_check_not_slice(Events *events)
{
    if (events->is_slice)
        PyErr_SetString(PyExc_TypeError, "a slice of events does not change");
    return events->is_slice ? -1 : 0;
}

/* Return a tuple of integers that fit; NULL with an exception. Reading it later runs no code of Python. */
static PyObject *integers_of(PyObject *values)
{
    PyObject *integers = PySequence_Tuple(values); /* a tuple as it is */
    for (Py_ssize_t i = 0; integers != NULL && i < PyTuple_Size(integers); i++) {
        PyObject *each = PyTuple_GetItem(integers, i);
        if (!PyLong_Check(each))
            PyErr_SetString(PyExc_TypeError, "events are integers");
        else if (PyLong_AsLongLong(each) != -1 || !PyErr_Occurred())
            continue;
        Py_CLEAR(integers);
    }
    return integers;
}

static PyObject *events_extend(Events *events, PyObject *values)
{
    PyObject *integers = integers_of(values);
    if (integers == NULL)
        return NULL;
    int result = events_check_not_slice(events);
    if (result == 0)
        result = events_splice(events, events->length, 0, integers);
    Py_DECREF(integers);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static Py_ssize_t events_length(Events *events)
{
    return events->length;
}

static PyObject *events_item(Events *events, Py_ssize_t at)
{
    if (at < 0 || at >= events->length) {
        PyErr_SetString(PyExc_IndexError, "index of events out of range");
        return NULL;
    }
    return PyLong_FromLongLong(events->items[at]);
}

static PyObject *events_subscript(Events *events, PyObject *key)
{
    Py_ssize_t begin, end, step;
    if (!PySlice_Check(key)) {
        Py_ssize_t at = PyNumber_AsSsize_t(key, PyExc_IndexError);
        return at == -1 && PyErr_Occurred() ? NULL : events_item(events, at < 0 ? at + events->length : at);
    }
    if (PySlice_Unpack(key, &begin, &end, &step) < 0)
        return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(events->length, &begin, &end, step);
    Events *slice = events_new(Py_TYPE((PyObject *)events), count, 1);
    if (slice != NULL && step == 1 && count)
        memcpy(slice->items, events->items + begin, (size_t)count * sizeof(int64_t));
    else if (slice != NULL)
        for (Py_ssize_t i = 0; i < count; i++)
            slice->items[i] = events->items[begin + i * step];
    return (PyObject *)slice;
}

static int events_assign(Events *events, PyObject *key, PyObject *values)
{
    Py_ssize_t begin, end, step;
    if (events_check_not_slice(events) < 0)
        return -1;
    if (!PySlice_Check(key)) {
        PyErr_SetString(PyExc_TypeError, "events are replaced by a slice: one consists of two integers");
        return -1;
    }
    if (PySlice_Unpack(key, &begin, &end, &step) < 0)
        return -1;
    if (step != 1) {
        PyErr_SetString(PyExc_ValueError, "only neighbouring events can be replaced");
        return -1;
    }
    PyObject *integers = values == NULL ? NULL : integers_of(values);
    if (values != NULL && integers == NULL)
        return -1;
    /* Not before the values are read, which may run Python code. */
    Py_ssize_t removed = PySlice_AdjustIndices(events->length, &begin, &end, step);
    int result = events_splice(events, begin, removed, integers);
    Py_XDECREF(integers);
    return result;
}

/* Only a slice lends its memory, because an array must not move while another reads it. */
static int events_get_buffer(Events *events, Py_buffer *view, int flags)
{
    if (!events->is_slice) {
        PyErr_SetString(PyExc_BufferError, "events lend no memory while they are written; take a slice");
        view->obj = NULL;
        return -1;
    }
    static int64_t nothing; /* a view has an address, also of no bytes */
    void *memory = events->items == NULL ? &nothing : events->items;
    return PyBuffer_FillInfo(view, (PyObject *)events, memory, events->length * (Py_ssize_t)sizeof(int64_t), 1, flags);
}

static PyMethodDef events_methods[] = {
    {"extend", (PyCFunction)events_extend, METH_O, "Append integers."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot events_slots[] = {
    {Py_tp_doc, "A list of 64-bit integers; numpy reads a slice of it in place."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, events_dealloc},
    {Py_tp_methods, events_methods},
    {Py_sq_length, events_length},
    {Py_sq_item, events_item},
    {Py_mp_length, events_length},
    {Py_mp_subscript, events_subscript},
    {Py_mp_ass_subscript, events_assign},
    {Py_bf_getbuffer, events_get_buffer},
    {0, NULL},
};

PyType_Spec events_spec = {
    .name = "training_profiler.recording._native.Events",
    .basicsize = sizeof(Events),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = events_slots,
};
