/* Calls of modules without gradients that repeat an earlier one, as those of a model that acts: no_grad_calls.py has the
same in Python. */

#include "fast_path.h"

/* Return whether the functions around a call are those of the run, as is_nearest of callers.py; -1 with an exception. Put
   the frame `depth` frames away, from 1, into `method`, owned. */
static int is_nearest(FastPath *path, PyObject *key, PyObject *caller, int64_t depth, PyObject **method)
{
    Py_ssize_t length = PyTuple_Size(key);
    PyObject *frame = Py_NewRef(caller), *back, *code;
    int result = 1;
    for (Py_ssize_t i = 0; i < length && result > 0; i++) {
        result = 0;
        if (Py_IS_TYPE(frame, path->frame_type)) {
            code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
            result = is_id(PyTuple_GetItem(key, i), code);
            Py_DECREF(code);
        }
        if (result && i + 1 == depth)
            *method = Py_NewRef(frame);
        if (result && i + 1 < NEAREST) {
            back = PyObject_GetAttr(frame, path->back);
            Py_DECREF(frame);
            if ((frame = back) == NULL)
                return -1;
        }
    }
    result = result && (length == NEAREST || (length > 0 && frame == Py_None));
    Py_DECREF(frame);
    return result;
}

/* Return whether the call belongs to the same forward pass as the one before, as _is_same_forward; -1 with an exception. */
static int is_same_forward(Fields *detector, PyObject *module, PyObject *method)
{
    PyObject *frame = detector->at[FRAME], *called = detector->at[CALLED_IN_FRAME], *key = PyLong_FromVoidPtr(module);
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)method), *ids[2] = {NULL, NULL}, *made = NULL;
    int is_same = frame != NULL && PyTuple_CheckExact(frame) && PyTuple_Size(frame) == 2 &&
                  is_id(PyTuple_GetItem(frame, 0), method) && is_id(PyTuple_GetItem(frame, 1), code);
    int result = key == NULL ? -1 : 0;
    if (result == 0 && is_same && called != NULL && PySet_Check(called) && (result = PySet_Contains(called, key)) == 0)
        result = PySet_Add(called, key) < 0 ? -1 : 1;
    else if (result >= 0) {
        ids[0] = PyLong_FromVoidPtr(method);
        ids[1] = PyLong_FromVoidPtr(code);
        made = PySet_New(NULL);
        frame = ids[0] == NULL || ids[1] == NULL ? NULL : PyTuple_Pack(2, ids[0], ids[1]);
        result = frame == NULL || made == NULL || PySet_Add(made, key) < 0 ? -1 : 0;
        if (result == 0) {
            give(detector, FRAME, Py_NewRef(frame));
            give(detector, CALLED_IN_FRAME, Py_NewRef(made));
        }
        Py_XDECREF(frame);
    }
    Py_XDECREF(made);
    Py_XDECREF(ids[0]);
    Py_XDECREF(ids[1]);
    Py_DECREF(code);
    Py_XDECREF(key);
    return result;
}

/* Return whether the calls of a module in the run may stand for this one; -1 with an exception. */
static int is_repeated(FastPath *path, Fields *use, PyObject *module, PyObject *caller)
{
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)caller);
    int is_same = use->at[USE_CALLER] == code && use->at[USE_KIND] == (PyObject *)Py_TYPE(module);
    Py_DECREF(code);
    if (!is_same || use->at[USE_MODULE] == NULL)
        return 0;
    PyObject *reference = Py_NewRef(use->at[USE_MODULE]), *found = PyObject_CallNoArgs(reference);
    Py_DECREF(reference);
    Py_XDECREF(found);
    return found == NULL ? -1 : found == module;
}

/* Return whether nothing but the times is recorded of a call, gradients are disabled, and the functions around it are
   those of the run; -1 with an exception. */
