/* What stands in front of the functions of patches while a training is under way: it makes and records nearly every call
without a frame of Python, which a step of 0.25 ms evicts from the caches. Any other call goes to the patch's function,
which does the same and knows every other case. The state is that of Python's objects.

Only a call meets a front: who looks the attribute of a class up finds the patch's function, so that a tracer such as
dynamo finds Python that it can follow. instrumentation/fronts.py puts fronts into their places. */

#include "native.h"

#ifndef _WIN32 /* whose library for the limited API of Python 3.11 has no vectorcalls: patches serve alone */

#include <stddef.h>
#include <structmember.h>

/* The objects of one loop detector that are never replaced, as instrumentation/fronts.py gives them. */
enum {
    DETECTOR, THREAD, CONTEXT, UPDATES, PHASES, PASSES, UPDATE, SIZES, STEPS, /* have fields */
    ENDS, BUFFER, CALLS, KNOWN, OPEN, CAPTURED, IS_GRAD_ENABLED, TRAINING, WRITE,
    CALL_IMPL, COMPILED_CALL_IMPL, NUM_YIELDED, LOADER_ID_OF, IS_TRAINING, BACK, /* names that are looked up */
    FIRST_KIND, FIRST_CODE = FIRST_KIND + 4, PARTS = FIRST_CODE + 6
};
#define LAST_WITH_FIELDS STEPS
enum { FORWARD_CODE, FETCH_CODE, BACKWARD_CODE, UPDATE_CODE, NO_GRAD_CODE, NO_GRAD_PART_CODE };
enum { FREE, FORWARD, FETCH, BACKWARD }; /* as in context.py */

/* The attributes that are read and set by their number: recording/event_codes.py names them. They are the first slots of a
class of Python, which lie behind one another in the order of their names. */
#define FIELDS 8
enum { BUSY_WITH, IDENT, CONFIRMED, FUNCTION };                                   /* TrainingThread */
enum { FRAME, BACKWARDS, NUMBER_OF_UPDATES, INFERRED, HAS_MANUAL_STEPS, SHADOWS, MADE_NS, CALLED }; /* LoopDetector */
enum { BACKWARD_WATCH, UNUSED_GRAPH, UPDATES_AT_KEPT, HAS_GRAD_SCALER };          /* PatchContext */
enum { BACKWARDS_BEFORE };                                                        /* OpenUpdates */
enum { IS_UNRESOLVED, CYCLE, RUN, IS_EVALUATING, REPEATED, RUN_END_NS };           /* PhaseDetector */
enum { LATEST };                                                                  /* Passes */
enum { OPEN_CODE, IS_IN_CLOSURE, IS_SCALING };                                    /* OptimizerUpdate */
enum { IS_DUE, NEXT_UPDATE };                                                     /* InputSizes */
enum { IS_ALONE, PRIMARY };                                                       /* StepDetector */
enum { CALLER, KIND, IS_BARE, IS_PLAIN, BEGIN_NS, CODE, MODE, USE };                /* ModuleCall */
enum { RUN_KEY, RUN_CALLS, LATEST_USE, DEPTH };                                   /* NoGradRun */
enum { USE_CALLS, END_NS, OF_RUN };                                               /* ModuleUse */
enum { ITERATOR_ID, PHASE, FETCHES, MEASURED_AT, LOADER_ID, PASS_CYCLE, CYCLE_BEGIN_NS }; /* LoaderPass */

typedef struct {
    PyObject_HEAD
    PyObject *at[FIELDS];
} Fields;

typedef struct {
    Owner owner;
    PyObject *part[PARTS]; /* while a training is under way; the program's code may end it */
    Writer *writer; /* WRITE owns it */
} UsualCalls;

static inline int is_on(UsualCalls *self)
{
    return self->part[DETECTOR] != NULL;
}

/* Return field `at` of a part, borrowed. */
static inline PyObject *field_of(UsualCalls *self, int part, int at)
{
    return ((Fields *)self->part[part])->at[at];
}

#define MAX_PENDING (1 << 16) /* integers, as in pending_events.py */
#define NEAREST 4             /* functions, as in no_grad_runs.py */

