/* The lock on which a sampler sleeps between two samples. When the sleep ends, the main thread hands over the GIL.

A thread that waits for the GIL asks for it only when it has not been given up for a switch interval. Small operators of
torch give it up more often than that, each for less time than the waiting thread needs to wake up. So the sampler would
get it in the long operators alone, and the lines with the short ones would have no samples. A pending call is run by
the main thread between two instructions of Python, wherever it is, and waits there until the sampler has the GIL.

Up to Python 3.12 a thread that adds a pending call does not set the flag that tells the main thread to look for one. That
looks when it has taken the GIL again, so the second of two operators would have the samples of the Python between them.
So the flag is set here. Its place in these versions stays, and is used only after a call that the main thread has added
has set and cleared it there (find_flag).

Python runs pending calls on the main thread alone. None may be added to an interpreter that is gone, while a sampler that
was not stopped still sleeps: the end of the interpreter stops all. */

#include "native.h"

#include <pythread.h>
#include <stdlib.h>
#include <time.h>

#ifndef _WIN32
#include <unistd.h>
#define process_id() ((long)getpid())
#define swap(flag, value) __atomic_exchange_n(flag, value, __ATOMIC_SEQ_CST)
#define set_flag(flag) __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST)
#else
#include <intrin.h>
#define process_id() 0L /* no process is a fork */
#define swap(flag, value) _InterlockedExchange(flag, value)
#define set_flag(flag) ((void)(flag)) /* never found here */
#endif

#define MOST_WAITING_US 1000  /* for a sampler that gets no CPU */
#define PATIENCE_US 5000000   /* for a gate, which is held for microseconds of a thread that has a CPU */
#define LONGEST_SLEEP_S 1e6

typedef struct Handover {
    struct Handover *next;    /* of all that were made */
    long process;             /* that made it: in a fork its sampler does not exist, and may have left the gate held */
    PyThread_type_lock stop;  /* open once: the sampler must end */
    PyThread_type_lock taken; /* open once the sampler has the GIL that it had asked for */
    PyThread_type_lock gate;  /* held while a pending call is added: none may be, once Python may end */
    volatile long is_asking;  /* the sampler sleeps no more, and has no GIL yet */
    volatile long is_queued;  /* a pending call of ours is; there is room for 32 of all libraries together */
    volatile long is_given;   /* the main thread has given up the GIL because of a call of ours, since the latest sleep */
    volatile long is_giving;  /* it is in such a call: where CPUs are busy, it comes back later than the next sample */
    int was_given;            /* at the end of the latest sleep */
    int is_stopped;
    int64_t waited_ns; /* the main thread, for samplers to take over */
} Handover;

typedef struct {
    PyObject_HEAD
    Handover *handover; /* never freed: a pending call may come later than the end of this object */
} HandoverLock;

static Handover *all;
static volatile long is_ended; /* the interpreter */

/* Of the main interpreter, once it is found: not 0 if its threads must look for pending calls and the like. */
static volatile int32_t *look_flag, *assumed_flag;

/* The pending call that find_flag adds. Python clears the flag before it. */
static int confirm_flag(void *argument)
{
    if (assumed_flag != NULL && *assumed_flag == 0)
        look_flag = assumed_flag;
    assumed_flag = NULL; /* if there was another reason to look, the next lock tries again */
    return 0;
}

/* Look for the flag where it is in this version of Python, on the main thread. */
static void find_flag(void)
{
    size_t place = 0;
#ifdef __LP64__
    place = Py_Version >> 16 == 0x030B ? 100 : Py_Version >> 16 == 0x030C ? 368 : 0;
#endif
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (!place || look_flag != NULL || PyInterpreterState_GetID(interpreter) != 0)
        return;
    volatile int32_t *flag = (volatile int32_t *)((char *)interpreter + place);
    if (*flag == 0 && Py_AddPendingCall(confirm_flag, NULL) == 0 && *flag == 1)
        assumed_flag = flag;
}

/* Hold the gate; return whether it is held. */
static int close_gate(Handover *handover)
{
    return handover->process == process_id()
           && PyThread_acquire_lock_timed(handover->gate, PATIENCE_US, 0) == PY_LOCK_ACQUIRED;
}

/* The destructor of a capsule that the interpreter keeps to its end. */
static void end_all(PyObject *capsule)
{
    swap(&is_ended, 1);
    for (Handover *each = all; each != NULL; each = each->next)
        if (close_gate(each))
            PyThread_release_lock(each->gate);
}

static int watch_the_end(void)
{
    static const char *name = "training_profiler.handover";
    PyObject *kept = PyInterpreterState_GetDict(PyInterpreterState_Get());
    if (kept == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the interpreter keeps nothing");
        return -1;
    }
    if (PyDict_GetItemString(kept, name) != NULL)
        return 0;
    PyObject *capsule = PyCapsule_New(&all, name, end_all);
    int result = capsule == NULL ? -1 : PyDict_SetItemString(kept, name, capsule);
    Py_XDECREF(capsule);
    return result;
}

