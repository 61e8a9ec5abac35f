/* The begins and ends of module calls and transfers. */

#include "fast_path.h"

/* Module calls */

/* Return whether no update is open. */
static int is_outside_updates(FastPath *path, Fields *detector)
{
    Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    return update != NULL && update->at[OPEN_CODE] == path->kinds[0];
}

/* Return whether a forward pass decides nothing, or what no other call decides. */
static int may_decide(FastPath *path, Fields *detector, Fields *call)
{
    Fields *phases = fields_of(path, PHASES_OF, detector->at[PHASES]);
    if (phases == NULL || phases->at[IS_UNRESOLVED] == NULL)
        return 0;
    return phases->at[IS_UNRESOLVED] == Py_False ||
           (call->at[IS_BARE] == Py_False && call->at[IS_IN_METHOD] == Py_False);
}

/* Decide what was before a forward pass of a module in train mode, if something is to be decided: 1; 0 if Python has to,
   -1 with an exception. */
static int decide(FastPath *path, Fields *detector, PyObject *module)
{
    Fields *phases = fields_of(path, PHASES_OF, detector->at[PHASES]);
    if (phases == NULL || phases->at[IS_UNRESOLVED] == Py_False)
        return phases != NULL;
    int result = is_training(path, module);
    if (result > 0 && call_method(detector, "training_call_begins", module) < 0)
        result = -1;
    return result;
}

/* Return the call that this function makes of the module in each step, owned; NULL without one or with an exception. */
static Fields *usual_call(FastPath *path, Fields *detector, PyObject *module, PyObject *caller)
{
    PyObject *calls = detector->at[FAST_PATH], *key, *code;
    if (!is_bare_detector(path, detector) || !is_outside_updates(path, detector) || calls == NULL ||
        !PyDict_CheckExact(calls))
        return NULL;
    if ((key = PyLong_FromVoidPtr(module)) == NULL)
        return NULL;
    Fields *call = fields_of(path, CALL, PyDict_GetItemWithError(calls, key));
    Py_DECREF(key);
    if (call == NULL || call->at[KIND] != (PyObject *)Py_TYPE(module) || !Py_IS_TYPE(caller, path->frame_type))
        return NULL;
    code = (PyObject *)PyFrame_GetCode((PyFrameObject *)caller);
    int is_usual = call->at[CALLER] == code && may_decide(path, detector, call);
    Py_DECREF(code);
    return is_usual ? (Fields *)Py_NewRef((PyObject *)call) : NULL;
}

/* Let the sizes of inputs include these. Return -1 with an exception. */
static int add_inputs(FastPath *path, Fields *detector, Fields *sizes, PyObject *inputs)
{
    PyObject *update = PyLong_FromLongLong(detector->numbers[UPDATES] + 1), *done = NULL;
    if (update != NULL)
        done = PyObject_CallMethodObjArgs((PyObject *)sizes, path->add, inputs, update, NULL);
    Py_XDECREF(update);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Record the begin of a usual call: 1 if it was recorded, 0 if Python has to, -1 with an exception. */
static int record_call(FastPath *path, Fields *detector, Fields *call, PyObject *inputs, Py_ssize_t named)
{
    Fields *sizes = fields_of(path, SIZES, detector->at[INPUT_SIZES]);
    int is_bare = call->at[IS_BARE] == Py_True, is_plain = 1, result = 0;
    int64_t begin_ns = 0, code = detector->numbers[FORWARD_CODE];
    if (sizes == NULL || call->at[IS_IN_METHOD] != Py_False || (!is_bare && sizes->at[IS_DUE] != Py_False && named))
        return 0;
    if (!is_bare && sizes->at[IS_DUE] != Py_False && add_inputs(path, detector, sizes, inputs) < 0)
        return -1;
    Writer *writer = writer_of(path, detector);
    if (writer == NULL || detector->at[CALLS] == NULL || !PyList_CheckExact(detector->at[CALLS]))
        return 0;
    Events *events = writer->events;
    PyObject *calls = Py_NewRef(detector->at[CALLS]);
    if (!is_bare) {
        give(detector, FRAME, Py_NewRef(Py_None));
        result = write_owned(writer, code, &begin_ns);
    } else if (events->length >= 2 && events->items[events->length - 1] == -code) { /* a loss right after the model */
        events->length -= 2;
    } else {
        is_plain = 0;
        code = detector->numbers[BARE_CODE];
        result = write_owned(writer, code, &begin_ns);
    }
    give(call, IS_PLAIN, Py_NewRef(is_plain ? Py_True : Py_False));
    call->numbers[BEGIN_NS] = begin_ns;
    call->numbers[CODE] = code;
    if (result == 0)
        result = PyList_Append(calls, (PyObject *)call);
    Py_DECREF(calls);
    return result < 0 ? -1 : 1;
}

/* Take note of the begin of a usual call that was asked about. */
static void note_call(FastPath *path, PyObject *module, Fields *call)
{
    if (call->at[IS_PLAIN] == Py_True)
        note_begin(path, (ExpectedCall){
                             .kind = AT_CALL,
                             .is_merged = call->numbers[BEGIN_NS] == 0,
                             .object = module,
                             .type = Py_TYPE(module),
                             .code = Py_XNewRef(call->at[CALLER]),
                             .record = (Fields *)Py_NewRef((PyObject *)call),
                             .event = call->numbers[CODE],
                         });
}

Fields *expected_call(FastPath *path, PyObject *module, PyObject *caller)
{
    ExpectedCall *next = expected(path, AT_CALL, module);
    if (next == NULL || next->type != (void *)Py_TYPE(module) || !Py_IS_TYPE(caller, path->frame_type))
        return NULL;
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)caller);
    int is_same = next->code == code;
    Py_DECREF(code);
    int is_own = is_same ? runs_own_code(path, module) : 0;
    if (is_own < 0)
        PyErr_Clear(); /* whoever asks next finds the same, and reports it */
    if (is_own <= 0 || is_with_gradients(path, path->pattern->detector) <= 0 ||
        expected(path, AT_CALL, module) != next)
        return NULL;
    Fields *record = (Fields *)Py_NewRef((PyObject *)next->record);
    if (begin_expected(path, next, next->event) <= 0)
        Py_CLEAR(record);
    return record;
}