#define IS(of, number, value) (field_of(self, of, number) == (value))
#define NUMBER(of, number) integer(field_of(self, of, number))
#define SET(of, number, value) set_field((Fields *)self->part[of], number, Py_NewRef(value))
#define EVENT(code) integer(self->part[FIRST_CODE + (code)])
#define ZERO self->part[FIRST_KIND + FREE] /* small integers are one object each */

/* Return whether an attribute that is looked up is this object. */
static int usual_is(UsualCalls *self, PyObject *object, int name, PyObject *value)
{
    PyObject *found = PyObject_GetAttr(object, self->part[name]);
    if (found == NULL)
        PyErr_Clear();
    Py_XDECREF(found);
    return found == value;
}

/* Return a number of zero or more; -1 without an exception where there is none. */
static int64_t integer(PyObject *object)
{
    int64_t value = object == NULL || !PyLong_Check(object) ? -1 : PyLong_AsLongLong(object);
    if (value == -1)
        PyErr_Clear();
    return value;
}

/* Give a field a value, of which it takes the reference; return whether there is one. */
static int set_field(Fields *fields, int number, PyObject *value)
{
    PyObject *before = fields->at[number];
    if (value != NULL) {
        fields->at[number] = value;
        Py_XDECREF(before);
    }
    return value != NULL;
}

static int set_number(Fields *fields, int number, int64_t value)
{
    return set_field(fields, number, PyLong_FromLongLong(value));
}

/* Return whether the calling thread is the training thread, in no other recorded call, and each call is usual. */
static int is_here(UsualCalls *self, int busy_with)
{
    return is_on(self) && IS(THREAD, BUSY_WITH, self->part[FIRST_KIND + busy_with]) &&
           NUMBER(THREAD, IDENT) == (int64_t)PyThread_get_thread_ident() && IS(DETECTOR, SHADOWS, ZERO) &&
           IS(THREAD, CONFIRMED, self->part[DETECTOR]);
}

static int is_empty(UsualCalls *self, int part)
{
    return PyObject_Size(self->part[part]) == 0;
}

/* Append an event, and return its time; -1 with an exception. */
static int64_t record(UsualCalls *self, int64_t code)
{
    if (write_event(self->writer, code) < 0)
        return -1;
    return self->writer->events->items[self->writer->events->length - 2];
}

static int ends_with(UsualCalls *self, int64_t code)
{
    Events *events = self->writer->events;
    return events->length >= 2 && events->items[events->length - 1] == code;
}

/* Begins return what the end takes, or 1; ends return 1. All return 0 or NULL for another call, of which they have
changed nothing, and with an exception -1 or NULL. */

/* Module calls */

/* Return whether a call is made in the functions of a run. Put the outermost of the methods nearest to it into `method`: its
   frame is under way, and so stays where it is. */
static int is_in_functions(UsualCalls *self, Fields *run, PyObject *frame, PyObject **method)
{
    int64_t at = 0, length = PyTuple_Size(run->at[RUN_KEY]), depth = integer(run->at[DEPTH]);
    PyObject *now = Py_NewRef(frame);
    while (at < length && now != NULL && now != Py_None) {
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)now), *around = now;
        int is_same = PyLong_AsVoidPtr(PyTuple_GetItem(run->at[RUN_KEY], (Py_ssize_t)at)) == code;
        Py_DECREF(code);
        if (!is_same)
            break;
        *method = ++at == depth ? now : *method;
        now = at == NEAREST ? Py_NewRef(Py_None) : PyObject_GetAttr(around, self->part[BACK]);
        Py_DECREF(around);
    }
    Py_XDECREF(now);
    return at == length && now == Py_None && depth >= 0 && depth < NEAREST;
}

