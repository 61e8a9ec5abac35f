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
    ENDS, BUFFER, CALLS, KNOWN, OPEN, CAPTURED, IS_GRAD_ENABLED, HOST_CLOCK, TRAINING, WRITE,
    FIRST_KIND, FIRST_CODE = FIRST_KIND + 4, PARTS = FIRST_CODE + 5
};
#define LAST_WITH_FIELDS STEPS
enum { FORWARD_CODE, FETCH_CODE, BACKWARD_CODE, UPDATE_CODE, PIECES_CODE, CODES };
enum { FREE, FORWARD, FETCH, BACKWARD }; /* as in context.py */

/* The attributes that are read and set by their number: recording/event_codes.py names them. They are the first slots of a
class of Python, which lie behind one another in the order of their names. */
#define FIELDS 7
enum { BUSY_WITH, IDENT, CONFIRMED, FUNCTION };                                   /* TrainingThread */
enum { FRAME, BACKWARDS, NUMBER_OF_UPDATES, INFERRED, HAS_MANUAL_STEPS, SHADOWS, MADE_NS }; /* LoopDetector */
enum { BACKWARD_WATCH, UNUSED_GRAPH, UPDATES_AT_KEPT, HAS_GRAD_SCALER };          /* PatchContext */
enum { BACKWARDS_BEFORE };                                                        /* OpenUpdates */
enum { IS_UNRESOLVED, CYCLE };                                                    /* PhaseDetector */
enum { LATEST };                                                                  /* Passes */
enum { OPEN_CODE, IS_IN_CLOSURE, IS_SCALING };                                    /* OptimizerUpdate */
enum { IS_DUE, NEXT_UPDATE };                                                     /* InputSizes */
enum { IS_ALONE, PRIMARY };                                                       /* StepDetector */
enum { CALLER, KIND, IS_BARE, IS_PLAIN, BEGIN_NS, CODE };           /* ModuleCall */
enum { ITERATOR, PHASE, FETCHES, MEASURED_AT, LOADER_ID, PASS_CYCLE, CYCLE_BEGIN_NS }; /* LoaderPass */

/* Others, which are looked up by name. */
enum { CALL_IMPL, COMPILED_CALL_IMPL, NUM_YIELDED, LOADER_ID_OF, IS_TRAINING, NAMES };

typedef struct {
    PyObject_HEAD
    PyObject *at[FIELDS];
} Fields;

