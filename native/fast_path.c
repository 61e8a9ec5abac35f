/* The fast paths of a training thread: the begins and ends of gradients, and the type of all of them. */

#include "fast_path.h"

int is_ident_of_calling(FastPath *path, PyObject *ident)
{
    if (ident == NULL || !PyLong_Check(ident))
        return 0;
    if (ident != path->ident) {
        PyObject *before = path->ident;
        path->ident = Py_NewRef(ident);
        path->ident_number = (unsigned long)integer(ident, 0);
        path->pointer = NULL;
        Py_XDECREF(before);
    }
    int is_calling = path->ident_number != 0 && path->ident_number == PyThread_get_thread_ident();
    path->pointer = is_calling ? thread_pointer() : NULL;
    return is_calling;
}

static int is_same_attribute(PyObject *one, PyObject *other, const char *name)
{
    PyObject *found[] = {PyObject_GetAttrString(one, name), PyObject_GetAttrString(other, name)};
    int result = found[0] != NULL && found[0] == found[1];
    PyErr_Clear();
    Py_XDECREF(found[0]);
    Py_XDECREF(found[1]);
    return result;
}

ModuleClass *class_of_module(FastPath *path, PyTypeObject *type)
{
    ModuleClass *known = &path->classes[((uintptr_t)type >> 6) % KNOWN_CLASSES];
    PyObject *class = (PyObject *)type, *before = (PyObject *)known->type;
    PyObject *compiled = PyObject_GetAttr(class, path->compiled_call);
    PyErr_Clear();
    int is_plain = is_same_attribute(class, (PyObject *)&PyBaseObject_Type, "__getattribute__");
    int has_own_mode = is_plain && !PyObject_HasAttr(class, path->training_mode);
    known->has_own_compiled = is_plain && compiled == Py_None;
    known->has_own_mode = has_own_mode;
    known->type = (PyTypeObject *)Py_NewRef(class);
    Py_XDECREF(compiled);
    Py_XDECREF(before);
    return known;
}

/* Gradients */

/* Return whether a backward pass needs nothing but its time. */
static int is_usual_backward(Fields *gradients)
{
    return gradients != NULL && gradients->at[BACKWARD_WATCH] == Py_None && gradients->at[UNUSED_GRAPH] == Py_None &&
           gradients->at[UPDATES_AT_KEPT] == Py_None;
}