/* Return whether a call in a method goes on with the forward pass of the call before; -1 with an exception. */
static int is_same_forward(UsualCalls *self, Fields *run, PyObject *module, PyObject *method)
{
    PyObject *frame = PyLong_FromVoidPtr(method), *id = PyLong_FromVoidPtr(module);
    PyObject *code = PyTuple_GetItem(run->at[RUN_KEY], (Py_ssize_t)integer(run->at[DEPTH]) - 1);
    PyObject *caller = frame == NULL || id == NULL || code == NULL ? NULL : PyTuple_Pack(2, frame, code);
    int is_same = caller == NULL ? -1 : PyObject_RichCompareBool(field_of(self, DETECTOR, FRAME), caller, Py_EQ);
    if (is_same > 0)
        is_same = PySet_Contains(field_of(self, DETECTOR, CALLED), id) == 0;
    if (is_same == 0 && !(SET(DETECTOR, FRAME, caller) && set_field((Fields *)self->part[DETECTOR], CALLED, PySet_New(NULL))))
        is_same = -1;
    if (is_same >= 0 && PySet_Add(field_of(self, DETECTOR, CALLED), id) < 0)
        is_same = -1;
    Py_XDECREF(frame);
    Py_XDECREF(id);
    Py_XDECREF(caller);
    return is_same;
}

static int add_one(Fields *fields, int number)
{
    return set_number(fields, number, integer(fields->at[number]) + 1);
}

/* Record a call without gradients that repeats one since the latest training event. Return its code; -1 for another one. */
static int quiet_call_begins(UsualCalls *self, Fields *call, PyObject *module, PyObject *frame, int64_t *begin_ns)
{
    PyObject *method = NULL;
    Fields *use = (Fields *)call->at[USE], *run = (Fields *)use->at[OF_RUN];
    if (!IS(PHASES, RUN, (PyObject *)run) || !IS(PHASES, IS_EVALUATING, Py_False) ||
        !usual_is(self, module, IS_TRAINING, call->at[MODE]) || !is_on(self) || /* the program may have ended the session */
        !is_in_functions(self, run, frame, &method))
        return -1;
    int is_part = method == NULL ? SET(DETECTOR, FRAME, Py_None) - 1 : is_same_forward(self, run, module, method);
    int at = NO_GRAD_CODE + (is_part > 0 && !ends_with(self, -EVENT(NO_GRAD_CODE)));
    if (is_part < 0 || (*begin_ns = record(self, EVENT(at))) < 0)
        return -1;
    if (is_part > 0 && at == NO_GRAD_CODE) { /* both are one span: neither the exit of that before, nor this */
        self->writer->events->length -= 4;
        *begin_ns = 0;
    }
    return (*begin_ns == 0 || add_one((Fields *)self->part[PHASES], REPEATED)) && add_one(run, RUN_CALLS) &&
           add_one(use, USE_CALLS) && set_field(run, LATEST_USE, Py_NewRef((PyObject *)use)) ? at : -1;
}

static int usual_forward_begins(UsualCalls *self, Fields *call, int64_t *begin_ns)
{
    int64_t code = EVENT(FORWARD_CODE);
    if (call->at[IS_BARE] != Py_True) /* else a loss right after the model */
        return IS(SIZES, IS_DUE, Py_False) && IS(PHASES, IS_UNRESOLVED, Py_False) && SET(DETECTOR, FRAME, Py_None) &&
               (*begin_ns = record(self, code)) >= 0 && add_one((Fields *)self->part[PHASES], REPEATED) ? FORWARD_CODE : -1;
    if (!IS(PHASES, IS_UNRESOLVED, Py_False) || !ends_with(self, -code))
        return -1;
    self->writer->events->length -= 2;
    return FORWARD_CODE;
}