static int64_t clock_ns(void)
{
    struct timespec now;
#ifdef _MSC_VER
    timespec_get(&now, TIME_UTC);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The pending call: on the main thread, with the GIL. */
static int hand_over(void *argument)
{
    Handover *handover = argument;
    swap(&handover->is_queued, 0);
    if (!handover->is_asking) /* it got the GIL without this */
        return 0;
    swap(&handover->is_given, 1);
    swap(&handover->is_giving, 1);
    int64_t begin_ns = clock_ns(), end_ns;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock_timed(handover->taken, MOST_WAITING_US, 0);
    end_ns = clock_ns();
    Py_END_ALLOW_THREADS
    swap(&handover->is_giving, 0);
    handover->waited_ns += end_ns - begin_ns;
    return 0;
}

/* Have the main thread hand over the GIL. Called without it. */
static void ask(Handover *handover)
{
    if (!close_gate(handover))
        return;
    if (!handover->is_stopped && !is_ended) {
        PyThread_acquire_lock(handover->taken, NOWAIT_LOCK); /* closed from now on */
        swap(&handover->is_asking, 1);
        if (!swap(&handover->is_queued, 1) && Py_AddPendingCall(hand_over, handover) < 0)
            swap(&handover->is_queued, 0); /* no room: the GIL comes later */
        else if (look_flag != NULL)
            set_flag(look_flag);
    }
    PyThread_release_lock(handover->gate);
}

static PyObject *lock_acquire(HandoverLock *lock, PyObject *args)
{
    int is_blocking;
    double timeout_s;
    if (!PyArg_ParseTuple(args, "pd:acquire", &is_blocking, &timeout_s))
        return NULL;
    if (!is_blocking || !(timeout_s > 0.0))
        timeout_s = 0.0;
    Handover *handover = lock->handover;
    PY_TIMEOUT_T sleep_us = (PY_TIMEOUT_T)((timeout_s < LONGEST_SLEEP_S ? timeout_s : LONGEST_SLEEP_S) * 1e6);
    int is_stopped;
    PyThreadState *state = PyEval_SaveThread();
    is_stopped = PyThread_acquire_lock_timed(handover->stop, sleep_us, 0) == PY_LOCK_ACQUIRED;
    if (!is_stopped)
        ask(handover);
    PyEval_RestoreThread(state);
    handover->was_given = (int)(swap(&handover->is_given, 0) | handover->is_giving);
    if (swap(&handover->is_asking, 0))
        PyThread_release_lock(handover->taken);
    return PyBool_FromLong(is_stopped);
}

static PyObject *lock_release(HandoverLock *lock, PyObject *unused)
{
    Handover *handover = lock->handover;
    int is_closed = close_gate(handover);
    int was_stopped = handover->is_stopped;
    handover->is_stopped = 1;
    if (is_closed)
        PyThread_release_lock(handover->gate);
    if (was_stopped) {
        PyErr_SetString(PyExc_RuntimeError, "release unlocked lock");
        return NULL;
    }
    PyThread_release_lock(handover->stop);
    Py_RETURN_NONE;
}

static PyObject *lock_waited_ns(HandoverLock *lock, PyObject *unused)
{
    return PyLong_FromLongLong(lock->handover->waited_ns);
}

static PyObject *lock_was_handed_over(HandoverLock *lock, PyObject *unused)
{
    return PyBool_FromLong(lock->handover->was_given);
}

static PyThread_type_lock closed_lock(void)
{
    PyThread_type_lock lock = PyThread_allocate_lock();
    if (lock != NULL)
        PyThread_acquire_lock(lock, NOWAIT_LOCK);
    return lock;
}

static PyObject *lock_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (!PyArg_ParseTuple(args, ":HandoverLock") || watch_the_end() < 0)
        return NULL;
    HandoverLock *lock = (HandoverLock *)PyType_GenericAlloc(type, 0);
    if (lock == NULL)
        return NULL;
    Handover *handover = calloc(1, sizeof(Handover));
    if (handover != NULL) {
        handover->stop = closed_lock();
        handover->taken = closed_lock();
        handover->gate = PyThread_allocate_lock();
    }
    if (handover == NULL || handover->stop == NULL || handover->taken == NULL || handover->gate == NULL) {
        free(handover);
        Py_DECREF((PyObject *)lock);
        return PyErr_NoMemory();
    }
    find_flag();
    handover->process = process_id();
    handover->next = all;
    all = lock->handover = handover;
    return (PyObject *)lock;
}

static PyMethodDef lock_methods[] = {
    {"acquire", (PyCFunction)lock_acquire, METH_VARARGS, "Sleep until release() or for a time; return which it was."},
    {"release", (PyCFunction)lock_release, METH_NOARGS, "Wake the sleeping thread, once; never ask for the GIL again."},
    {"waited_ns", (PyCFunction)lock_waited_ns, METH_NOARGS, "Return how long the main thread has waited so far."},
    {"was_handed_over", (PyCFunction)lock_was_handed_over, METH_NOARGS,
     "Return whether the main thread ran Python when the latest sleep ended, and gave up the GIL for its end."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_doc, "A lock to sleep on; when the sleep ends, the main thread hands over the GIL."},
    {Py_tp_new, lock_make},
    {Py_tp_methods, lock_methods},
    {0, NULL},
};

PyType_Spec handover_lock_spec = {
    .name = "training_profiler.recording._native.HandoverLock",
    .basicsize = sizeof(HandoverLock),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lock_slots,
};
