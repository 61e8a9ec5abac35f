/* The fast paths of a training thread: the begins and ends of gradients and updates, and the type of all of them. */

#include "fast_path.h"

/* Gradients */

/* Return whether a backward pass of these arguments needs nothing but its time. */
static int is_usual_backward(FastPath *path, PyObject *args)
{
    Fields *gradients = path->gradients;
    if (gradients == NULL || gradients->at[BACKWARD_WATCH] != Py_None || gradients->at[UNUSED_GRAPH] != Py_None ||
        gradients->at[UPDATES_AT_KEPT] != Py_None || !PyTuple_CheckExact(args) || PyTuple_Size(args) != KEEPS_GRAPH + 2)
        return 0;
    PyObject *keeps_graph = PyTuple_GetItem(args, KEEPS_GRAPH);
    return (keeps_graph == Py_None || keeps_graph == Py_False) && PyTuple_GetItem(args, KEEPS_GRAPH + 1) == Py_False;
}

static PyObject *path_backward_begins(FastPath *path, PyObject *args)
{
    Fields *detector = is_busy_with(path, FREE) && is_usual_backward(path, args) ? detector_of(path) : NULL;
    if (detector == NULL)
        Py_RETURN_NONE;
    int result = 0, is_usual = detector->at[INFERRED] == Py_None && is_list(detector->at[CALLS], 0);
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
    Fields *detector = fields_of(path, DETECTOR_OF, object);
    if (detector == NULL || path->thread == NULL) {
        PyErr_SetString(PyExc_TypeError, "backward_ends() takes the detector that recorded the begin");
        return NULL;
    }
    set_busy(path, FREE);
    Writer *writer = writer_of_end(path, detector);
    Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    int64_t now_ns;
    int result;
    if (writer == NULL || detector->at[INFERRED] != Py_None || update == NULL || update->at[IS_IN_CLOSURE] != Py_False)
        result = call_method(detector, "backward_ends", NULL);
    else
        result = write_owned(writer, -detector->numbers[BACKWARD_CODE], &now_ns);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

/* Updates */

/* Return whether an update has ended just now, so that clearing gradients is a part of it; -1 with an exception. */
static int is_right_after_update(Fields *detector, Writer *writer)
{
    Events *events = writer->events;
    if (events->length < 2 || events->items[events->length - 1] != -detector->numbers[UPDATE_CODE] ||
        detector->at[HOST_CLOCK] == NULL)
        return 0;
    int64_t ended_ns = events->items[events->length - 2], now_ns;
    PyObject *clock = Py_NewRef(detector->at[HOST_CLOCK]), *time = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    if (time == NULL)
        return -1;
    now_ns = integer(time, 0);
    Py_DECREF(time);
    return now_ns - ended_ns <= AT_ONCE_NS;
}

PyObject *path_clearing_begins(FastPath *path, PyObject *ignored)
{
    Fields *detector = is_busy_with(path, FREE) ? detector_of(path) : NULL;
    PyObject *open = path->updates == NULL ? NULL : path->updates->at[OPEN];
    int64_t code = 0, now_ns;
    int result = 0;
    if (detector != NULL && is_list(open, 0) && is_list(detector->at[CALLS], 0)) {
        Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
        Writer *writer = update == NULL || update->at[IS_SCALING] != Py_False ? NULL : writer_of(path, detector);
        if (writer != NULL) {
            Py_INCREF((PyObject *)writer);
            code = detector->numbers[UPDATE_CODE];
            result = is_right_after_update(detector, writer);
            if (result > 0 && writer->events->length >= 2)
                writer->events->length -= 2;
            else if (result == 0)
                result = write_owned(writer, code |= TIME_ONLY, &now_ns);
            Py_DECREF((PyObject *)writer);
        }
    }
    Py_XDECREF((PyObject *)detector);
    return result < 0 ? NULL : PyLong_FromLongLong(code);
}

PyObject *path_clearing_ends(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    Fields *detector = count == 2 ? fields_of(path, DETECTOR_OF, args[1]) : NULL;
    if (detector == NULL) {
        PyErr_SetString(PyExc_TypeError, "clearing_ends() takes the code of the begin, and its detector");
        return NULL;
    }
    Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    Writer *writer = writer_of(path, detector);
    int64_t now_ns, code = integer(args[0], 0);
    int result;
    if (writer == NULL && update != NULL)
        result = call_method(update, "clearing_ends", args[0]);
    else
        result = writer == NULL ? 0 : write_owned(writer, -code, &now_ns);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

/* Append to the updates under way, as OpenUpdates does. */
static int append_update(FastPath *path, PyObject *open, PyObject *optimizer, PyObject *frame)
{
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame), *update = NULL;
    if (path->update != NULL && optimizer == path->optimizer && frame == path->frame && code == path->code) {
        Py_DECREF(code);
        update = Py_NewRef(path->update); /* a new frame is often where that of the last update was */
    } else {
        PyObject *id = PyLong_FromVoidPtr(optimizer), *frame_id = PyLong_FromVoidPtr(frame);
        if (id != NULL && frame_id != NULL)
            update = PyTuple_Pack(3, id, frame_id, code);
        Py_XDECREF(id);
        Py_XDECREF(frame_id);
        PyObject *before = path->update, *code_before = path->code;
        path->update = Py_XNewRef(update);
        path->optimizer = optimizer;
        path->frame = frame;
        path->code = code;
        Py_XDECREF(before);
        Py_XDECREF(code_before);
    }
    int result = update == NULL ? -1 : PyList_Append(open, update);
    Py_XDECREF(update);
    return result;
}

PyObject *path_update_begins(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !Py_IS_TYPE(args[1], path->frame_type)) {
        PyErr_SetString(PyExc_TypeError, "update_begins() takes an optimizer, and the frame of its update");
        return NULL;
    }
    Fields *detector = is_busy_with(path, FETCH) ? NULL : detector_of(path);
    PyObject *open = path->updates == NULL ? NULL : path->updates->at[OPEN];
    int result = 0, is_usual = detector != NULL && is_list(open, 0) && is_list(detector->at[CALLS], 0);
    if (is_usual) {
        result = append_update(path, open, args[0], args[1]);
        Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
        Writer *writer = update == NULL || update->at[IS_SCALING] != Py_False ? NULL : writer_of(path, detector);
        int64_t now_ns = 0;
        if (result < 0) {
        } else if (!is_bare_detector(path, detector) || writer == NULL || is_undecided(path, detector))
            result = call_method(detector, "update_begins", NULL);
        else {
            give(update, OPEN_CODE, Py_XNewRef(update->at[CODE_OF_UPDATE]));
            give(detector, FRAME, Py_NewRef(Py_None));
            result = write_owned(writer, detector->numbers[UPDATE_CODE], &now_ns);
        }
    }
    Py_XDECREF((PyObject *)detector);
    return result < 0 ? NULL : PyBool_FromLong(is_usual);
}

