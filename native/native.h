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

#define INTERFACE 20 /* raised when a signature or its meaning changes; see implementation.py */

typedef struct {
    PyObject_HEAD
    int64_t *items;
    Py_ssize_t length, capacity;
    int is_slice; /* then it never changes, and others may read its memory */
} Events;

/* What refers to other objects begins with these, so that all such types share three functions (module.c). */
typedef struct {
    PyObject_HEAD
    int references; /* their number, right behind this struct */
    int cleared;    /* so many of them, the first, may lead back here; the others stay for whoever still calls this */
} Owner;

typedef struct {
    Owner owner;
    PyObject *buffer, *flush;
    PyObject *clock; /* None for the monotonic clock, which is read without a call of Python's */
    Events *events;
    int64_t code;
    Py_ssize_t unchecked; /* exits until the length of `events` is compared */
} Writer;

enum { EVENTS_TYPE, WRITER_TYPE, USUAL_TYPE, MOST_TYPES = 6 };
typedef struct {
    PyTypeObject *type[MOST_TYPES];
} ModuleState;

extern PyType_Spec events_spec, writer_spec, lookup_spec, handover_lock_spec, usual_spec, front_spec;

/* Return a new object whose struct begins with an Owner; NULL with an exception. */
void *owner_new(PyTypeObject *type, int references, int cleared);
int owner_traverse(PyObject *self, visitproc visit, void *arg);
int owner_clear(PyObject *self);
void owner_dealloc(PyObject *self);
#define OWNER_SLOTS {Py_tp_traverse, owner_traverse}, {Py_tp_clear, owner_clear}, {Py_tp_dealloc, owner_dealloc}

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

#endif