static int is_quiet(FastPath *path, Fields *detector, Fields *run, Fields *use, PyObject *module, PyObject *caller,
                    PyObject **method)
{
    int is_in_training = is_training(path, module), result = 0;
    if (is_in_training < 0)
        return -1;
    if (!is_in_training) {
        Fields *sizes = fields_of(path, SIZES, detector->at[INPUT_SIZES]);
        Fields *rows = sizes == NULL ? NULL : fields_of(path, ROWS_OF, sizes->at[ROWS]);
        if (rows == NULL || use->at[IS_EVALUATED] != Py_True || rows->numbers[ROW_CALLS] < MOST_ROW_CALLS)
            return 0;
    }
    PyObject *key = Py_XNewRef(run->at[KEY]);
    if (key != NULL && PyTuple_CheckExact(key))
        result = is_nearest(path, key, caller, use->numbers[DEPTH], method);
    Py_XDECREF(key);
    if (result > 0 && (result = is_with_gradients(path, detector)) >= 0)
        result = !result && detector->at[IS_GRAD_ENABLED] != NULL;
    return result;
}

/* Record the begin, and return the call, owned; NULL with an exception, or where Python has to. */
static Fields *record_repeated(FastPath *path, Fields *detector, Fields *phases, Fields *run, Fields *use, PyObject *module,
                               PyObject *method)
{
    Fields *call = fields_of(path, CALL, use->at[USE_CALL]);
    Writer *writer = writer_of(path, detector);
    PyObject *calls = detector->at[CALLS];
    if (call == NULL || writer == NULL || !is_list(calls, 0) || (method == NULL) != (use->numbers[DEPTH] == 0))
        return NULL;
    Py_INCREF((PyObject *)call);
    Py_INCREF((PyObject *)writer);
    Py_INCREF(calls);
    int is_part = 0, result = 0, goes_on = 0;
    if (method == NULL)
        give(detector, FRAME, Py_NewRef(Py_None));
    else
        result = is_part = is_same_forward(detector, module, method);
    Events *events = writer->events;
    int64_t now_ns = 0, code = call->numbers[CODE] & ~(int64_t)TIME_ONLY;
    if (result >= 0) {
        goes_on = is_part && events->length >= 2 && events->items[events->length - 1] == -code;
        if (is_part && !goes_on)
            code |= TIME_ONLY;
        result = write_owned(writer, code, &now_ns);
    }
    if (result == 0) {
        if (goes_on && events->length >= 4)
            events->length -= 4;
        call->numbers[BEGIN_NS] = goes_on ? 0 : now_ns;
        call->numbers[CODE] = code;
        phases->numbers[FORWARDS]++;
        run->numbers[RUN_CALLS]++;
        use->numbers[USE_CALLS]++;
        give(run, LATEST_USE, Py_NewRef((PyObject *)use));
        result = PyList_Append(calls, (PyObject *)call);
    }
    Py_DECREF(calls);
    Py_DECREF((PyObject *)writer);
    if (result < 0)
        Py_CLEAR(call);
    return call;
}

/* Return whether the module was called in a run; -1 with an exception. */
static int has_called(Fields *run, PyObject *module)
{
    PyObject *uses = run == NULL ? NULL : run->at[USES], *key;
    if (uses == NULL || !PyDict_CheckExact(uses))
        return 0;
    if ((key = PyLong_FromVoidPtr(module)) == NULL)
        return -1;
    int result = PyDict_GetItemWithError(uses, key) != NULL;
    Py_DECREF(key);
    return result == 0 && PyErr_Occurred() ? -1 : result;
}

/* Record the begin by Python, which knows all cases, and return the call, owned; NULL, perhaps with an exception, where it
   does not. */
static Fields *ask_detector(FastPath *path, Fields *detector, PyObject *module, PyObject *caller)
{
    PyObject *found = PyObject_CallMethod((PyObject *)detector, "repeated_call_begins", "(OO)", module, caller);
    Fields *call = found == NULL ? NULL : fields_of(path, CALL, found);
    if (call == NULL)
        Py_XDECREF(found);
    return call;
}

