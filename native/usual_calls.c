/* What is recorded of nearly every call of a training under way. The functions of patches in Python do the same and know
every other case: they are asked where a function here returns 0 or NULL without an exception, for then it has changed
nothing. The state is that of Python's objects, read and set by name. */

#include "usual_calls.h"

#include <stddef.h>
#include <structmember.h>

#define MAX_PENDING (1 << 16) /* integers, as in pending_events.py */
#define AT_ONCE_NS 50000      /* as in optimizer_update.py */
#define STEP_END 0            /* as in event_codes.py */
#define NESTED 4              /* levels of a batch, as in data_loader.py */

#define AS_TEXT(name) #name,
static const char *const TEXTS[] = {FOR_EACH_NAME(AS_TEXT)};

#define IS(of, number, value) (field_of(self, of, number) == (value))
#define NUMBER(of, number) integer(field_of(self, of, number))
#define SET(of, number, value) set_field((Fields *)self->part[of], number, Py_NewRef(value))
#define ZERO self->kind[FREE] /* small integers are one object each */

int usual_is(UsualCalls *self, PyObject *object, int name, PyObject *value)
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
    return self->is_on && IS(THREAD, BUSY_WITH, self->kind[busy_with]) &&
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

PyObject *usual_call_begins(UsualCalls *self, PyObject *module, PyObject *frame)
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
    if (set_number(call, BEGIN_NS, begin_ns) && set_field(call, CODE, Py_NewRef(self->code[FORWARD_CODE])) &&
        set_field(call, IS_PLAIN, Py_NewRef(Py_True)) && PyList_Append(self->part[CALLS], (PyObject *)call) == 0 &&
        SET(THREAD, BUSY_WITH, self->kind[FORWARD]))
        return (PyObject *)call;
other:
    Py_DECREF((PyObject *)call);
    return NULL;
}

int usual_call_ends(UsualCalls *self, PyObject *call, PyObject *module)
{
    if (!usual_is(self, module, N_training, Py_True) || !self->is_on ||
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
        !usual_is(self, self->part[BUFFER], N_loader_id, pass->at[LOADER_ID]))
        return 0;
    PyObject *iterated = PyObject_CallNoArgs(pass->at[ITERATOR]); /* a weak reference */
    Py_XDECREF(iterated);
    if (iterated == NULL)
        PyErr_Clear();
    return iterated == iterator && !usual_is(self, iterator, N__num_yielded, ZERO) && self->is_on;
}

PyObject *usual_fetch_begins(UsualCalls *self, PyObject *iterator)
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
        SET(THREAD, BUSY_WITH, self->kind[FETCH]))
        return (PyObject *)pass;
    Py_DECREF((PyObject *)pass);
    return NULL;
}

/* Return the samples of a batch; -1 where its first part is not a tensor, and without an exception. */
static int64_t samples_of(UsualCalls *self, PyObject *batch)
{
    for (int level = 0; level < NESTED; level++) {
        PyObject *first = NULL, *key;
        Py_ssize_t at = 0;
        if (PyList_CheckExact(batch))
            first = PyList_Size(batch) ? PyList_GetItem(batch, 0) : NULL;
        else if (PyTuple_CheckExact(batch))
            first = PyTuple_Size(batch) ? PyTuple_GetItem(batch, 0) : NULL;
        else if (!PyDict_CheckExact(batch))
            break;
        else
            PyDict_Next(batch, &at, &key, &first);
        if (first == NULL)
            return -1;
        batch = first;
    }
    PyObject *shape = PyObject_GetAttr(batch, self->name[N_shape]);
    if (shape == NULL)
        PyErr_Clear();
    PyObject *first = shape != NULL && PyTuple_Check(shape) && PyTuple_Size(shape) ? PyTuple_GetItem(shape, 0) : NULL;
    int64_t samples = first != NULL && PyLong_CheckExact(first) ? PyLong_AsLongLong(first) : -1;
    Py_XDECREF(shape);
    return samples;
}

int usual_fetch_ends(UsualCalls *self, PyObject *of, PyObject *batch)
{
    Fields *pass = (Fields *)of;
    if (!is_here(self, FETCH) || !is_empty(self, FETCHING) || pass->at[PHASE] != self->part[TRAINING] ||
        self->writer->events->length > MAX_PENDING)
        return 0;
    int is_counted = pass->at[SAMPLES] != Py_None;
    int64_t fetches = integer(pass->at[FETCHES]), samples = is_counted ? samples_of(self, batch) : 0;
    if (fetches < 1 || samples < 0 || !self->is_on)
        return 0;
    int is_done = SET(THREAD, BUSY_WITH, ZERO) &&
                  (!is_counted || set_number(pass, SAMPLES, integer(pass->at[SAMPLES]) + samples)) &&
                  record(self, -self->event[FETCH_CODE]) >= 0 && set_number(pass, FETCHES, fetches + 1);
    return is_done ? 1 : -1;
}

