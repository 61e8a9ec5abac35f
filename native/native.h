/* The recorder in C: events of a thread as 64-bit integers, the functions that write them, the sections of a thread,
and the lock on which samplers sleep.

Each has its equal in Python: implementation.py and threading.Lock serve where this was not built, and tests hold them
equal. _native.pyi has the signatures. Everything but the lock runs under the GIL. */

#ifndef TRAINING_PROFILER_NATIVE_H
#define TRAINING_PROFILER_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one build serves Python 3.11 and later */
#include <Python.h>

#include <stdint.h>

#define INTERFACE 16 /* raised when a signature or its meaning changes; see implementation.py */

typedef struct {
    PyObject_HEAD
    int64_t *items;
    Py_ssize_t length, capacity;
    int is_slice; /* then it never changes, and others may read its memory */
} Events;

typedef struct {
    PyObject_HEAD
    Events *events;
    PyObject *clock; /* None for the monotonic clock, which is read without a call of Python's */
    PyObject *buffer, *flush, *hide;
    int64_t enter, leave, discard; /* codes */
    Py_ssize_t unchecked;          /* exits until the length of `events` is compared */
} Writer;

typedef struct {
    PyTypeObject *events_type, *writer_type, *fields_type, *usual_type;
} ModuleState;

extern PyType_Spec events_spec, writer_spec, lookup_spec, handover_lock_spec, fields_spec, usual_spec, front_spec;

/* Return 0 if `events` may change; -1 with an exception if it is a slice. */
int events_check_not_slice(Events *events);

/* Make room for `more` integers at the end. Return -1 with an exception if there is no memory. */
int events_grow(Events *events, Py_ssize_t more);

static inline int events_reserve(Events *events, Py_ssize_t more)
{
    return events->capacity - events->length >= more ? 0 : events_grow(events, more);
}

/* Append the time and `code`. Return -1 with an exception. */
int write_event(Writer *writer, int64_t code);

PyObject *event_writer(PyObject *module, PyObject *args);
PyObject *section_writers(PyObject *module, PyObject *args);

#endif