static PyObject *usual_call_begins(UsualCalls *self, PyObject *module, PyObject *frame)
{
    if (!is_here(self, FREE) || !IS(UPDATE, OPEN_CODE, ZERO) || !IS(THREAD, FUNCTION, ZERO))
        return NULL;
    PyObject *enabled = PyObject_CallNoArgs(self->part[IS_GRAD_ENABLED]);
    Py_XDECREF(enabled);
    int has_grad = enabled == Py_True, at;
    PyObject *key = enabled == NULL ? NULL : PyLong_FromVoidPtr((char *)module + !has_grad); /* as in module_calls.py */
    Fields *call = key == NULL ? NULL : (Fields *)PyDict_GetItemWithError(self->part[KNOWN], key);
    Py_XDECREF(key);
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    Py_DECREF(code);
    if (call == NULL || call->at[CALLER] != code || call->at[KIND] != (PyObject *)Py_TYPE(module))
        return NULL;
    int64_t begin_ns = 0;
    Py_INCREF((PyObject *)call);
    at = has_grad ? usual_forward_begins(self, call, &begin_ns) : quiet_call_begins(self, call, module, frame, &begin_ns);
    if (at >= 0 && set_number(call, BEGIN_NS, begin_ns) &&
        set_field(call, CODE, Py_NewRef(self->part[FIRST_CODE + at])) &&
        set_field(call, IS_PLAIN, Py_NewRef(Py_True)) && PyList_Append(self->part[CALLS], (PyObject *)call) == 0 &&
        SET(THREAD, BUSY_WITH, self->part[FIRST_KIND + FORWARD]))
        return (PyObject *)call;
    Py_DECREF((PyObject *)call);
    return NULL;
}

static int usual_call_ends(UsualCalls *self, Fields *call, PyObject *module)
{
    if (!usual_is(self, module, IS_TRAINING, call->at[MODE]) || !is_on(self) ||
        !IS(THREAD, CONFIRMED, self->part[DETECTOR]) || call->at[IS_PLAIN] != Py_True)
        return 0;
    PyObject *calls = self->part[CALLS];
    Py_ssize_t length = PyList_Size(calls);
    Fields *use = (Fields *)call->at[USE], *run = use == NULL ? NULL : (Fields *)use->at[OF_RUN];
    if (length < 1 || PyList_GetItem(calls, length - 1) != (PyObject *)call ||
        (use != NULL && (!IS(PHASES, RUN, (PyObject *)run) || !IS(PHASES, IS_EVALUATING, Py_False) ||
                         run->at[LATEST_USE] != (PyObject *)use || self->writer->events->length >= MAX_PENDING)))
        return 0;
    int64_t now_ns = -1;
    int is_done = SET(THREAD, BUSY_WITH, ZERO) && PyList_SetSlice(calls, length - 1, length, NULL) == 0 &&
                  (now_ns = record(self, -integer(call->at[CODE]))) >= 0;
    if (is_done && use != NULL)
        is_done = set_number((Fields *)self->part[PHASES], RUN_END_NS, now_ns) && set_number(use, END_NS, now_ns);
    return is_done ? 1 : -1;
}

/* Fetches */

static int feeds_training(UsualCalls *self, Fields *pass, PyObject *iterator)
{
    int64_t fetches = integer(pass->at[FETCHES]);
    return pass->at[PHASE] == self->part[TRAINING] && fetches >= 0 && fetches < integer(pass->at[MEASURED_AT]) &&
           integer(pass->at[ITERATOR_ID]) == (int64_t)(intptr_t)iterator &&
           usual_is(self, self->part[BUFFER], LOADER_ID_OF, pass->at[LOADER_ID]) && is_on(self) &&
           !usual_is(self, iterator, NUM_YIELDED, ZERO) && is_on(self);
}

static PyObject *usual_fetch_begins(UsualCalls *self, PyObject *iterator)
{
    if (!is_here(self, FREE) || !IS(PHASES, IS_UNRESOLVED, Py_False) || !is_empty(self, CALLS) ||
        IS(PASSES, LATEST, Py_None))
        return NULL;
    Fields *pass = (Fields *)Py_NewRef(field_of(self, PASSES, LATEST));
    int64_t cycle = NUMBER(PHASES, CYCLE), now_ns;
    if (feeds_training(self, pass, iterator) && SET(DETECTOR, FRAME, Py_None) &&
        (now_ns = record(self, EVENT(FETCH_CODE))) >= 0 &&
        (cycle == integer(pass->at[PASS_CYCLE]) ||
         (set_number(pass, PASS_CYCLE, cycle) && set_number(pass, CYCLE_BEGIN_NS, now_ns))) &&
        SET(THREAD, BUSY_WITH, self->part[FIRST_KIND + FETCH]))
        return (PyObject *)pass;
    Py_DECREF((PyObject *)pass);
    return NULL;
}