/* Backward passes */

int usual_backward_begins(UsualCalls *self)
{
    if (!is_here(self, FREE) || !is_empty(self, CAPTURED) || !is_empty(self, CALLS) ||
        !IS(CONTEXT, UNUSED_GRAPH, Py_None) || !IS(CONTEXT, UPDATES_AT_KEPT, Py_None) ||
        !IS(CONTEXT, BACKWARD_WATCH, Py_None) || !IS(DETECTOR, INFERRED, Py_None) || !IS(UPDATE, OPEN_CODE, ZERO) ||
        !IS(PHASES, IS_UNRESOLVED, Py_False) || !IS(EARLY, MADE_NS, ZERO))
        return 0;
    int is_done = set_number((Fields *)self->part[DETECTOR], BACKWARDS, NUMBER(DETECTOR, BACKWARDS) + 1) &&
                  SET(DETECTOR, FRAME, Py_None) && record(self, self->event[BACKWARD_CODE]) >= 0 &&
                  SET(THREAD, BUSY_WITH, self->kind[BACKWARD]);
    return is_done ? 1 : -1;
}

int usual_backward_ends(UsualCalls *self)
{
    if (!is_here(self, BACKWARD) || !IS(DETECTOR, INFERRED, Py_None) || !IS(UPDATE, IS_IN_CLOSURE, Py_False) ||
        self->writer->events->length > MAX_PENDING)
        return 0;
    return SET(THREAD, BUSY_WITH, ZERO) && record(self, -self->event[BACKWARD_CODE]) >= 0 ? 1 : -1;
}

/* Updates */

int usual_update_begins(UsualCalls *self, PyObject *optimizer, PyObject *frame)
{
    if (!is_here(self, FREE) || !is_empty(self, OPEN) || !is_empty(self, CALLS) || !is_empty(self, CAPTURED) ||
        !IS(PHASES, IS_UNRESOLVED, Py_False) || !IS(UPDATE, IS_SCALING, Py_False))
        return 0;
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    PyObject *id = PyLong_FromVoidPtr(optimizer), *frame_id = PyLong_FromVoidPtr(frame);
    PyObject *update = id == NULL || frame_id == NULL ? NULL : PyTuple_Pack(3, id, frame_id, code);
    int is_done = update != NULL && PyList_Append(self->part[OPEN], update) == 0 && SET(DETECTOR, FRAME, Py_None) &&
                  SET(UPDATE, OPEN_CODE, self->code[UPDATE_CODE]) && record(self, self->event[UPDATE_CODE]) >= 0;
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
           IS(UPDATE, OPEN_CODE, self->code[UPDATE_CODE]) && backwards != NUMBER(UPDATES, BACKWARDS_BEFORE) &&
           IS(STEPS, IS_ALONE, Py_True) && NUMBER(STEPS, PRIMARY) == (int64_t)(intptr_t)optimizer;
}

/* End a step, as StepEnds and the recorder's ends_quietly do. */
static int end_step(UsualCalls *self, int64_t at_ns)
{
    Events *marks = (Events *)self->part[MARKS];
    PyObject *count = field_of(self, RECORDER, STEP_COUNT);
    int64_t steps = count == Py_None ? 0 : integer(((Fields *)count)->at[STEPS_ENDED]) + 1;
    int is_after = marks->length < 2 || marks->items[marks->length - 2] <= at_ns;
    if (IS(ENDS, LATEST_AT_END, field_of(self, PASSES, LATEST)) && steps > 0 &&
        at_ns < NUMBER(RECORDER, QUIET_UNTIL_NS) && steps < NUMBER(RECORDER, QUIET_BEFORE) && is_after) {
        if (events_reserve(marks, 2) < 0)
            return -1;
        marks->items[marks->length] = at_ns;
        marks->items[marks->length + 1] = STEP_END;
        marks->length += 2;
        return (IS(RECORDER, WATERMARK_NS, Py_None) ||
                set_number((Fields *)self->part[RECORDER], WATERMARK_NS, at_ns)) &&
                       set_number((Fields *)self->part[RECORDER], QUIET_END_NS, at_ns) &&
                       set_number((Fields *)count, STEPS_ENDED, steps)
                   ? 0
                   : -1;
    }
    PyObject *time = PyLong_FromLongLong(at_ns);
    PyObject *done = time == NULL ? NULL : PyObject_CallFunctionObjArgs(self->part[ENDS], time, NULL);
    Py_XDECREF(time);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

int usual_update_ends(UsualCalls *self, PyObject *optimizer)
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
    return end_step(self, now_ns) < 0 ? -1 : 1;
}

int64_t usual_clearing_begins(UsualCalls *self)
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

int usual_clearing_ends(UsualCalls *self, int64_t code)
{
    return !self->is_on || record(self, -code) >= 0 ? 1 : -1;
}

/* The types */