static PyObject *path_backward_begins(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "backward_begins() takes whether the graph is kept, and whether one is created");
        return NULL;
    }
    int frees_graph = (args[0] == Py_None || args[0] == Py_False) && args[1] == Py_False;
    int may_be = frees_graph && is_busy_with(path, FREE), result = 0;
    ExpectedCall *next = may_be ? expected(path, AT_BACKWARD, NULL) : NULL;
    if (next != NULL && (result = begin_expected(path, next, next->event)) > 0) {
        path->pattern->detector->numbers[BACKWARDS]++;
        return Py_NewRef((PyObject *)path->pattern->detector);
    }
    if (result < 0)
        return NULL;
    Fields *detector = may_be && is_usual_backward(path->gradients) ? detector_of(path) : NULL;
    if (detector == NULL)
        Py_RETURN_NONE;
    ask(path);
    int is_usual = detector->at[INFERRED] == Py_None && is_list(detector->at[CALLS], 0);
    if (is_usual) {
        Fields *early = fields_of(path, EARLY_OF, detector->at[EARLY]);
        Writer *writer = writer_of(path, detector);
        int64_t now_ns = 0;
        if (!is_bare_detector(path, detector) || is_undecided(path, detector) || writer == NULL || early == NULL ||
            early->numbers[MADE_NS] != 0)
            result = call_method(detector, "backward_begins", NULL);
        else {
            detector->numbers[BACKWARDS]++;
            give(detector, FRAME, Py_NewRef(Py_None));
            result = write_owned(writer, detector->numbers[BACKWARD_CODE], &now_ns);
            note_begin(path, (ExpectedCall){.kind = AT_BACKWARD, .event = detector->numbers[BACKWARD_CODE]});
        }
        if (result == 0)
            set_busy(path, BACKWARD);
    }
    if (is_usual && result == 0)
        return (PyObject *)detector;
    Py_DECREF((PyObject *)detector);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *path_backward_ends(FastPath *path, PyObject *object)
{
    int64_t now_ns;
    ExpectedCall *open = expected_end(path, AT_BACKWARD);
    int result = open == NULL ? 0 : end_expected(path, open, -open->event, &now_ns);
    if (result != 0)
        return result < 0 ? NULL : Py_NewRef(Py_None);
    Fields *detector = fields_of(path, DETECTOR_OF, object);
    if (detector == NULL || path->thread == NULL) {
        PyErr_SetString(PyExc_TypeError, "backward_ends() takes the detector that recorded the begin");
        return NULL;
    }
    ask(path);
    set_busy(path, FREE);
    Writer *writer = writer_of_end(path, detector);
    Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    if (writer == NULL || detector->at[INFERRED] != Py_None || update == NULL || update->at[IS_IN_CLOSURE] != Py_False)
        result = call_method(detector, "backward_ends", NULL);
    else
        result = write_owned(writer, -detector->numbers[BACKWARD_CODE], &now_ns);
    note_end(path);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *path_forget(FastPath *path, PyObject *ignored)
{
    forget_pattern(path);
    Py_RETURN_NONE;
}

/* Visits or clears all that a fast path owns. */
#define FOR_EACH_OWNED(DO)                                                                                             \
    DO(path->thread);                                                                                                  \
    DO(path->updates);                                                                                                 \
    DO(path->gradients);                                                                                               \
    DO(path->training);                                                                                                \
    DO(path->is_grad_enabled);                                                                                         \
    DO(path->tensor);                                                                                                  \
    DO(path->back);                                                                                                    \
    DO(path->compiled_call);                                                                                           \
    DO(path->training_mode);                                                                                           \
    DO(path->yielded);                                                                                                 \
    DO(path->persistent);                                                                                              \
    DO(path->loader_id);                                                                                               \
    DO(path->shape);                                                                                                   \
    DO(path->add);                                                                                                     \
    DO(path->update_is_recorded);                                                                                      \
    DO(path->ident);                                                                                                   \
    DO(path->write);                                                                                                   \
    DO(path->update);                                                                                                  \
    DO(path->code);                                                                                                    \
    DO(path->fields_type);                                                                                             \
    DO(path->writer_type);                                                                                             \
    DO(path->events_type);                                                                                             \
    DO(path->frame_type)

static int path_traverse(FastPath *path, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)path));
    FOR_EACH_OWNED(Py_VISIT);
    for (int i = 0; i < KINDS; i++)
        Py_VISIT(path->kinds[i]);
    for (int i = 0; i < ROLES; i++)
        Py_VISIT(path->known[i]);
    for (int i = 0; i < KNOWN_CLASSES; i++)
        Py_VISIT(path->classes[i].type);
    if (path->pattern == NULL)
        return 0;
    Py_VISIT(path->pattern->detector);
    Py_VISIT(path->pattern->writer);
    Py_VISIT(path->pattern->empty);
    for (int i = 0; i < MOST_EXPECTED; i++) {
        Py_VISIT(path->pattern->calls[i].code);
        Py_VISIT(path->pattern->calls[i].record);
        Py_VISIT(path->pattern->calls[i].list);
    }
    return 0;
}

/* What the state is checked with stays. */
static int path_clear(FastPath *path)
{
    if (path->pattern != NULL) /* first: it shows what it hides in the others */
        forget_pattern(path);
    Py_CLEAR(path->thread);
    Py_CLEAR(path->updates);
    Py_CLEAR(path->gradients);
    path->writer = NULL;
    Py_CLEAR(path->write);
    return 0;
}

