/* What stands in front of the functions of patches while a training is under way: it makes and records nearly every call
without a frame of Python. Any other call goes to the patch's function, which knows all cases. instrumentation/fronts.py
puts it there.

Only a call meets a front: the attribute of a class is the patch's function for everybody who looks it up, so that a
tracer such as dynamo finds Python that it can follow. */

#include "fast_path.h"

#ifdef _WIN32 /* its library for the limited API of Python 3.11 has no vectorcalls, so patches serve alone */

int fronts_add(PyObject *module)
{
    return 0;
}

#else

#include <stddef.h>
#include <string.h>
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
    FastPath *path;
    PyObject *original;       /* what the program calls */
    PyObject *patch;          /* makes and records calls of every kind */
    PyObject *ended;          /* is called at an end that needs more than its time */
    PyObject *captured;       /* captures of graphs under way: nothing is recorded meanwhile */
    PyObject *on_error;       /* is called with an error of ours */
    PyObject *tensor, *device; /* torch's classes, of fronts that ask for them */
    PyObject *implementation; /* the name of what a call of a module calls */
    PyTypeObject *method_type;
    PyObject *attributes; /* its name and the like */
} Front;

static inline PyObject *call_patch(Front *front, PyObject *const *args, size_t flags, PyObject *names)
{
    return PyObject_Vectorcall(front->patch, args, flags, names);
}

static inline PyObject *call_original(Front *front, PyObject *const *args, size_t flags, PyObject *names)
{
    return PyObject_Vectorcall(front->original, args, flags, names);
}

/* Return how many arguments a call has; -1 if some have names. */
static inline Py_ssize_t count_of(size_t flags, PyObject *names)
{
    return names == NULL ? (Py_ssize_t)(flags & ~MAY_CHANGE) : -1;
}

static inline int is_capturing(Front *front)
{
    return PyObject_IsTrue(front->captured) != 0;
}

/* Return the detector of a thread that has trained, which need not be the calling one; owned, NULL without one. */
static PyObject *any_detector(Front *front)
{
    Fields *thread = front->path->thread;
    PyObject *detector = thread == NULL ? NULL : thread->at[DETECTOR];
    return detector == NULL || detector == Py_None ? NULL : Py_NewRef(detector);
}

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

/* Make a call whose begin was not recorded, perhaps because of an error. */
static PyObject *call_unrecorded(Front *front, PyObject *const *args, size_t flags, PyObject *names)
{
    if (PyErr_Occurred() && report(front) < 0)
        return NULL;
    return call_patch(front, args, flags, names);
}

/* Put what a call raised aside until finish(); it raised nothing if it has a result. */
static inline void put_aside(PyObject *result, PyObject *exception[3])
{
    exception[0] = exception[1] = exception[2] = NULL;
    if (result == NULL)
        PyErr_Fetch(&exception[0], &exception[1], &exception[2]);
}

/* Take note of the end of a call, which has an exception unless it succeeded; let go of what its begin returned. What the
   call returned or raised stays, unless this is interrupted. */
static PyObject *finish(Front *front, PyObject *result, int is_ended, PyObject *exception[3], PyObject *begun,
                        PyObject *detector)
{
    int is_interrupted = !is_ended && report(front) < 0;
    Py_XDECREF(begun);
    Py_DECREF(detector);
    if (!is_interrupted) {
        if (result == NULL)
            PyErr_Restore(exception[0], exception[1], exception[2]);
        return result;
    }
    for (int i = 0; i < 3; i++)
        Py_XDECREF(exception[i]);
    Py_XDECREF(result);
    return NULL;
}

/* Return whether an end that needs more than its time succeeded; otherwise there is an exception. */
static int end_by_python(Front *front, PyObject *first, PyObject *second, PyObject *third)
{
    PyObject *done = PyObject_CallFunctionObjArgs(front->ended, first, second, third, NULL);
    Py_XDECREF(done);
    return done != NULL;
}

/* Module calls */