static int fields_traverse(Fields *fields, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)fields));
    for (int i = 0; i < FIELDS; i++)
        Py_VISIT(fields->at[i]);
    return 0;
}

static int fields_clear(Fields *fields)
{
    for (int i = 0; i < FIELDS; i++)
        Py_CLEAR(fields->at[i]);
    return 0;
}

static void fields_dealloc(Fields *fields)
{
    PyTypeObject *type = Py_TYPE((PyObject *)fields);
    PyObject_GC_UnTrack(fields);
    fields_clear(fields);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(fields);
    Py_DECREF(type);
}

#define FIELD(number) {"at" #number, T_OBJECT_EX, offsetof(Fields, at[number]), 0, NULL}
static PyMemberDef fields_members[] = {
    FIELD(0), FIELD(1), FIELD(2), FIELD(3), FIELD(4), FIELD(5), FIELD(6), FIELD(7), {NULL},
};

static PyType_Slot fields_slots[] = {
    {Py_tp_doc, "Attributes that C reads, too."},
    {Py_tp_traverse, fields_traverse},
    {Py_tp_clear, fields_clear},
    {Py_tp_dealloc, fields_dealloc},
    {Py_tp_members, fields_members},
    {0, NULL},
};

PyType_Spec fields_spec = {
    .name = "training_profiler.recording._native.Fields",
    .basicsize = sizeof(Fields),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = fields_slots,
};

static int usual_traverse(UsualCalls *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (int i = 0; i < PARTS; i++)
        Py_VISIT(self->part[i]);
    return 0;
}

static int usual_clear(UsualCalls *self)
{
    self->is_on = 0;
    for (int i = 0; i < PARTS; i++)
        Py_CLEAR(self->part[i]);
    return 0;
}

static void usual_dealloc(UsualCalls *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    usual_clear(self);
    for (int i = 0; i < CODES; i++)
        Py_CLEAR(self->code[i]);
    for (int i = 0; i < KINDS; i++)
        Py_CLEAR(self->kind[i]);
    for (int i = 0; i < NAMES; i++)
        Py_CLEAR(self->name[i]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *usual_make(PyTypeObject *type, PyObject *args, PyObject *named)
{
    UsualCalls *self = (UsualCalls *)PyType_GenericAlloc(type, 0);
    for (int i = 0; self != NULL && i < KINDS; i++)
        self->kind[i] = PyLong_FromLong(i);
    for (int i = 0; self != NULL && i < NAMES; i++)
        self->name[i] = PyUnicode_InternFromString(TEXTS[i]);
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void replace(PyObject **place, PyObject *value)
{
    PyObject *before = *place;
    *place = Py_NewRef(value);
    Py_XDECREF(before);
}

static PyObject *usual_use(UsualCalls *self, PyObject *args)
{
    PyObject *parts, *codes;
    ModuleState *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    if (!PyArg_ParseTuple(args, "O!O!:use", &PyTuple_Type, &parts, &PyTuple_Type, &codes))
        return NULL;
    int is_right = PyTuple_Size(parts) == PARTS && PyTuple_Size(codes) == CODES &&
                   PyCFunction_CheckExact(PyTuple_GetItem(parts, WRITE));
    for (int i = 0; is_right && i <= LAST_WITH_FIELDS; i++)
        is_right = PyObject_TypeCheck(PyTuple_GetItem(parts, i), state->fields_type);
    if (!is_right)
        return PyErr_Format(PyExc_TypeError, "use() takes %d parts and %d codes", PARTS, CODES);
    for (int i = 0; i < CODES; i++) {
        replace(&self->code[i], PyTuple_GetItem(codes, i));
        self->event[i] = PyLong_AsLongLong(self->code[i]);
    }
    self->writer = (Writer *)PyCFunction_GetSelf(PyTuple_GetItem(parts, WRITE));
    for (int i = 0; i < PARTS; i++)
        replace(&self->part[i], PyTuple_GetItem(parts, i));
    self->is_on = 1;
    Py_RETURN_NONE;
}

static PyObject *usual_forget(UsualCalls *self, PyObject *ignored)
{
    usual_clear(self);
    Py_RETURN_NONE;
}

static PyMethodDef usual_methods[] = {
    {"use", (PyCFunction)usual_use, METH_VARARGS, "Record the calls of a loop detector: its parts, and its codes."},
    {"forget", (PyCFunction)usual_forget, METH_NOARGS, "Record none."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot usual_slots[] = {
    {Py_tp_doc, "Records nearly every call of a training under way."},
    {Py_tp_new, usual_make},
    {Py_tp_traverse, usual_traverse},
    {Py_tp_clear, usual_clear},
    {Py_tp_dealloc, usual_dealloc},
    {Py_tp_methods, usual_methods},
    {0, NULL},
};

PyType_Spec usual_spec = {
    .name = "training_profiler.recording._native.UsualCalls",
    .basicsize = sizeof(UsualCalls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = usual_slots,
};
