/* The functions that write an event: what a `with` statement calls of a section. */

#include "native.h"

#include <time.h>

static int writer_traverse(Writer *writer, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)writer));
    Py_VISIT(writer->events);
    Py_VISIT(writer->clock);
    Py_VISIT(writer->buffer);
    Py_VISIT(writer->flush);
    Py_VISIT(writer->hide);
    return 0;
}

/* The events and the clock stay: neither leads back to a section, and a writer always has both. */
static int writer_clear(Writer *writer)
{
    Py_CLEAR(writer->buffer);
    Py_CLEAR(writer->flush);
    Py_CLEAR(writer->hide);
    return 0;
}

static void writer_dealloc(Writer *writer)
{
    PyTypeObject *type = Py_TYPE((PyObject *)writer);
    PyObject_GC_UnTrack(writer);
    writer_clear(writer);
    Py_CLEAR(writer->events);
    Py_CLEAR(writer->clock);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(writer);
    Py_DECREF(type);
}

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
    return write_event(writer, writer->enter) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *writer_discard(Writer *writer, PyObject *ignored)
{
    return write_event(writer, writer->discard) < 0 ? NULL : Py_NewRef(Py_None);
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

/* Leave the exception under way without our frames. */
static void hide_our_frames(Writer *writer)
{
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    PyErr_NormalizeException(&kind, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    Py_XDECREF(traceback);
    PyObject *none = writer->hide == NULL ? NULL : PyObject_CallFunctionObjArgs(writer->hide, error, NULL);
    if (none == NULL)
        PyErr_Clear();
    Py_XDECREF(none);
    PyErr_Restore(kind, error, PyException_GetTraceback(error));
}

static PyObject *writer_exit(Writer *writer, PyObject *const *exception, Py_ssize_t count)
{
    if (count > 3) {
        PyErr_Format(PyExc_TypeError, "__exit__() takes at most 3 arguments (%zd given)", count);
        return NULL;
    }
    if (write_event(writer, writer->leave) < 0)
        return NULL;
    if (--writer->unchecked >= 0)
        Py_RETURN_NONE;
    Py_INCREF((PyObject *)writer); /* its section may be dropped by what a flush calls */
    PyObject *done = NULL;
    Py_ssize_t most = flush_at(writer);
    if (most >= 0) {
        writer->unchecked = exits_before_check(most);
        done = writer->events->length > most && writer->flush != NULL ? PyObject_CallNoArgs(writer->flush)
                                                                      : Py_NewRef(Py_None);
        if (done == NULL)
            hide_our_frames(writer);
    }
    Py_DECREF((PyObject *)writer);
    if (done == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Py_DECREF(done);
    Py_RETURN_NONE;
}

static PyMethodDef enter_method = {"__enter__", (PyCFunction)writer_enter, METH_NOARGS, "Write the event of an enter."};
static PyMethodDef exit_method = {
    "__exit__", (PyCFunction)(void (*)(void))writer_exit, METH_FASTCALL, "Write the event of an exit."};
static PyMethodDef discard_method = {
    "discard", (PyCFunction)writer_discard, METH_NOARGS, "Write the event of an exit that does not count."};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "What the functions that write an event know."},
    {Py_tp_traverse, writer_traverse},
    {Py_tp_clear, writer_clear},
    {Py_tp_dealloc, writer_dealloc},
    {0, NULL},
};

PyType_Spec writer_spec = {
    .name = "training_profiler.recording._native.Writer",
    .basicsize = sizeof(Writer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = writer_slots,
};

static Writer *writer_new(PyObject *module, PyObject *events, PyObject *clock)
{
    ModuleState *state = PyModule_GetState(module);
    if (!Py_IS_TYPE(events, state->events_type)) {
        PyErr_SetString(PyExc_TypeError, "only Events can be written to");
        return NULL;
    }
    if (events_check_not_slice((Events *)events) < 0)
        return NULL;
#ifndef CLOCK_MONOTONIC
    if (clock == Py_None) {
        PyErr_SetString(PyExc_ValueError, "this system has no monotonic clock; give a clock");
        return NULL;
    }
#endif
    Writer *writer = (Writer *)PyType_GenericAlloc(state->writer_type, 0);
    if (writer != NULL) {
        writer->events = (Events *)Py_NewRef(events);
        writer->clock = Py_NewRef(clock);
    }
    return writer;
}

PyObject *event_writer(PyObject *module, PyObject *args)
{
    PyObject *events, *clock;
    long long code;
    if (!PyArg_ParseTuple(args, "OOL:event_writer", &events, &clock, &code))
        return NULL;
    Writer *writer = writer_new(module, events, clock);
    if (writer == NULL)
        return NULL;
    writer->enter = code;
    PyObject *write = PyCFunction_NewEx(&enter_method, (PyObject *)writer, NULL);
    Py_DECREF((PyObject *)writer);
    return write;
}

PyObject *section_writers(PyObject *module, PyObject *args)
{
    PyObject *buffer, *clock, *flush, *hide;
    long long enter, leave, discard;
    if (!PyArg_ParseTuple(args, "OO(LLL)OO:section_writers", &buffer, &clock, &enter, &leave, &discard, &flush, &hide))
        return NULL;
    PyObject *events = PyObject_GetAttrString(buffer, "events");
    Writer *writer = events == NULL ? NULL : writer_new(module, events, clock);
    Py_XDECREF(events);
    if (writer == NULL)
        return NULL;
    writer->buffer = Py_NewRef(buffer);
    writer->flush = Py_NewRef(flush);
    writer->hide = Py_NewRef(hide);
    writer->enter = enter;
    writer->leave = leave;
    writer->discard = discard;
    Py_ssize_t most = flush_at(writer);
    PyObject *writers = NULL;
    if (most >= 0) {
        writer->unchecked = exits_before_check(most);
        writers = Py_BuildValue(
            "NNN",
            PyCFunction_NewEx(&enter_method, (PyObject *)writer, NULL),
            PyCFunction_NewEx(&exit_method, (PyObject *)writer, NULL),
            PyCFunction_NewEx(&discard_method, (PyObject *)writer, NULL));
    }
    Py_DECREF((PyObject *)writer);
    return writers;
}