static PyObject *call_module(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    FastPath *path = front->path;
    if ((flags & ~MAY_CHANGE) == 0 || path->thread == NULL)
        return call_patch(front, args, flags, names);
    int is_free = is_busy_with(path, FREE);
    PyObject *frame = is_free ? (PyObject *)PyEval_GetFrame() : NULL, *detector, *exception[3];
    PyObject *call = frame == NULL ? NULL : (PyObject *)expected_call(path, args[0], frame);
    if (call != NULL)
        detector = Py_NewRef((PyObject *)path->pattern->detector);
    else if (frame != NULL && PyErr_Occurred())
        return call_unrecorded(front, args, flags, names);
    else {
        int is_usual = runs_own_code(path, args[0]);
        if (is_usual < 0)
            PyErr_Clear(); /* the patch finds the same, and reports it */
        if (is_usual <= 0)
            return call_patch(front, args, flags, names);
        if (!is_free) /* inside another call */
            return PyObject_VectorcallMethod(front->implementation, args, flags, names);
        detector = frame == NULL ? NULL : any_detector(front);
        call = detector == NULL ? NULL : (PyObject *)begin_call(path, args[0], frame);
        if (call == NULL && detector != NULL && !PyErr_Occurred())
            call = (PyObject *)repeat_call(path, args[0], frame);
        if (call == NULL) {
            Py_XDECREF(detector);
            return call_unrecorded(front, args, flags, names);
        }
    }
    PyObject *result = PyObject_VectorcallMethod(front->implementation, args, flags, names);
    put_aside(result, exception);
    int is_ended = call_ends(path, call, args[0], detector);
    if (is_ended == 0)
        is_ended = end_by_python(front, detector, call, args[0]);
    return finish(front, result, is_ended > 0, exception, call, detector);
}

/* Updates */

static PyObject *call_clearing(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    PyObject *detector = count_of(flags, names) == 1 ? any_detector(front) : NULL, *exception[3];
    int64_t code = detector == NULL ? 0 : clearing_begins(front->path);
    if (code <= 0) {
        Py_XDECREF(detector);
        return call_unrecorded(front, args, flags, names);
    }
    PyObject *result = call_original(front, args, flags, names);
    put_aside(result, exception);
    return finish(front, result, clearing_ends(front->path, code, detector) == 0, exception, NULL, detector);
}

/* Return what a hook of an update returns, whose fast path returned `done`. */
static PyObject *end_hook(Front *front, PyObject *done, PyObject *const *args, size_t flags)
{
    if (done == NULL)
        return report(front) < 0 ? NULL : Py_NewRef(Py_None);
    int is_done = done == Py_True;
    Py_DECREF(done);
    return is_done ? Py_NewRef(Py_None) : call_patch(front, args, flags, NULL);
}

static PyObject *call_before_update(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    Py_ssize_t count = count_of(flags, names);
    int is_begun = count < 1 ? 0 : begin_expected_update(front->path, args[0]);
    if (is_begun != 0)
        return is_begun < 0 && report(front) < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    if (count < 1 || frame == NULL || is_capturing(front))
        return call_patch(front, args, flags, names);
    PyObject *given[] = {args[0], frame};
    return end_hook(front, path_update_begins(front->path, given, 2), args, flags);
}

static PyObject *call_after_update(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    Py_ssize_t count = count_of(flags, names);
    int is_ended = count < 1 ? 0 : end_expected_update(front->path, args[0]);
    if (is_ended != 0)
        return is_ended < 0 && report(front) < 0 ? NULL : Py_NewRef(Py_None);
    if (count < 1 || is_capturing(front))
        return call_patch(front, args, flags, names);
    return end_hook(front, path_update_ends(front->path, args[0]), args, flags);
}

/* Fetches */

static PyObject *call_fetch(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    PyObject *detector = count_of(flags, names) == 1 ? any_detector(front) : NULL, *exception[3];
    PyObject *fetch = detector == NULL ? NULL : path_fetch_begins(front->path, args[0]);
    if (fetch == NULL || fetch == Py_None) {
        Py_XDECREF(fetch);
        Py_XDECREF(detector);
        return call_unrecorded(front, args, flags, names);
    }
    PyObject *batch = call_original(front, args, flags, names);
    PyObject *is_over = batch == NULL && PyErr_ExceptionMatches(PyExc_StopIteration) ? Py_True : Py_False;
    put_aside(batch, exception);
    int is_ended = batch == NULL ? end_by_python(front, fetch, detector, is_over)
                                 : fetch_ends(front->path, fetch, detector, batch) == 0;
    return finish(front, batch, is_ended, exception, fetch, detector);
}

/* Transfers */

static PyObject *call_transfer(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    if ((flags & ~MAY_CHANGE) < 1 || (PyObject *)Py_TYPE(args[0]) != front->tensor) /* such as a tensor of a tracer */
        return call_patch(front, args, flags, names);
    if (!is_busy_with(front->path, FREE)) /* inside another call */
        return call_original(front, args, flags, names);
    PyObject *detector = path_transfer_begins(front->path, NULL), *exception[3];
    if (detector == NULL || detector == Py_None) {
        Py_XDECREF(detector);
        return call_unrecorded(front, args, flags, names);
    }
    PyObject *result = call_original(front, args, flags, names);
    put_aside(result, exception);
    PyObject *ended = path_transfer_ends(front->path, detector);
    Py_XDECREF(ended);
    return finish(front, result, ended != NULL, exception, NULL, detector);
}

