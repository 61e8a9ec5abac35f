/* The functions that write an event: what a `with` statement calls of a section. */

#include "native.h"

#include <time.h>

/* Return the time in `now_ns`. Return -1 with an exception. The clock may be Python code. */
static int read_clock(PyObject *clock, int64_t *now_ns)
{
#ifdef CLOCK_MONOTONIC
    if (clock == Py_None) {
        struct timespec now;
        if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        *now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
        return 0;
    }
#endif
    PyObject *time = PyObject_CallNoArgs(clock);
    if (time == NULL)
        return -1;
    *now_ns = PyLong_AsLongLong(time);
    Py_DECREF(time);
    return *now_ns == -1 && PyErr_Occurred() ? -1 : 0;
}

int write_event(Writer *writer, int64_t code)
{
    int64_t now_ns;
    Events *events = writer->events;
    /* The clock may be Python code, so there is room only after it. */
    if (read_clock(writer->clock, &now_ns) < 0 || events_reserve(events, 2) < 0)
        return -1;
    events->items[events->length] = now_ns;
    events->items[events->length + 1] = code;
    events->length += 2;
    return 0;
}

static PyObject *writer_enter(Writer *writer, PyObject *ignored)
{
    return write_event(writer, writer->code) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Return `flush_at` of the buffer; -1 with an exception. */
static Py_ssize_t flush_at(Writer *writer)
{
    PyObject *number = writer->buffer == NULL ? NULL : PyObject_GetAttrString(writer->buffer, "flush_at");
    Py_ssize_t length = number == NULL ? -1 : PyLong_AsSsize_t(number);
    Py_XDECREF(number);
    return length;
}

#define MAX_UNCHECKED_EXITS 63 /* as in implementation.py */

static Py_ssize_t exits_before_check(Py_ssize_t length)
{
    return length / 256 < MAX_UNCHECKED_EXITS ? length / 256 : MAX_UNCHECKED_EXITS;
}

static PyObject *writer_exit(Writer *writer, PyObject *const *exception, Py_ssize_t count)
{
    if (count > 3) {
        PyErr_Format(PyExc_TypeError, "__exit__() takes at most 3 arguments (%zd given)", count);
        return NULL;
    }
    if (write_event(writer, writer->code) < 0)
        return NULL;
    if (--writer->unchecked >= 0)
        Py_RETURN_NONE;
    Py_ssize_t most = flush_at(writer);
    if (most < 0)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    writer->unchecked = exits_before_check(most);
    if (writer->events->length <= most || writer->flush == NULL)
        Py_RETURN_NONE;
    PyObject *flush = Py_NewRef(writer->flush); /* which may drop the section */
    PyObject *done = PyObject_CallNoArgs(flush);
    Py_DECREF(flush);
    return done;
}

static PyMethodDef enter_method = {"__enter__", (PyCFunction)writer_enter, METH_NOARGS, "Write the event of an enter."};
static PyMethodDef exit_method = {
    "__exit__", (PyCFunction)(void (*)(void))writer_exit, METH_FASTCALL, "Write the event of an exit."};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "What the functions that write an event know."},
    OWNER_SLOTS,
    {0, NULL},
};

PyType_Spec writer_spec = {
    .name = "training_profiler.recording._native.Writer",
    .basicsize = sizeof(Writer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = writer_slots,
};

PyObject *event_writer(PyObject *module, PyObject *args)
{
    PyObject *events, *clock, *buffer, *flush;
    long long code;
    ModuleState *state = PyModule_GetState(module);
    if (!PyArg_ParseTuple(args, "O!OLOO:event_writer", state->type[EVENTS_TYPE], &events, &clock, &code, &buffer,
                          &flush) ||
        events_check_not_slice((Events *)events) < 0)
        return NULL;
#ifndef CLOCK_MONOTONIC
    if (clock == Py_None) {
        PyErr_SetString(PyExc_ValueError, "this system has no monotonic clock; give a clock");
        return NULL;
    }
#endif
    Writer *writer = owner_new(state->type[WRITER_TYPE], 4, 2);
    if (writer == NULL)
        return NULL;
    writer->events = (Events *)Py_NewRef(events);
    writer->clock = Py_NewRef(clock);
    writer->buffer = Py_NewRef(buffer);
    writer->flush = Py_NewRef(flush);
    writer->code = code;
    Py_ssize_t most = buffer == Py_None ? 0 : flush_at(writer);
    writer->unchecked = exits_before_check(most);
    PyMethodDef *method = buffer == Py_None ? &enter_method : &exit_method;
    PyObject *write = most < 0 ? NULL : PyCFunction_NewEx(method, (PyObject *)writer, NULL);
    Py_DECREF((PyObject *)writer);
    return write;
}