typedef struct {
    Owner owner;
    PyObject *part[PARTS]; /* while a training is under way; the program's code may end it */
    PyObject *name[NAMES];
    int64_t event[CODES];
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
#define AT_ONCE_NS 50000      /* as in optimizer_update.py */

static const char *const TEXTS[NAMES] = {
    "_call_impl", "_compiled_call_impl", "_num_yielded", "loader_id", "training",
};

#define IS(of, number, value) (field_of(self, of, number) == (value))
#define NUMBER(of, number) integer(field_of(self, of, number))
#define SET(of, number, value) set_field((Fields *)self->part[of], number, Py_NewRef(value))
#define ZERO self->part[FIRST_KIND + FREE] /* small integers are one object each */

/* Return whether an attribute that is looked up is this object. */
static int usual_is(UsualCalls *self, PyObject *object, int name, PyObject *value)
{
    PyObject *found = PyObject_GetAttr(object, self->name[name]);
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

static int is_usual_call(UsualCalls *self, Fields *call, PyObject *module, PyObject *frame)
{
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    int is_same = call->at[CALLER] == code && call->at[KIND] == (PyObject *)Py_TYPE(module);
    Py_DECREF(code);
    if (!is_same || !IS(UPDATE, OPEN_CODE, ZERO) ||
        !IS(PHASES, IS_UNRESOLVED, Py_False) || !IS(THREAD, FUNCTION, ZERO))
        return 0;
    PyObject *has_grad = PyObject_CallNoArgs(self->part[IS_GRAD_ENABLED]);
    Py_XDECREF(has_grad);
    return has_grad == Py_True;
}

static PyObject *usual_call_begins(UsualCalls *self, PyObject *module, PyObject *frame)
{
    PyObject *key = is_here(self, FREE) ? PyLong_FromVoidPtr(module) : NULL;
    Fields *call = key == NULL ? NULL : (Fields *)PyDict_GetItemWithError(self->part[KNOWN], key);
    Py_XDECREF(key);
    if (call == NULL || !is_usual_call(self, call, module, frame))
        return NULL;
    int64_t code = self->event[FORWARD_CODE], begin_ns = 0;
    Py_INCREF((PyObject *)call);
    if (call->at[IS_BARE] == Py_True) { /* a loss right after the model */
        if (!ends_with(self, -code))
            goto other;
        self->writer->events->length -= 2;
    } else if (!IS(SIZES, IS_DUE, Py_False) || !SET(DETECTOR, FRAME, Py_None) || (begin_ns = record(self, code)) < 0)
        goto other;
    if (set_number(call, BEGIN_NS, begin_ns) && set_field(call, CODE, Py_NewRef(self->part[FIRST_CODE + FORWARD_CODE])) &&
        set_field(call, IS_PLAIN, Py_NewRef(Py_True)) && PyList_Append(self->part[CALLS], (PyObject *)call) == 0 &&
        SET(THREAD, BUSY_WITH, self->part[FIRST_KIND + FORWARD]))
        return (PyObject *)call;
other:
    Py_DECREF((PyObject *)call);
    return NULL;
}

static int usual_call_ends(UsualCalls *self, PyObject *call, PyObject *module)
{
    if (!usual_is(self, module, IS_TRAINING, Py_True) || !is_on(self) ||
        !IS(THREAD, CONFIRMED, self->part[DETECTOR]) || ((Fields *)call)->at[IS_PLAIN] != Py_True)
        return 0;
    PyObject *calls = self->part[CALLS];
    Py_ssize_t length = PyList_Size(calls);
    if (length < 1 || PyList_GetItem(calls, length - 1) != call)
        return 0;
    int is_done = SET(THREAD, BUSY_WITH, ZERO) && PyList_SetSlice(calls, length - 1, length, NULL) == 0 &&
                  record(self, -self->event[FORWARD_CODE]) >= 0;
    return is_done ? 1 : -1;
}

/* Fetches */

static int feeds_training(UsualCalls *self, Fields *pass, PyObject *iterator)
{
    int64_t fetches = integer(pass->at[FETCHES]);
    if (pass->at[PHASE] != self->part[TRAINING] || fetches < 0 || fetches >= integer(pass->at[MEASURED_AT]) ||
        !usual_is(self, self->part[BUFFER], LOADER_ID_OF, pass->at[LOADER_ID]))
        return 0;
    PyObject *iterated = PyObject_CallNoArgs(pass->at[ITERATOR]); /* a weak reference */
    Py_XDECREF(iterated);
    if (iterated == NULL)
        PyErr_Clear();
    return iterated == iterator && !usual_is(self, iterator, NUM_YIELDED, ZERO) && is_on(self);
}

static PyObject *usual_fetch_begins(UsualCalls *self, PyObject *iterator)
{
    if (!is_here(self, FREE) || !IS(PHASES, IS_UNRESOLVED, Py_False) || !is_empty(self, CALLS) ||
        IS(PASSES, LATEST, Py_None))
        return NULL;
    Fields *pass = (Fields *)Py_NewRef(field_of(self, PASSES, LATEST));
    int64_t cycle = NUMBER(PHASES, CYCLE), now_ns;
    if (feeds_training(self, pass, iterator) && SET(DETECTOR, FRAME, Py_None) &&
        (now_ns = record(self, self->event[FETCH_CODE])) >= 0 &&
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
                  SET(DETECTOR, FRAME, Py_None) && record(self, self->event[BACKWARD_CODE]) >= 0 &&
                  SET(THREAD, BUSY_WITH, self->part[FIRST_KIND + BACKWARD]);
    return is_done ? 1 : -1;
}

static int usual_backward_ends(UsualCalls *self)
{
    if (!is_here(self, BACKWARD) || !IS(DETECTOR, INFERRED, Py_None) || !IS(UPDATE, IS_IN_CLOSURE, Py_False) ||
        self->writer->events->length > MAX_PENDING)
        return 0;
    return SET(THREAD, BUSY_WITH, ZERO) && record(self, -self->event[BACKWARD_CODE]) >= 0 ? 1 : -1;
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
                  SET(UPDATE, OPEN_CODE, self->part[FIRST_CODE + UPDATE_CODE]) && record(self, self->event[UPDATE_CODE]) >= 0;
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
        (now_ns = record(self, -self->event[UPDATE_CODE])) < 0 ||
        !set_number((Fields *)self->part[DETECTOR], NUMBER_OF_UPDATES, updates) ||
        !set_number((Fields *)self->part[PHASES], CYCLE, cycle + 1))
        return -1;
    PyObject *time = PyLong_FromLongLong(now_ns);
    PyObject *done = time == NULL ? NULL : PyObject_CallFunctionObjArgs(self->part[ENDS], time, NULL);
    Py_XDECREF(time);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

static int64_t usual_clearing_begins(UsualCalls *self)
{
    if (!is_here(self, FREE) || !is_empty(self, OPEN) || !is_empty(self, CALLS))
        return 0;
    int64_t code = self->event[UPDATE_CODE];
    if (ends_with(self, -code)) { /* right after the update, both are one span */
        PyObject *time = PyObject_CallNoArgs(self->part[HOST_CLOCK]);
        int64_t now_ns = time == NULL ? -1 : PyLong_AsLongLong(time);
        Py_XDECREF(time);
        if (now_ns == -1 && PyErr_Occurred())
            return -1;
        Events *events = self->writer->events;
        if (ends_with(self, -code) && now_ns - events->items[events->length - 2] <= AT_ONCE_NS) {
            events->length -= 2;
            return code;
        }
    }
    return record(self, self->event[PIECES_CODE]) < 0 ? -1 : self->event[PIECES_CODE];
}

static int usual_clearing_ends(UsualCalls *self, int64_t code)
{
    return !is_on(self) || record(self, -code) >= 0 ? 1 : -1;
}

/* The types */

static PyObject *usual_make(PyTypeObject *type, PyObject *args, PyObject *named)
{
    UsualCalls *self = owner_new(type, PARTS + NAMES, PARTS);
    for (int i = 0; self != NULL && i < NAMES; i++)
        if ((self->name[i] = PyUnicode_InternFromString(TEXTS[i])) == NULL)
            Py_CLEAR(self);
    return (PyObject *)self;
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
    for (int i = 0; i < CODES; i++)
        self->event[i] = PyLong_AsLongLong(PyTuple_GetItem(parts, FIRST_CODE + i));
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
    if ((flags & ~MAY_CHANGE) == 0 || !usual_is(usual, args[0], COMPILED_CALL_IMPL, Py_None) || !is_on(usual))
        return call_patch(front, args, flags, names);
    if (field_of(usual, THREAD, BUSY_WITH) != usual->part[FIRST_KIND + FREE]) /* inside another call */
        return PyObject_VectorcallMethod(usual->name[CALL_IMPL], args, flags, names);
    PyObject *frame = (PyObject *)PyEval_GetFrame(), *detector = Py_NewRef(usual->part[DETECTOR]);
    PyObject *call = frame == NULL ? NULL : usual_call_begins(usual, args[0], frame), *result;
    if (call == NULL)
        result = call_patch(front, args, flags, names);
    else {
        result = PyObject_VectorcallMethod(usual->name[CALL_IMPL], args, flags, names);
        put_aside(result, raised);
        PyObject *given[4] = {detector, call, args[0], NULL};
        result = finish(front, result, raised, usual_call_ends(usual, call, args[0]), given);
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

static PyObject *call_clearing(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    PyObject *raised[3];
    int64_t code = names == NULL && (flags & ~MAY_CHANGE) == 1 ? usual_clearing_begins(front->usual) : 0;
    if (code <= 0)
        return call_patch(front, args, flags, names);
    PyObject *result = PyObject_Vectorcall(front->original, args, flags, names);
    put_aside(result, raised);
    return finish(front, result, raised, usual_clearing_ends(front->usual, code), NULL);
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

static const vectorcallfunc CALLS_OF[] = {call_module, call_fetch, call_clearing, call_before_update, call_after_update,
                                          call_backward};
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