/* Return whether the one update under way is that of the optimizer, after a backward pass since the one before. */
static int is_usual_update(FastPath *path, Fields *detector, PyObject *optimizer)
{
    PyObject *open = path->updates == NULL ? NULL : path->updates->at[OPEN];
    PyObject *one = is_list(open, 1) ? PyList_GetItem(open, 0) : NULL;
    if (one == NULL || path->updates->numbers[BACKWARDS_BEFORE] == detector->numbers[BACKWARDS])
        return 0;
    if (one == path->update)
        return optimizer == path->optimizer;
    return PyTuple_CheckExact(one) && PyTuple_Size(one) > 0 && is_id(PyTuple_GetItem(one, 0), optimizer);
}

/* Record the end of the update's span, and put its time into `now_ns`: 1; 0 if the detector has to, -1 with an
   exception. */
static int record_update_end(FastPath *path, Fields *detector, int64_t *now_ns)
{
    Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    Writer *writer = update == NULL || update->at[IS_SCALING] != Py_False ? NULL : writer_of(path, detector);
    if (!is_bare_detector(path, detector) || writer == NULL || update->at[OPEN_CODE] == NULL ||
        update->at[OPEN_CODE] != update->at[CODE_OF_UPDATE])
        return 0;
    give(update, OPEN_CODE, Py_NewRef(path->kinds[0]));
    return write_owned(writer, -detector->numbers[UPDATE_CODE], now_ns) < 0 ? -1 : 1;
}