/* Backward passes */

static int usual_backward_begins(UsualCalls *self)
{
    if (!is_here(self, FREE) || !is_empty(self, CAPTURED) || !is_empty(self, CALLS) ||
        !IS(CONTEXT, UNUSED_GRAPH, Py_None) || !IS(CONTEXT, UPDATES_AT_KEPT, Py_None) ||
        !IS(CONTEXT, BACKWARD_WATCH, Py_None) || !IS(DETECTOR, INFERRED, Py_None) || !IS(UPDATE, OPEN_CODE, ZERO) ||
        !IS(PHASES, IS_UNRESOLVED, Py_False) || !IS(DETECTOR, MADE_NS, ZERO))
        return 0;
    int is_done = set_number((Fields *)self->part[DETECTOR], BACKWARDS, NUMBER(DETECTOR, BACKWARDS) + 1) &&
                  SET(DETECTOR, FRAME, Py_None) && record(self, EVENT(BACKWARD_CODE)) >= 0 &&
                  SET(THREAD, BUSY_WITH, self->part[FIRST_KIND + BACKWARD]);
    return is_done ? 1 : -1;
}

static int usual_backward_ends(UsualCalls *self)
{
    if (!is_here(self, BACKWARD) || !IS(DETECTOR, INFERRED, Py_None) || !IS(UPDATE, IS_IN_CLOSURE, Py_False) ||
        self->writer->events->length > MAX_PENDING)
        return 0;
    return SET(THREAD, BUSY_WITH, ZERO) && record(self, -EVENT(BACKWARD_CODE)) >= 0 ? 1 : -1;
}

/* Updates */

static int usual_update_begins(UsualCalls *self, PyObject *optimizer, PyObject *frame)
{
    if (!is_here(self, FREE) || !is_empty(self, OPEN) || !is_empty(self, CALLS) || !is_empty(self, CAPTURED) ||
        !IS(PHASES, IS_UNRESOLVED, Py_False) || !IS(UPDATE, IS_SCALING, Py_False))
        return 0;
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    PyObject *id = PyLong_FromVoidPtr(optimizer), *frame_id = PyLong_FromVoidPtr(frame);
    PyObject *update = id == NULL || frame_id == NULL ? NULL : PyTuple_Pack(3, id, frame_id, code);
    int is_done = update != NULL && PyList_Append(self->part[OPEN], update) == 0 && SET(DETECTOR, FRAME, Py_None) &&
                  SET(UPDATE, OPEN_CODE, self->part[FIRST_CODE + UPDATE_CODE]) && record(self, EVENT(UPDATE_CODE)) >= 0;
    Py_DECREF(code);
    Py_XDECREF(id);
    Py_XDECREF(frame_id);
    Py_XDECREF(update);
    return is_done ? 1 : -1;
}

/* Return whether the only open update is of this optimizer, whose updates are steps, and follows a backward pass. */
static int is_step(UsualCalls *self, PyObject *optimizer, int64_t backwards)
{
    PyObject *open = PyList_Size(self->part[OPEN]) == 1 ? PyList_GetItem(self->part[OPEN], 0) : NULL;
    return open != NULL && PyLong_AsVoidPtr(PyTuple_GetItem(open, 0)) == optimizer &&
           IS(UPDATE, OPEN_CODE, self->part[FIRST_CODE + UPDATE_CODE]) && backwards != NUMBER(UPDATES, BACKWARDS_BEFORE) &&
           IS(STEPS, IS_ALONE, Py_True) && NUMBER(STEPS, PRIMARY) == (int64_t)(intptr_t)optimizer;
}