Fields *repeat_call(FastPath *path, PyObject *module, PyObject *caller)
{
    Fields *detector = is_busy_with(path, FREE) && path->thread->numbers[FUNCTION] == 0 ? detector_of(path) : NULL;
    Fields *phases = NULL, *run = NULL, *update = NULL, *use = NULL, *call = NULL;
    if (detector != NULL && is_bare_detector(path, detector) && is_list(detector->at[CALLS], 0)) {
        phases = fields_of(path, PHASES_OF, detector->at[PHASES]);
        update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    }
    int may_repeat = phases != NULL && update != NULL && update->at[OPEN_CODE] == path->kinds[0] &&
                     phases->at[IS_OPEN] == Py_False;
    if (may_repeat && phases->at[IS_UNRESOLVED] == Py_True)
        run = fields_of(path, RUN_OF, phases->at[RUN]);
    int is_in_run = may_repeat ? has_called(run, module) : 1;
    int was_before = is_in_run == 0 ? has_called(fields_of(path, RUN_OF, phases->at[BEFORE]), module) : 0;
    if (was_before > 0 && (call = ask_detector(path, detector, module, caller)) != NULL)
        set_busy(path, FORWARD);
    if (was_before != 0 || is_in_run < 0)
        run = NULL;
    if (run != NULL && run->at[USES] != NULL && PyDict_CheckExact(run->at[USES])) {
        Py_INCREF((PyObject *)phases);
        Py_INCREF((PyObject *)run);
        PyObject *key = PyLong_FromVoidPtr(module), *found = NULL;
        if (key != NULL && (found = PyDict_GetItemWithError(run->at[USES], key)) != NULL)
            use = (Fields *)Py_XNewRef((PyObject *)fields_of(path, USE_OF, found));
        Py_XDECREF(key);
        int is_like = use == NULL ? 0 : is_repeated(path, use, module, caller);
        PyObject *method = NULL;
        if (is_like > 0 && use->numbers[DEPTH] >= NEAREST) /* deeper than the functions of the run are known */
            call = ask_detector(path, detector, module, caller);
        else if (is_like > 0)
            is_like = is_quiet(path, detector, run, use, module, caller, &method);
        if (is_like > 0 && use->numbers[DEPTH] < NEAREST && phases->at[RUN] == (PyObject *)run)
            call = record_repeated(path, detector, phases, run, use, module, method);
        Py_XDECREF(method);
        if (call != NULL)
            set_busy(path, FORWARD);
        Py_DECREF((PyObject *)run);
        Py_DECREF((PyObject *)phases);
        Py_XDECREF((PyObject *)use);
    }
    Py_XDECREF((PyObject *)detector);
    return call;
}

int end_repeated(FastPath *path, Fields *detector, Fields *call)
{
    Fields *phases = is_bare_detector(path, detector) ? fields_of(path, PHASES_OF, detector->at[PHASES]) : NULL;
    Fields *run = phases == NULL ? NULL : fields_of(path, RUN_OF, phases->at[RUN]);
    Fields *use = run == NULL ? NULL : fields_of(path, USE_OF, run->at[LATEST_USE]);
    if (use == NULL || use->at[USE_CALL] != (PyObject *)call || phases->at[IS_OPEN] != Py_False)
        return 0;
    Writer *writer = writer_of_end(path, detector);
    PyObject *calls = detector->at[CALLS];
    if (writer == NULL || !is_list(calls, 1) || PyList_GetItem(calls, 0) != (PyObject *)call)
        return 0;
    int64_t now_ns, code = call->numbers[CODE];
    Py_INCREF((PyObject *)writer);
    Py_INCREF((PyObject *)phases);
    Py_INCREF((PyObject *)use);
    set_busy(path, FREE);
    int result = PyList_SetSlice(calls, 0, 1, NULL);
    if (result == 0 && (result = write_owned(writer, -code, &now_ns)) == 0) {
        phases->numbers[RUN_END_NS] = now_ns;
        use->numbers[USE_END_NS] = now_ns;
        result = 1;
    }
    Py_DECREF((PyObject *)use);
    Py_DECREF((PyObject *)phases);
    Py_DECREF((PyObject *)writer);
    return result;
}