/* Return whether a time is not before that of the last mark, or there is none. */
static int is_in_order(PyObject *marks, int64_t now_ns)
{
    Py_ssize_t length = PyList_Size(marks);
    PyObject *last = length > 0 ? PyList_GetItem(marks, length - 1) : NULL;
    if (last == NULL)
        return length == 0;
    return PyTuple_CheckExact(last) && PyTuple_Size(last) == 2 && integer(PyTuple_GetItem(last, 1), INT64_MAX) <= now_ns;
}

/* Record the end of a step among the marks, and count it. Return -1 with an exception. */
static int mark_step(FastPath *path, Fields *recorder, Fields *count, PyObject *time, int64_t now_ns)
{
    PyObject *marks = Py_NewRef(recorder->at[MARKS]), *mark = PyTuple_Pack(2, path->kinds[STEP_END], time);
    int result = mark == NULL ? -1 : PyList_Append(marks, mark);
    Py_DECREF(marks);
    Py_XDECREF(mark);
    if (result < 0)
        return -1;
    if (recorder->at[WATERMARK_NS] != NULL && recorder->at[WATERMARK_NS] != Py_None)
        give(recorder, WATERMARK_NS, Py_NewRef(time));
    recorder->numbers[QUIET_END_NS] = now_ns;
    count->numbers[STEPS_ENDED]++;
    return 1;
}

/* End a step without the session, as StepEnds does: 1 if that was done, 0 if the session has to be asked, -1 with an
   exception. */
static int end_quietly(FastPath *path, PyObject *end, PyObject *time, int64_t now_ns)
{
    Fields *ends = fields_of(path, ENDS_OF, end);
    Fields *passes = ends == NULL ? NULL : fields_of(path, PASSES_OF, ends->at[PASSES_FOLLOWED]);
    Fields *recorder = ends == NULL ? NULL : fields_of(path, RECORDER_OF, ends->at[RECORDER]);
    Fields *count = recorder == NULL ? NULL : fields_of(path, COUNT_OF, recorder->at[STEP_COUNT]);
    if (passes == NULL || count == NULL || passes->at[LATEST] == NULL || passes->at[LATEST] != ends->at[LATEST_BEFORE] ||
        now_ns >= recorder->numbers[QUIET_UNTIL_NS] ||
        count->numbers[STEPS_ENDED] + 1 >= recorder->numbers[QUIET_BEFORE])
        return 0;
    PyObject *marks = recorder->at[MARKS];
    if (marks == NULL || !PyList_CheckExact(marks) || !is_in_order(marks, now_ns))
        return 0;
    /* A new tuple may start a garbage collection, and that run Python code. */
    Py_INCREF((PyObject *)recorder);
    Py_INCREF((PyObject *)count);
    int result = mark_step(path, recorder, count, time, now_ns);
    Py_DECREF((PyObject *)count);
    Py_DECREF((PyObject *)recorder);
    return result;
}