static int is_called(PyObject *name, const char *text)
{
    return PyUnicode_CompareWithASCIIString(name, text) == 0;
}

/* Return whether the arguments name a device: by a string, its number, a device, or a tensor that is there. */
static int names_device(Front *front, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (count > 1 && (PyUnicode_Check(args[1]) || PyLong_Check(args[1]) || (PyObject *)Py_TYPE(args[1]) == front->device ||
                      PyObject_TypeCheck(args[1], (PyTypeObject *)front->tensor)))
        return 1;
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_Size(names); i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        if (is_called(name, "tensor") || (is_called(name, "device") && args[count + i] != Py_None))
            return 1;
    }
    return 0;
}

static PyObject *call_to(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Front *front = (Front *)self;
    Py_ssize_t count = (Py_ssize_t)(flags & ~MAY_CHANGE);
    int is_tensor = count > 0 && (PyObject *)Py_TYPE(args[0]) == front->tensor;
    if (is_tensor && !names_device(front, args, count, names))
        return call_original(front, args, flags, names);
    return call_transfer(self, args, flags, names);
}

/* The type */

static const struct {
    const char *kind;
    vectorcallfunc call;
} CALLS_OF[] = {
    {"module", call_module},
    {"clearing", call_clearing},
    {"fetch", call_fetch},
    {"before update", call_before_update},
    {"after update", call_after_update},
    {"transfer", call_transfer},
    {"to", call_to},
};

/* Whoever looks the attribute up gets the patch's function. */
static PyObject *front_bind(PyObject *self, PyObject *object, PyObject *type)
{
    Front *front = (Front *)self;
    if (object == NULL || object == Py_None)
        return Py_NewRef(front->patch);
    return PyObject_CallFunctionObjArgs((PyObject *)front->method_type, front->patch, object, NULL);
}

#define FOR_EACH_OWNED(DO)                                                                                             \
    DO(front->path);                                                                                                   \
    DO(front->original);                                                                                               \
    DO(front->patch);                                                                                                  \
    DO(front->ended);                                                                                                  \
    DO(front->captured);                                                                                               \
    DO(front->on_error);                                                                                               \
    DO(front->tensor);                                                                                                 \
    DO(front->device);                                                                                                 \
    DO(front->implementation);                                                                                         \
    DO(front->method_type);                                                                                            \
    DO(front->attributes)

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
    const char *kind;
    PyObject *path, *original, *patch, *ended, *captured, *on_error, *tensor = NULL, *device = NULL;
    ModuleState *state = PyType_GetModuleState(type);
    if (state == NULL ||
        !PyArg_ParseTuple(args, "sO!OOOOO|O!O!:Front", &kind, state->fast_path_type, &path, &original, &patch, &ended,
                          &captured, &on_error, &PyType_Type, &tensor, &PyType_Type, &device))
        return NULL;
    vectorcallfunc call = NULL;
    for (size_t i = 0; i < sizeof(CALLS_OF) / sizeof(CALLS_OF[0]); i++)
        if (strcmp(kind, CALLS_OF[i].kind) == 0)
            call = CALLS_OF[i].call;
    int needs_classes = call == call_transfer || call == call_to;
    if (call == NULL || (needs_classes && device == NULL))
        return PyErr_Format(PyExc_ValueError, "there is no front of the kind '%s'", kind);
    Front *front = (Front *)PyType_GenericAlloc(type, 0);
    if (front == NULL)
        return NULL;
    front->call = call;
    front->path = (FastPath *)Py_NewRef(path);
    front->original = Py_NewRef(original);
    front->patch = Py_NewRef(patch);
    front->ended = Py_NewRef(ended);
    front->captured = Py_NewRef(captured);
    front->on_error = Py_NewRef(on_error);
    front->tensor = Py_XNewRef(tensor);
    front->device = Py_XNewRef(device);
    front->implementation = PyUnicode_InternFromString("_call_impl");
    PyObject *types = PyImport_ImportModule("types");
    front->method_type = types == NULL ? NULL : (PyTypeObject *)PyObject_GetAttrString(types, "MethodType");
    Py_XDECREF(types);
    if (PyErr_Occurred())
        Py_CLEAR(front);
    return (PyObject *)front;
}

static PyMemberDef front_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Front, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Front, attributes), READONLY, NULL},
    {"patch", T_OBJECT, offsetof(Front, patch), READONLY, "The function that stands behind it."},
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

static PyType_Spec front_spec = {
    .name = "training_profiler.recording._native.Front",
    .basicsize = sizeof(Front),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = front_slots,
};

int fronts_add(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &front_spec, NULL);
    int result = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return result;
}

#endif