Fields *begin_call(FastPath *path, PyObject *module, PyObject *caller)
{
    Fields *detector = detector_of(path), *call = NULL;
    if (detector != NULL) {
        ask(path);
        call = usual_call(path, detector, module, caller);
    }
    if (call != NULL) {
        int is_recorded = is_with_gradients(path, detector);
        if (is_recorded > 0)
            is_recorded = decide(path, detector, module);
        if (is_recorded > 0)
            is_recorded = record_call(path, detector, call, NULL, 1);
        if (is_recorded > 0) {
            set_busy(path, FORWARD);
            note_call(path, module, call);
        } else
            Py_CLEAR(call);
    }
    Py_XDECREF((PyObject *)detector);
    return call;
}

PyObject *path_call_begins(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyTuple_Check(args[1]) || !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "call_begins() takes a module, its arguments, and the frame that calls it");
        return NULL;
    }
    int is_free = is_busy_with(path, FREE);
    PyObject *found = is_free ? (PyObject *)expected_call(path, args[0], args[3]) : NULL;
    int is_own = found == NULL && is_free && !PyErr_Occurred() ? runs_own_code(path, args[0]) : 0;
    if (found != NULL || PyErr_Occurred())
        return found;
    Fields *detector = is_free ? detector_of(path) : NULL, *call = NULL;
    if (detector != NULL)
        ask(path);
    if (detector != NULL && (call = usual_call(path, detector, args[0], args[3])) != NULL) {
        int is_fast = is_own;
        if (is_fast > 0)
            is_fast = is_with_gradients(path, detector);
        if (is_fast > 0)
            is_fast = decide(path, detector, args[0]);
        int is_recorded = is_fast <= 0 ? is_fast : record_call(path, detector, call, args[1], PyDict_Size(args[2]));
        if (is_recorded > 0) {
            found = Py_NewRef((PyObject *)call);
            note_call(path, args[0], call);
        } else if (is_fast > 0 && is_recorded == 0)
            found = PyObject_CallMethod(
                (PyObject *)detector, "fast_path_call_begins", "(OOOO)", args[0], args[1], args[2], args[3]);
        if (found != NULL && found != Py_None)
            set_busy(path, FORWARD);
    }
    if (found == Py_None)
        Py_CLEAR(found);
    if (found == NULL && !PyErr_Occurred() && is_busy_with(path, FREE) && Py_IS_TYPE(args[3], path->frame_type) &&
        is_own > 0)
        found = (PyObject *)repeat_call(path, args[0], args[3]);
    Py_XDECREF((PyObject *)call);
    Py_XDECREF((PyObject *)detector);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

/* Record the end of an expected call: 1 if that was done, 0 if the end has to be asked about, -1 with an exception. */
static int end_expected_call(FastPath *path, PyObject *call, PyObject *module)
{
    ExpectedCall *open = expected_end(path, AT_CALL);
    if (open == NULL || (PyObject *)open->record != call)
        return 0;
    int is_in_training = is_training(path, module);
    if (is_in_training <= 0 || expected_end(path, AT_CALL) != open)
        return is_in_training < 0 ? -1 : 0;
    int64_t now_ns;
    return end_expected(path, open, -open->event, &now_ns);
}

