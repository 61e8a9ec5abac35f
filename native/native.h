/* The recorder in C: events of a thread as 64-bit integers, the functions that write them, the sections of a thread,
the fast paths of patches, what is added up from a block of events, and the lock on which samplers sleep.

Each has its equal in Python: python_recorder.py, instrumentation/fast_path.py, aggregation/numpy_sums.py and
threading.Lock serve where this was not built, and tests hold them equal. _native.pyi has the signatures. Everything but
the lock runs under the GIL. Arrays cannot change their size while they are borrowed; what was checked of them is read
once, or no Python code runs between the check and its use. */

#ifndef TRAINING_PROFILER_NATIVE_H
#define TRAINING_PROFILER_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one build serves Python 3.11 and later */
#include <Python.h>

#include <stdint.h>

#define INTERFACE 13 /* raised when a signature or its meaning changes; see implementation.py */

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

#define FIELDS 20
#define NUMBERS 8
#define MOST_CODES 12 /* as in code_ids.py */

/* The attributes of an object of Python that both languages read and write; see fields.py. */
typedef struct {
    PyObject_HEAD
    int64_t numbers[NUMBERS];
    PyObject *at[FIELDS]; /* NULL for one that is not set */
} Fields;

typedef struct {
    PyTypeObject *events_type, *writer_type, *lookup_type, *handover_lock_type, *fields_type, *fast_path_type;
    PyObject *code, *back; /* names of attributes of frames */
} ModuleState;

/* What is known of the attributes of all of these objects together. */
typedef struct {
    uint64_t changes; /* how often Python code has set one of them */
    void *hiding;     /* the fast path that keeps some of its state to itself until Python code reads it, or NULL */
} FieldState;

extern FieldState field_state;

/* Let a fast path put what it keeps to itself into its fields. */
void show_hidden(void *path);

extern PyType_Spec events_spec, writer_spec, lookup_spec, handover_lock_spec, fields_spec, fast_path_spec;

/* Append the time and `code`. Return -1 with an exception. The clock may be Python code. */
int write_event(Writer *writer, int64_t code);

/* Return whether the clock is the monotonic one, read without a call of Python's. */
int has_direct_clock(Writer *writer);

/* Return the time in `now_ns`. Return -1 with an exception. The clock may be Python code. */
int read_clock(PyObject *clock, int64_t *now_ns);

/* Return 0 if `events` may change; -1 with an exception if it is a slice. */
int events_check_not_slice(Events *events);

/* Make room for `more` integers at the end. Return -1 with an exception if there is no memory. */
int events_grow(Events *events, Py_ssize_t more);

static inline int events_reserve(Events *events, Py_ssize_t more)
{
    return events->capacity - events->length >= more ? 0 : events_grow(events, more);
}

/* Times of a damaged block may be any integers: these wrap around, where C's own operators are undefined. */
static inline int64_t total(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline int64_t difference(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

/* Add the type of fronts. Return -1 with an exception. */
int fronts_add(PyObject *module);

PyObject *event_writer(PyObject *module, PyObject *args);
PyObject *section_writers(PyObject *module, PyObject *args);
PyObject *split_events(PyObject *module, PyObject *args);
PyObject *match_events(PyObject *module, PyObject *args);
PyObject *sum_time(PyObject *module, PyObject *args);
PyObject *add_spans(PyObject *module, PyObject *args);
PyObject *code_ids(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