static void path_dealloc(FastPath *path)
{
    PyTypeObject *type = Py_TYPE((PyObject *)path);
    PyObject_GC_UnTrack(path);
    if (path->pattern != NULL) {
        forget_pattern(path);
        PyMem_Free(path->pattern->memory);
    }
    FOR_EACH_OWNED(Py_CLEAR);
    for (int i = 0; i < KINDS; i++)
        Py_CLEAR(path->kinds[i]);
    for (int i = 0; i < ROLES; i++)
        Py_CLEAR(path->known[i]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(path);
    Py_DECREF(type);
}

static PyObject *path_make(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *thread, *updates, *gradients, *training;
    if (!PyArg_ParseTuple(args, "OOOO:FastPath", &thread, &updates, &gradients, &training))
        return NULL;
    ModuleState *state = PyType_GetModuleState(type);
    if (state == NULL)
        return NULL;
    if (!PyObject_TypeCheck(thread, state->fields_type) || !PyObject_TypeCheck(updates, state->fields_type) ||
        !PyObject_TypeCheck(gradients, state->fields_type)) {
        PyErr_SetString(PyExc_TypeError, "the state of a fast path in C is in Fields of C");
        return NULL;
    }
    FastPath *path = (FastPath *)PyType_GenericAlloc(type, 0);
    if (path == NULL)
        return NULL;
    path->pattern = new_pattern();
    path->thread = (Fields *)Py_NewRef(thread);
    path->updates = (Fields *)Py_NewRef(updates);
    path->gradients = (Fields *)Py_NewRef(gradients);
    path->training = Py_NewRef(training);
    path->fields_type = (PyTypeObject *)Py_NewRef((PyObject *)state->fields_type);
    path->writer_type = (PyTypeObject *)Py_NewRef((PyObject *)state->writer_type);
    path->events_type = (PyTypeObject *)Py_NewRef((PyObject *)state->events_type);
    PyObject *types = PyImport_ImportModule("types");
    path->frame_type = types == NULL ? NULL : (PyTypeObject *)PyObject_GetAttrString(types, "FrameType");
    Py_XDECREF(types);
    path->back = PyUnicode_InternFromString("f_back");
    path->compiled_call = PyUnicode_InternFromString("_compiled_call_impl");
    path->training_mode = PyUnicode_InternFromString("training");
    path->yielded = PyUnicode_InternFromString("_num_yielded");
    path->persistent = PyUnicode_InternFromString("_persistent_workers");
    path->loader_id = PyUnicode_InternFromString("loader_id");
    path->shape = PyUnicode_InternFromString("shape");
    path->add = PyUnicode_InternFromString("add");
    path->update_is_recorded = PyUnicode_InternFromString("update_is_recorded");
    for (int i = 0; i < KINDS; i++)
        path->kinds[i] = PyLong_FromLong(i);
    if (PyErr_Occurred())
        Py_CLEAR(path);
    return (PyObject *)path;
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))path_##name, METH_FASTCALL, "See fast_path.py."}

static PyMethodDef path_methods[] = {
    FAST(call_begins),
    FAST(call_ends),
    {"fetch_begins", (PyCFunction)path_fetch_begins, METH_O, "See fast_path.py."},
    FAST(fetch_ends),
    FAST(backward_begins),
    {"backward_ends", (PyCFunction)path_backward_ends, METH_O, "See fast_path.py."},
    {"transfer_begins", (PyCFunction)path_transfer_begins, METH_NOARGS, "See fast_path.py."},
    {"transfer_ends", (PyCFunction)path_transfer_ends, METH_O, "See fast_path.py."},
    {"clearing_begins", (PyCFunction)path_clearing_begins, METH_NOARGS, "See fast_path.py."},
    FAST(clearing_ends),
    FAST(update_begins),
    {"update_ends", (PyCFunction)path_update_ends, METH_O, "See fast_path.py."},
    FAST(use_library),
    {"forget", (PyCFunction)path_forget, METH_NOARGS, "See fast_path.py."},
    {NULL, NULL, 0, NULL},
};

static PyObject *path_is_step_expected(FastPath *path, void *unused)
{
    return PyBool_FromLong(path->pattern->is_ready);
}

static PyGetSetDef path_properties[] = {
    {"is_step_expected", (getter)path_is_step_expected, NULL, "Whether the next call is, so far.", NULL},
    {NULL},
};

static PyType_Slot path_slots[] = {
    {Py_tp_doc, "Records what nearly every call of a training under way needs."},
    {Py_tp_new, path_make},
    {Py_tp_traverse, path_traverse},
    {Py_tp_clear, path_clear},
    {Py_tp_dealloc, path_dealloc},
    {Py_tp_methods, path_methods},
    {Py_tp_getset, path_properties},
    {0, NULL},
};

PyType_Spec fast_path_spec = {
    .name = "training_profiler.recording._native.FastPath",
    .basicsize = sizeof(FastPath),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = path_slots,
};