int call_ends(FastPath *path, PyObject *of, PyObject *module, PyObject *recorder)
{
    int was_expected = end_expected_call(path, of, module);
    if (was_expected != 0)
        return was_expected;
    Fields *call = fields_of(path, CALL, of);
    Fields *detector = call == NULL ? NULL : fields_of(path, DETECTOR_OF, recorder);
    if (detector == NULL) {
        PyErr_SetString(PyExc_TypeError, "call_ends() takes a call, its module, and the detector that recorded it");
        return -1;
    }
    ask(path);
    if (call->at[IS_PLAIN] != Py_True) {
        int is_ended = path->thread != NULL && path->thread->at[DETECTOR] == recorder;
        return is_ended ? end_repeated(path, detector, call) : 0;
    }
    int is_in_training = is_training(path, module);
    if (is_in_training < 0)
        return -1;
    PyObject *calls = detector->at[CALLS];
    Py_ssize_t length = calls != NULL && PyList_CheckExact(calls) ? PyList_Size(calls) : 0;
    Writer *writer = writer_of(path, detector);
    if (!is_in_training || writer == NULL || path->thread == NULL || path->thread->at[DETECTOR] != recorder ||
        length == 0 || PyList_GetItem(calls, length - 1) != of)
        return 0;
    int64_t now_ns, code = detector->numbers[FORWARD_CODE];
    Py_INCREF((PyObject *)writer);
    set_busy(path, FREE);
    int result = PyList_SetSlice(calls, length - 1, length, NULL);
    if (result == 0)
        result = write_owned(writer, -code, &now_ns);
    Py_DECREF((PyObject *)writer);
    note_end(path);
    return result < 0 ? -1 : 1;
}

PyObject *path_call_ends(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "call_ends() takes a call, its module, and the detector that recorded it");
        return NULL;
    }
    int is_ended = call_ends(path, args[0], args[1], args[2]);
    return is_ended < 0 ? NULL : PyBool_FromLong(is_ended);
}

/* Transfers */

/* Return whether an update is under way, or a method of GradScaler, whose own transfers are no batches. */
static int is_in_update(FastPath *path, Fields *detector)
{
    Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    if (is_hiding(path) && path->pattern->open->kind == AT_UPDATE)
        return 1;
    return path->updates == NULL || !is_list(path->updates->at[OPEN], 0) || update == NULL ||
           update->at[IS_SCALING] != Py_False;
}

PyObject *path_transfer_begins(FastPath *path, PyObject *ignored)
{
    int64_t now_ns;
    ExpectedCall *next = is_busy_with(path, FREE) ? expected(path, AT_TRANSFER, NULL) : NULL;
    int result = next == NULL ? 0 : begin_expected(path, next, next->event);
    if (result != 0)
        return result < 0 ? NULL : Py_NewRef((PyObject *)path->pattern->detector);
    Fields *detector = is_busy_with(path, FREE) ? detector_of(path) : NULL;
    if (detector != NULL && is_in_update(path, detector))
        Py_CLEAR(detector);
    Writer *writer = detector == NULL ? NULL : writer_of_end(path, detector);
    if (detector != NULL)
        ask(path);
    result = writer == NULL ? 0 : write_owned(writer, detector->numbers[TRANSFER_CODE], &now_ns);
    if (writer != NULL && result == 0) {
        set_busy(path, OTHER_PATCH);
        note_begin(path, (ExpectedCall){.kind = AT_TRANSFER, .event = detector->numbers[TRANSFER_CODE]});
        return (PyObject *)detector;
    }
    Py_XDECREF((PyObject *)detector);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *path_transfer_ends(FastPath *path, PyObject *object)
{
    Fields *detector = fields_of(path, DETECTOR_OF, object);
    if (detector == NULL || path->thread == NULL) {
        PyErr_SetString(PyExc_TypeError, "transfer_ends() takes the detector that recorded the begin");
        return NULL;
    }
    int64_t now_ns;
    ExpectedCall *open = expected_end(path, AT_TRANSFER);
    int result = open == NULL ? 0 : end_expected(path, open, -open->event, &now_ns);
    if (result != 0)
        return result < 0 ? NULL : Py_NewRef(Py_None);
    ask(path);
    set_busy(path, FREE);
    Writer *writer = writer_of_end(path, detector);
    result = writer == NULL ? call_method(detector, "transfer_ends", NULL)
                                : write_owned(writer, -detector->numbers[TRANSFER_CODE], &now_ns);
    note_end(path);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}