static int usual_update_ends(UsualCalls *self, PyObject *optimizer)
{
    if (!is_here(self, FREE) || !is_empty(self, CAPTURED) || !IS(CONTEXT, HAS_GRAD_SCALER, Py_False) ||
        !IS(DETECTOR, HAS_MANUAL_STEPS, Py_False))
        return 0;
    int64_t updates = NUMBER(DETECTOR, NUMBER_OF_UPDATES) + 1, cycle = NUMBER(PHASES, CYCLE);
    int64_t backwards = NUMBER(DETECTOR, BACKWARDS), now_ns;
    if (updates < 1 || updates >= NUMBER(SIZES, NEXT_UPDATE) || !is_step(self, optimizer, backwards))
        return 0;
    if (!set_number((Fields *)self->part[UPDATES], BACKWARDS_BEFORE, backwards) ||
        PyList_SetSlice(self->part[OPEN], 0, 1, NULL) < 0 || !SET(UPDATE, OPEN_CODE, ZERO) ||
        (now_ns = record(self, -EVENT(UPDATE_CODE))) < 0 ||
        !set_number((Fields *)self->part[DETECTOR], NUMBER_OF_UPDATES, updates) ||
        !set_number((Fields *)self->part[PHASES], CYCLE, cycle + 1))
        return -1;
    PyObject *time = PyLong_FromLongLong(now_ns);
    PyObject *done = time == NULL ? NULL : PyObject_CallFunctionObjArgs(self->part[ENDS], time, NULL);
    Py_XDECREF(time);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

/* The types */

static PyObject *usual_make(PyTypeObject *type, PyObject *args, PyObject *named)
{
    return (PyObject *)owner_new(type, PARTS, PARTS);
}

static PyObject *usual_use(UsualCalls *self, PyObject *args)
{
    PyObject *fields, *parts;
    if (!PyArg_ParseTuple(args, "O!O!:use", &PyType_Type, &fields, &PyTuple_Type, &parts))
        return NULL;
    PyObject *size = PyObject_GetAttrString(fields, "__basicsize__");
    int is_right = integer(size) == sizeof(Fields) && PyTuple_Size(parts) == PARTS &&
                   PyCFunction_CheckExact(PyTuple_GetItem(parts, WRITE));
    Py_XDECREF(size);
    for (int i = 0; is_right && i <= LAST_WITH_FIELDS; i++)
        is_right = PyObject_TypeCheck(PyTuple_GetItem(parts, i), (PyTypeObject *)fields);
    if (!is_right)
        return PyErr_Format(PyExc_TypeError, "use() takes %d parts", PARTS);
    self->writer = (Writer *)PyCFunction_GetSelf(PyTuple_GetItem(parts, WRITE));
    for (int i = 0; i < PARTS; i++) {
        PyObject *before = self->part[i];
        self->part[i] = Py_NewRef(PyTuple_GetItem(parts, i));
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

static PyObject *usual_forget(UsualCalls *self, PyObject *ignored)
{
    owner_clear((PyObject *)self);
    Py_RETURN_NONE;
}

static PyMethodDef usual_methods[] = {
    {"use", (PyCFunction)usual_use, METH_VARARGS, "Record the calls of a loop detector: its parts."},
    {"forget", (PyCFunction)usual_forget, METH_NOARGS, "Record none."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot usual_slots[] = {
    {Py_tp_doc, "Records nearly every call of a training under way."},
    {Py_tp_new, usual_make},
    OWNER_SLOTS,
    {Py_tp_methods, usual_methods},
    {0, NULL},
};

PyType_Spec usual_spec = {
    .name = "training_profiler.recording._native.UsualCalls",
    .basicsize = sizeof(UsualCalls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = usual_slots,
};

/* Of the limited API since Python 3.12; Python 3.11 exports the same. */
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
typedef PyObject *(*vectorcallfunc)(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names);
PyAPI_FUNC(PyObject *) PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);
PyAPI_FUNC(PyObject *) PyObject_VectorcallMethod(PyObject *, PyObject *const *, size_t, PyObject *);
PyAPI_FUNC(PyObject *) PyVectorcall_Call(PyObject *, PyObject *, PyObject *);
#define MAY_CHANGE ((size_t)1 << (8 * sizeof(size_t) - 1)) /* not a part of the number of arguments */

typedef struct {
    Owner owner;
    PyObject *attributes;
    UsualCalls *usual;  /* from here on, as they are given */
    PyObject *original; /* what the program calls */
    PyObject *patch;    /* makes and records calls of every kind */
    PyObject *ended;    /* is called at an end that is not usual */
    PyObject *on_error; /* is called with an error of ours */
    PyObject *method;   /* the type of bound methods */
    vectorcallfunc call;
} Front;
#define GIVEN 6

/* Give the error under way to `on_error`. Return -1 if it is not an error but, for example, Ctrl-C, which goes on. */
static int report(Front *front)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    PyErr_NormalizeException(&kind, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    PyObject *done = PyObject_CallFunctionObjArgs(front->on_error, error, NULL);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Let the patch make a call whose begin was not recorded, perhaps because of an error. */
static PyObject *call_patch(Front *front, PyObject *const *args, size_t flags, PyObject *names)
{
    if (PyErr_Occurred() && report(front) < 0)
        return NULL;
    return PyObject_Vectorcall(front->patch, args, flags, names);
}

/* Take note of the end of a call: `is_ended` as a function of UsualCalls returns it, for a call that was made with `result`,
   or raised the exception that was put aside. That stays, unless this is interrupted. */
static PyObject *finish(Front *front, PyObject *result, PyObject *raised[3], int is_ended, PyObject *const given[4])
{
    if (is_ended == 0 && given != NULL) {
        PyObject *done = PyObject_CallFunctionObjArgs(front->ended, given[0], given[1], given[2], given[3], NULL);
        is_ended = done == NULL ? -1 : 1;
        Py_XDECREF(done);
    }
    int is_interrupted = is_ended < 0 && report(front) < 0;
    if (result == NULL && !is_interrupted)
        PyErr_Restore(raised[0], raised[1], raised[2]);
    else if (is_interrupted) {
        for (int i = 0; i < 3; i++)
            Py_XDECREF(raised[i]);
        Py_CLEAR(result);
    }
    return result;
}

/* Put what a call raised aside until finish(). */
static inline void put_aside(PyObject *result, PyObject *raised[3])
{
    raised[0] = raised[1] = raised[2] = NULL;
    if (result == NULL)
        PyErr_Fetch(&raised[0], &raised[1], &raised[2]);
}

static PyObject *call_module(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    UsualCalls *usual = front->usual;
    PyObject *raised[3];
    if ((flags & ~MAY_CHANGE) == 0 || !is_on(usual) || !usual_is(usual, args[0], COMPILED_CALL_IMPL, Py_None) ||
        !is_on(usual))
        return call_patch(front, args, flags, names);
    if (field_of(usual, THREAD, BUSY_WITH) != usual->part[FIRST_KIND + FREE]) /* inside another call */
        return PyObject_VectorcallMethod(usual->part[CALL_IMPL], args, flags, names);
    PyObject *frame = (PyObject *)PyEval_GetFrame(), *detector = Py_NewRef(usual->part[DETECTOR]);
    PyObject *call = frame == NULL ? NULL : usual_call_begins(usual, args[0], frame), *result;
    if (call == NULL)
        result = call_patch(front, args, flags, names);
    else {
        result = PyObject_VectorcallMethod(usual->part[CALL_IMPL], args, flags, names);
        put_aside(result, raised);
        PyObject *given[4] = {detector, call, args[0], NULL};
        result = finish(front, result, raised, usual_call_ends(usual, (Fields *)call, args[0]), given);
    }
    Py_DECREF(detector);
    Py_XDECREF(call);
    return result;
}

static PyObject *call_fetch(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    int is_one = names == NULL && (flags & ~MAY_CHANGE) == 1;
    PyObject *pass = is_one ? usual_fetch_begins(front->usual, args[0]) : NULL, *raised[3];
    if (pass == NULL)
        return call_patch(front, args, flags, names);
    PyObject *detector = Py_NewRef(front->usual->part[DETECTOR]);
    PyObject *batch = PyObject_Vectorcall(front->original, args, flags, names);
    PyObject *is_over = batch != NULL ? Py_None : PyErr_ExceptionMatches(PyExc_StopIteration) ? Py_True : Py_False;
    put_aside(batch, raised);
    PyObject *given[4] = {pass, detector, batch == NULL ? Py_None : batch, is_over};
    batch = finish(front, batch, raised, 0, given);
    Py_DECREF(pass);
    Py_DECREF(detector);
    return batch;
}

/* Return whether an argument of torch.autograd.backward is not given, or says no. */
static int is_left_out(PyObject *const *args, Py_ssize_t at, Py_ssize_t count)
{
    return at >= count || args[at] == Py_None || args[at] == Py_False;
}

static PyObject *call_backward(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    PyObject *raised[3];
    Py_ssize_t count = (Py_ssize_t)(flags & ~MAY_CHANGE);
    /* As Tensor.backward passes them: names other than `inputs` are rare. */
    int is_usual = names == NULL || (PyTuple_Size(names) == 1 &&
                                     PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "inputs") == 0);
    if (!is_usual || !is_left_out(args, 2, count) || !is_left_out(args, 3, count) ||
        usual_backward_begins(front->usual) <= 0)
        return call_patch(front, args, flags, names);
    PyObject *given[4] = {front->usual->part[DETECTOR], NULL};
    Py_INCREF(given[0]);
    PyObject *result = PyObject_Vectorcall(front->original, args, flags, names);
    put_aside(result, raised);
    result = finish(front, result, raised, usual_backward_ends(front->usual), given);
    Py_DECREF(given[0]);
    return result;
}

static PyObject *call_before_update(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    if ((flags & ~MAY_CHANGE) < 1 || frame == NULL || usual_update_begins(front->usual, args[0], frame) <= 0)
        return call_patch(front, args, flags, names);
    Py_RETURN_NONE;
}

static PyObject *call_after_update(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    int is_ended = (flags & ~MAY_CHANGE) < 1 ? 0 : usual_update_ends(front->usual, args[0]);
    if (is_ended == 0)
        return call_patch(front, args, flags, names);
    return is_ended < 0 && report(front) < 0 ? NULL : Py_NewRef(Py_None);
}

static const vectorcallfunc CALLS_OF[] = {call_module, call_fetch, call_before_update, call_after_update, call_backward};
#define KINDS_OF_FRONTS ((int)(sizeof(CALLS_OF) / sizeof(CALLS_OF[0])))

/* Whoever looks the attribute up gets the patch's function. */
static PyObject *front_bind(PyObject *self, PyObject *object, PyObject *type)
{
    Front *front = (Front *)self;
    if (object == NULL || object == Py_None)
        return Py_NewRef(front->patch);
    return PyObject_CallFunctionObjArgs(front->method, front->patch, object, NULL);
}

static PyObject *front_make(PyTypeObject *type, PyObject *args, PyObject *named)
{
    int kind;
    PyObject *given[GIVEN];
    ModuleState *state = PyType_GetModuleState(type);
    if (state == NULL || !PyArg_ParseTuple(args, "iO!OOOOO:Front", &kind, state->type[USUAL_TYPE], &given[0], &given[1],
                                           &given[2], &given[3], &given[4], &given[5]))
        return NULL;
    if (kind < 0 || kind >= KINDS_OF_FRONTS)
        return PyErr_Format(PyExc_ValueError, "there is no front of kind %d", kind);
    Front *front = owner_new(type, 1 + GIVEN, 1); /* what a call needs stays until no thread can make one */
    if (front == NULL)
        return NULL;
    front->call = CALLS_OF[kind];
    for (int i = 0; i < GIVEN; i++)
        (&front->attributes)[1 + i] = Py_NewRef(given[i]);
    return (PyObject *)front;
}

static PyMemberDef front_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Front, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Front, attributes), READONLY, NULL},
    {NULL},
};

static PyType_Slot front_slots[] = {
    {Py_tp_doc, "Makes and records nearly every call of a training under way."},
    {Py_tp_new, front_make},
    OWNER_SLOTS,
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, front_bind},
    {Py_tp_members, front_members},
    {0, NULL},
};

PyType_Spec front_spec = {
    .name = "training_profiler.recording._native.Front",
    .basicsize = sizeof(Front),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = front_slots,
};

#endif
