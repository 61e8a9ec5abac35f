/* What stands in front of the functions of patches while a training is under way: it makes and records nearly every call
without a frame of Python, which a step of 0.25 ms evicts from the caches. Any other call goes to the patch's function.

Only a call meets a front: who looks the attribute of a class up finds the patch's function, so that a tracer such as
dynamo finds Python that it can follow. instrumentation/fronts.py puts fronts into their places. */

#include "usual_calls.h"

#ifndef _WIN32 /* whose library for the limited API of Python 3.11 has no vectorcalls: patches serve alone */

#include <stddef.h>
#include <structmember.h>

/* Of the limited API since Python 3.12; Python 3.11 exports the same. */
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
typedef PyObject *(*vectorcallfunc)(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names);
PyAPI_FUNC(PyObject *) PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);
PyAPI_FUNC(PyObject *) PyObject_VectorcallMethod(PyObject *, PyObject *const *, size_t, PyObject *);
PyAPI_FUNC(PyObject *) PyVectorcall_Call(PyObject *, PyObject *, PyObject *);
#define MAY_CHANGE ((size_t)1 << (8 * sizeof(size_t) - 1)) /* not a part of the number of arguments */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    UsualCalls *usual;
    PyObject *original; /* what the program calls */
    PyObject *patch;    /* makes and records calls of every kind */
    PyObject *ended;    /* is called at an end that is not usual */
    PyObject *on_error; /* is called with an error of ours */
    PyObject *method;   /* the type of bound methods */
    PyObject *attributes;
} Front;

#define FOR_EACH_OWNED(DO)                                                                                             \
    DO(front->usual);                                                                                                  \
    DO(front->original);                                                                                               \
    DO(front->patch);                                                                                                  \
    DO(front->ended);                                                                                                  \
    DO(front->on_error);                                                                                               \
    DO(front->method);                                                                                                 \
    DO(front->attributes)

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
    if ((flags & ~MAY_CHANGE) == 0 || !usual_is(usual, args[0], N__compiled_call_impl, Py_None) || !usual->is_on)
        return call_patch(front, args, flags, names);
    if (field_of(usual, THREAD, BUSY_WITH) != usual->kind[FREE]) /* inside another call */
        return PyObject_VectorcallMethod(usual->name[N__call_impl], args, flags, names);
    PyObject *frame = (PyObject *)PyEval_GetFrame(), *detector = Py_NewRef(usual->part[DETECTOR]);
    PyObject *call = frame == NULL ? NULL : usual_call_begins(usual, args[0], frame), *result;
    if (call == NULL)
        result = call_patch(front, args, flags, names);
    else {
        result = PyObject_VectorcallMethod(usual->name[N__call_impl], args, flags, names);
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
    int is_ended = batch == NULL ? 0 : usual_fetch_ends(front->usual, pass, batch);
    batch = finish(front, batch, raised, is_ended, given);
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

static int front_traverse(Front *front, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)front));
    FOR_EACH_OWNED(Py_VISIT);
    return 0;
}

/* What a call needs stays until nobody can make one. */
static int front_clear(Front *front)
{
    Py_CLEAR(front->attributes);
    return 0;
}

static void front_dealloc(Front *front)
{
    PyTypeObject *type = Py_TYPE((PyObject *)front);
    PyObject_GC_UnTrack(front);
    FOR_EACH_OWNED(Py_CLEAR);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(front);
    Py_DECREF(type);
}

static PyObject *front_make(PyTypeObject *type, PyObject *args, PyObject *named)
{
    int kind;
    PyObject *usual, *original, *patch, *ended, *on_error, *method;
    ModuleState *state = PyType_GetModuleState(type);
    if (state == NULL || !PyArg_ParseTuple(args, "iO!OOOOO:Front", &kind, state->usual_type, &usual, &original, &patch,
                                           &ended, &on_error, &method))
        return NULL;
    if (kind < 0 || kind >= KINDS_OF_FRONTS)
        return PyErr_Format(PyExc_ValueError, "there is no front of kind %d", kind);
    Front *front = (Front *)PyType_GenericAlloc(type, 0);
    if (front == NULL)
        return NULL;
    front->call = CALLS_OF[kind];
    front->usual = (UsualCalls *)Py_NewRef(usual);
    front->original = Py_NewRef(original);
    front->patch = Py_NewRef(patch);
    front->ended = Py_NewRef(ended);
    front->on_error = Py_NewRef(on_error);
    front->method = Py_NewRef(method);
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
    {Py_tp_traverse, front_traverse},
    {Py_tp_clear, front_clear},
    {Py_tp_dealloc, front_dealloc},
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
