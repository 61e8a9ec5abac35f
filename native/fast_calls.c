/* The begins and ends of module calls, fetches and transfers. */

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

Fields *begin_call(FastPath *path, PyObject *module, PyObject *caller)
{
    Fields *detector = detector_of(path), *call = detector == NULL ? NULL : usual_call(path, detector, module, caller);
    if (call != NULL) {
        int is_recorded = is_with_gradients(detector);
        if (is_recorded > 0)
            is_recorded = decide(path, detector, module);
        if (is_recorded > 0)
            is_recorded = record_call(path, detector, call, NULL, 1);
        if (is_recorded > 0)
            set_busy(path, FORWARD);
        else
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
    Fields *detector = is_busy_with(path, FREE) ? detector_of(path) : NULL, *call = NULL;
    PyObject *found = NULL;
    if (detector != NULL && (call = usual_call(path, detector, args[0], args[3])) != NULL) {
        int is_fast = runs_own_code(path, args[0]);
        if (is_fast > 0)
            is_fast = is_with_gradients(detector);
        if (is_fast > 0)
            is_fast = decide(path, detector, args[0]);
        int is_recorded = is_fast <= 0 ? is_fast : record_call(path, detector, call, args[1], PyDict_Size(args[2]));
        if (is_recorded > 0)
            found = Py_NewRef((PyObject *)call);
        else if (is_fast > 0 && is_recorded == 0)
            found = PyObject_CallMethod(
                (PyObject *)detector, "fast_path_call_begins", "(OOOO)", args[0], args[1], args[2], args[3]);
        if (found != NULL && found != Py_None)
            set_busy(path, FORWARD);
    }
    if (found == Py_None)
        Py_CLEAR(found);
    if (found == NULL && !PyErr_Occurred() && is_busy_with(path, FREE) && Py_IS_TYPE(args[3], path->frame_type) &&
        runs_own_code(path, args[0]) > 0)
        found = (PyObject *)repeat_call(path, args[0], args[3]);
    Py_XDECREF((PyObject *)call);
    Py_XDECREF((PyObject *)detector);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

PyObject *path_call_ends(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    Fields *call = count == 3 ? fields_of(path, CALL, args[0]) : NULL;
    Fields *detector = call == NULL ? NULL : fields_of(path, DETECTOR_OF, args[2]);
    if (detector == NULL) {
        PyErr_SetString(PyExc_TypeError, "call_ends() takes a call, its module, and the detector that recorded it");
        return NULL;
    }
    if (call->at[IS_PLAIN] != Py_True) {
        int is_ended = path->thread != NULL && path->thread->at[DETECTOR] == args[2];
        if (is_ended)
            is_ended = end_repeated(path, detector, call);
        return is_ended < 0 ? NULL : PyBool_FromLong(is_ended);
    }
    int is_in_training = is_training(path, args[1]);
    if (is_in_training < 0)
        return NULL;
    PyObject *calls = detector->at[CALLS];
    Py_ssize_t length = calls != NULL && PyList_CheckExact(calls) ? PyList_Size(calls) : 0;
    Writer *writer = writer_of(path, detector);
    if (!is_in_training || writer == NULL || path->thread == NULL || path->thread->at[DETECTOR] != args[2] ||
        length == 0 || PyList_GetItem(calls, length - 1) != args[0])
        Py_RETURN_FALSE;
    int64_t now_ns, code = detector->numbers[FORWARD_CODE];
    Py_INCREF((PyObject *)writer);
    set_busy(path, FREE);
    int result = PyList_SetSlice(calls, length - 1, length, NULL);
    if (result == 0)
        result = write_owned(writer, -code, &now_ns);
    Py_DECREF((PyObject *)writer);
    return result < 0 ? NULL : Py_NewRef(Py_True);
}

/* Fetches */

/* Return whether the iterator has yielded nothing yet, or that is not known as an integer; -1 with an exception. */
static int is_first_fetch(FastPath *path, PyObject *iterator)
{
    PyObject *yielded = PyObject_GetAttr(iterator, path->yielded);
    if (yielded == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    int result = integer(yielded, 0) == 0;
    Py_DECREF(yielded);
    return result;
}

/* Return the latest pass, borrowed; NULL without one, or if the CPU time of its next batch is measured. */
static Fields *latest_pass(FastPath *path, Fields *phases)
{
    Fields *passes = phases == NULL ? NULL : fields_of(path, PASSES_OF, phases->at[PASSES]);
    Fields *latest = passes == NULL ? NULL : fields_of(path, PASS, passes->at[LATEST]);
    return latest != NULL && latest->numbers[FETCHES] < latest->numbers[MEASURED_AT] ? latest : NULL;
}

/* Return the latest pass, owned, if the fetch surely is for the training; NULL without one, or with an exception. */
static Fields *usual_pass(FastPath *path, Fields *detector, PyObject *iterator)
{
    Fields *phases = fields_of(path, PHASES_OF, detector->at[PHASES]);
    Fields *latest = latest_pass(path, phases);
    if (latest == NULL || phases->at[IS_UNRESOLVED] != Py_False || latest->at[PHASE] != path->training ||
        latest->at[ITERATOR] == NULL)
        return NULL;
    Py_INCREF((PyObject *)latest);
    PyObject *reference = Py_NewRef(latest->at[ITERATOR]), *fetched = PyObject_CallNoArgs(reference);
    Py_DECREF(reference);
    Py_XDECREF(fetched);
    if (fetched != iterator)
        Py_CLEAR(latest);
    return latest;
}

/* Record from which loader the batches come, if it is another one, and what the first fetch of a cycle begins. */
static int record_source(FastPath *path, Fields *detector, Fields *loader_pass, int64_t now_ns)
{
    PyObject *buffer = detector->at[BUFFER] == NULL ? Py_None : detector->at[BUFFER];
    Py_INCREF(buffer);
    PyObject *known = PyObject_GetAttr(buffer, path->loader_id), *done = known;
    if (known != NULL && known != loader_pass->at[LOADER_ID]) {
        Py_DECREF(known);
        done = PyObject_CallMethod(buffer, "record_loader", "(OL)", loader_pass->at[LOADER_ID], (long long)now_ns);
    }
    Py_DECREF(buffer);
    Py_XDECREF(done);
    Fields *phases = fields_of(path, PHASES_OF, detector->at[PHASES]);
    if (done != NULL && phases != NULL && loader_pass->numbers[PASS_CYCLE] != phases->numbers[CYCLE]) {
        loader_pass->numbers[PASS_CYCLE] = phases->numbers[CYCLE];
        loader_pass->numbers[CYCLE_BEGIN_NS] = now_ns;
    }
    return done == NULL ? -1 : 0;
}

PyObject *path_fetch_begins(FastPath *path, PyObject *iterator)
{
    int is_free = is_busy_with(path, FREE) || is_busy_with(path, FORWARD);
    Fields *detector = is_free ? detector_of(path) : NULL, *loader_pass = NULL;
    if (detector == NULL)
        Py_RETURN_NONE;
    PyObject *found = NULL;
    int is_first = is_list(detector->at[CALLS], 0) ? is_first_fetch(path, iterator) : 1;
    if (is_first == 0 && !is_bare_detector(path, detector)) {
        if (latest_pass(path, fields_of(path, PHASES_OF, detector->at[PHASES])) != NULL)
            found = PyObject_CallMethod((PyObject *)detector, "fast_path_fetch_begins", "(O)", iterator);
    } else if (is_first == 0 && (loader_pass = usual_pass(path, detector, iterator)) != NULL) {
        Writer *writer = writer_of(path, detector);
        int64_t now_ns;
        if (writer != NULL) {
            give(detector, FRAME, Py_NewRef(Py_None));
            if (write_owned(writer, detector->numbers[FETCH_CODE], &now_ns) == 0 &&
                record_source(path, detector, loader_pass, now_ns) == 0)
                found = Py_NewRef((PyObject *)loader_pass);
        }
    }
    if (found != NULL && found != Py_None)
        set_busy(path, FETCH);
    Py_XDECREF((PyObject *)loader_pass);
    Py_DECREF((PyObject *)detector);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

/* Return the length of the first dimension of a batch, or of the first item in it; -1 where Python has to find it, and
   -2 with an exception that is not an error. */
static int64_t rows_of(FastPath *path, PyObject *batch)
{
    if (PyTuple_CheckExact(batch) && PyTuple_Size(batch) > 0)
        batch = PyTuple_GetItem(batch, 0);
    else if (PyList_CheckExact(batch) && PyList_Size(batch) > 0)
        batch = PyList_GetItem(batch, 0);
    if (PyTuple_CheckExact(batch) || PyList_CheckExact(batch) || PyDict_CheckExact(batch))
        return -1;
    Py_INCREF(batch);
    PyObject *shape = PyObject_GetAttr(batch, path->shape);
    Py_DECREF(batch);
    if (shape == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -2;
        PyErr_Clear();
        return -1;
    }
    int64_t rows = PyTuple_Check(shape) && PyTuple_Size(shape) > 0 ? integer(PyTuple_GetItem(shape, 0), -1) : -1;
    Py_DECREF(shape);
    return rows < 0 ? -1 : rows;
}

/* Count the samples of a batch, if they are counted. Return -1 with an exception. */
static int add_samples(FastPath *path, Fields *loader_pass, PyObject *batch)
{
    if (loader_pass->at[SAMPLES] == Py_None)
        return 0;
    int64_t rows = rows_of(path, batch), before = integer(loader_pass->at[SAMPLES], -1);
    if (rows == -2)
        return -1;
    if (rows == -1 || before < 0)
        return call_method(loader_pass, "add_batch", batch);
    return give_integer(loader_pass, SAMPLES, before + rows);
}

/* Record that the thread is free again, and the end of its fetch. Return -1 with an exception. */
static int end_fetch(FastPath *path, Fields *thread, Fields *detector, Fields *loader_pass)
{
    int64_t now_ns;
    PyObject *fetching = thread->at[FETCHING];
    if (fetching != NULL && PyAnySet_Check(fetching) && PySet_Size(fetching) > 0) {
        PyObject *done = PyObject_CallMethod((PyObject *)thread, "fetch_ends", "(k)", PyThread_get_thread_ident());
        Py_XDECREF(done);
        if (done == NULL)
            return -1;
    } else if (is_calling_thread(path, thread))
        set_busy(path, FREE);
    Writer *writer = writer_of_end(path, detector);
    if (writer == NULL || loader_pass->numbers[FETCHES] == 0 || loader_pass->at[PHASE] != path->training)
        return call_method(detector, "fetch_ends", (PyObject *)loader_pass);
    if (write_owned(writer, -detector->numbers[FETCH_CODE], &now_ns) < 0)
        return -1;
    loader_pass->numbers[FETCHES]++;
    return 0;
}

PyObject *path_fetch_ends(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    Fields *loader_pass = count == 3 ? fields_of(path, PASS, args[0]) : NULL, *thread = path->thread;
    Fields *detector = loader_pass == NULL ? NULL : fields_of(path, DETECTOR_OF, args[1]);
    if (detector == NULL || thread == NULL) {
        PyErr_SetString(PyExc_TypeError, "fetch_ends() takes a pass, the detector that recorded it, and a batch");
        return NULL;
    }
    if (add_samples(path, loader_pass, args[2]) == 0)
        return end_fetch(path, thread, detector, loader_pass) < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *kind, *error, *traceback; /* such as Ctrl-C: the fetch has ended all the same */
    PyErr_Fetch(&kind, &error, &traceback);
    if (end_fetch(path, thread, detector, loader_pass) < 0)
        PyErr_Clear();
    PyErr_Restore(kind, error, traceback);
    return NULL;
}

/* Transfers */

PyObject *path_transfer_begins(FastPath *path, PyObject *ignored)
{
    Fields *detector = is_busy_with(path, FREE) ? detector_of(path) : NULL;
    Writer *writer = detector == NULL ? NULL : writer_of_end(path, detector);
    int64_t now_ns;
    int result = writer == NULL ? 0 : write_owned(writer, detector->numbers[TRANSFER_CODE], &now_ns);
    if (writer != NULL && result == 0) {
        set_busy(path, OTHER_PATCH);
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
    set_busy(path, FREE);
    Writer *writer = writer_of_end(path, detector);
    int64_t now_ns;
    int result = writer == NULL ? call_method(detector, "transfer_ends", NULL)
                                : write_owned(writer, -detector->numbers[TRANSFER_CODE], &now_ns);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}