/* Count an update, and end its step. Return -1 with an exception. */
static int end_step(FastPath *path, Fields *detector, PyObject *optimizer, int64_t now_ns)
{
    Fields *sizes = fields_of(path, SIZES, detector->at[INPUT_SIZES]);
    Fields *phases = fields_of(path, PHASES_OF, detector->at[PHASES]);
    Fields *steps = fields_of(path, STEPS_OF, detector->at[STEPS]);
    PyObject *time = PyLong_FromLongLong(now_ns), *done = NULL;
    if (time == NULL)
        return -1;
    int64_t updates = detector->numbers[UPDATES] + 1;
    if (sizes == NULL || phases == NULL || steps == NULL || updates >= sizes->numbers[NEXT_UPDATE] ||
        detector->at[HAS_MANUAL_STEPS] != Py_False || steps->at[IS_ALONE] != Py_True ||
        detector->at[END_STEP] == NULL || !is_id(steps->at[PRIMARY], optimizer))
        done = PyObject_CallMethodObjArgs((PyObject *)detector, path->update_is_recorded, optimizer, time, NULL);
    else { /* as in nearly all trainings */
        detector->numbers[UPDATES] = updates;
        phases->numbers[CYCLE]++;
        PyObject *end = Py_NewRef(detector->at[END_STEP]);
        int is_ended = end_quietly(path, end, time, now_ns);
        if (is_ended >= 0)
            done = is_ended ? Py_NewRef(Py_None) : PyObject_CallFunctionObjArgs(end, time, NULL);
        Py_DECREF(end);
    }
    Py_DECREF(time);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

PyObject *path_update_ends(FastPath *path, PyObject *optimizer)
{
    Fields *detector = detector_of(path);
    int is_never_skipped = path->gradients != NULL && path->gradients->at[HAS_GRAD_SCALER] == Py_False;
    int result = 0, is_usual = detector != NULL && is_never_skipped && is_usual_update(path, detector, optimizer);
    if (is_usual) {
        path->updates->numbers[BACKWARDS_BEFORE] = detector->numbers[BACKWARDS];
        PyObject *open = path->updates->at[OPEN];
        int64_t now_ns = 0;
        if ((result = PyList_SetSlice(open, 0, 1, NULL)) == 0 &&
            (result = record_update_end(path, detector, &now_ns)) == 0)
            result = call_method(detector, "update_ends", optimizer);
        else if (result > 0)
            result = end_step(path, detector, optimizer, now_ns);
    }
    Py_XDECREF((PyObject *)detector);
    return result < 0 ? NULL : PyBool_FromLong(is_usual);
}

/* Visits or clears all that a fast path owns. */
#define FOR_EACH_OWNED(DO)                                                                                             \
    DO(path->thread);                                                                                                  \
    DO(path->updates);                                                                                                 \
    DO(path->gradients);                                                                                               \
    DO(path->training);                                                                                                \
    DO(path->back);                                                                                                    \
    DO(path->compiled_call);                                                                                           \
    DO(path->training_mode);                                                                                           \
    DO(path->yielded);                                                                                                 \
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
    DO(path->frame_type)

static int path_traverse(FastPath *path, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)path));
    FOR_EACH_OWNED(Py_VISIT);
    for (int i = 0; i < KINDS; i++)
        Py_VISIT(path->kinds[i]);
    for (int i = 0; i < ROLES; i++)
        Py_VISIT(path->known[i]);
    return 0;
}

/* What the state is checked with stays. */
static int path_clear(FastPath *path)
{
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
    path->thread = (Fields *)Py_NewRef(thread);
    path->updates = (Fields *)Py_NewRef(updates);
    path->gradients = (Fields *)Py_NewRef(gradients);
    path->training = Py_NewRef(training);
    path->fields_type = (PyTypeObject *)Py_NewRef((PyObject *)state->fields_type);
    path->writer_type = (PyTypeObject *)Py_NewRef((PyObject *)state->writer_type);
    PyObject *types = PyImport_ImportModule("types");
    path->frame_type = types == NULL ? NULL : (PyTypeObject *)PyObject_GetAttrString(types, "FrameType");
    Py_XDECREF(types);
    path->back = PyUnicode_InternFromString("f_back");
    path->compiled_call = PyUnicode_InternFromString("_compiled_call_impl");
    path->training_mode = PyUnicode_InternFromString("training");
    path->yielded = PyUnicode_InternFromString("_num_yielded");
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
    {"backward_begins", (PyCFunction)path_backward_begins, METH_O, "See fast_path.py."},
    {"backward_ends", (PyCFunction)path_backward_ends, METH_O, "See fast_path.py."},
    {"transfer_begins", (PyCFunction)path_transfer_begins, METH_NOARGS, "See fast_path.py."},
    {"transfer_ends", (PyCFunction)path_transfer_ends, METH_O, "See fast_path.py."},
    {"clearing_begins", (PyCFunction)path_clearing_begins, METH_NOARGS, "See fast_path.py."},
    FAST(clearing_ends),
    FAST(update_begins),
    {"update_ends", (PyCFunction)path_update_ends, METH_O, "See fast_path.py."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot path_slots[] = {
    {Py_tp_doc, "Records what nearly every call of a training under way needs."},
    {Py_tp_new, path_make},
    {Py_tp_traverse, path_traverse},
    {Py_tp_clear, path_clear},
    {Py_tp_dealloc, path_dealloc},
    {Py_tp_methods, path_methods},
    {0, NULL},
};

PyType_Spec fast_path_spec = {
    .name = "training_profiler.recording._native.FastPath",
    .basicsize = sizeof(FastPath),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = path_slots,
};
