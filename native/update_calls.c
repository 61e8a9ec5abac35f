/* The begins and ends of updates and of clearing gradients, and the ends of steps. */

#include "fast_path.h"

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

/* Record the begin of clearing, which may go on with an update right before it. Return the code, 0 if there is no room for
   its end, and -1 with an exception. */
static int64_t begin_clearing(Fields *detector, Writer *writer)
{
    int64_t code = detector->numbers[UPDATE_CODE], now_ns;
    Py_INCREF((PyObject *)writer);
    int result = is_right_after_update(detector, writer);
    if (result > 0 && writer->events->length >= 2)
        writer->events->length -= 2;
    else if (result == 0)
        result = write_owned(writer, code |= TIME_ONLY, &now_ns);
    Py_DECREF((PyObject *)writer);
    return result < 0 ? -1 : code;
}

/* Return the code if that is the next call of the pattern, 0 if it is not, and -1 with an exception. */
static int64_t begin_expected_clearing(FastPath *path)
{
    ExpectedCall *next = is_busy_with(path, FREE) ? expected(path, AT_CLEARING, NULL) : NULL;
    if (next == NULL)
        return 0;
    Writer *writer = path->pattern->writer;
    int64_t code = path->pattern->detector->numbers[UPDATE_CODE];
    int result = is_right_after_update(path->pattern->detector, writer);
    if (result != 0 && (result < 0 || expected(path, AT_CLEARING, NULL) != next || writer->events->length < 2))
        return result < 0 ? -1 : 0;
    if (result == 0) {
        code |= TIME_ONLY;
        result = expected(path, AT_CLEARING, NULL) == next ? begin_expected(path, next, code) : 0;
        return result > 0 ? code : result;
    }
    writer->events->length -= 2;
    open_expected(path, next, 0);
    return code;
}

int64_t clearing_begins(FastPath *path)
{
    int64_t begun = begin_expected_clearing(path);
    if (begun != 0)
        return begun;
    Fields *detector = is_busy_with(path, FREE) ? detector_of(path) : NULL;
    if (detector != NULL)
        ask(path);
    PyObject *open = path->updates == NULL ? NULL : path->updates->at[OPEN];
    int64_t code = 0;
    if (detector != NULL && is_list(open, 0) && is_list(detector->at[CALLS], 0)) {
        Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
        Writer *writer = update == NULL || update->at[IS_SCALING] != Py_False ? NULL : writer_of(path, detector);
        if (writer != NULL && (code = begin_clearing(detector, writer)) > 0)
            note_begin(path, (ExpectedCall){.kind = AT_CLEARING});
    }
    Py_XDECREF((PyObject *)detector);
    return code;
}

PyObject *path_clearing_begins(FastPath *path, PyObject *ignored)
{
    int64_t code = clearing_begins(path);
    return code < 0 ? NULL : PyLong_FromLongLong(code);
}

int clearing_ends(FastPath *path, int64_t code, PyObject *recorder)
{
    int64_t now_ns;
    ExpectedCall *open = expected_end(path, AT_CLEARING);
    int is_ended = open == NULL ? 0 : end_expected(path, open, -code, &now_ns);
    if (is_ended != 0)
        return is_ended > 0 ? 0 : -1;
    Fields *detector = fields_of(path, DETECTOR_OF, recorder);
    if (detector == NULL) {
        PyErr_SetString(PyExc_TypeError, "clearing_ends() takes the detector that recorded the begin");
        return -1;
    }
    ask(path);
    note_end(path);
    Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    Writer *writer = writer_of(path, detector);
    if (writer != NULL)
        return write_owned(writer, -code, &now_ns);
    PyObject *number = update == NULL ? NULL : PyLong_FromLongLong(code);
    int result = number == NULL ? (PyErr_Occurred() ? -1 : 0) : call_method(update, "clearing_ends", number);
    Py_XDECREF(number);
    return result;
}

PyObject *path_clearing_ends(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "clearing_ends() takes the code of the begin, and its detector");
        return NULL;
    }
    return clearing_ends(path, integer(args[0], 0), args[1]) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Return an update as OpenUpdates has it. */
static PyObject *update_of(FastPath *path, PyObject *optimizer, PyObject *frame)
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
    return update;
}

/* Append to the updates under way. */
static int append_update(FastPath *path, PyObject *open, PyObject *optimizer, PyObject *frame)
{
    PyObject *update = update_of(path, optimizer, frame);
    int result = update == NULL ? -1 : PyList_Append(open, update);
    Py_XDECREF(update);
    return result;
}

int begin_expected_update(FastPath *path, PyObject *optimizer)
{
    ExpectedCall *next = is_busy_with(path, FREE) ? expected(path, AT_UPDATE, optimizer) : NULL;
    if (next == NULL || !is_list(path->updates->at[OPEN], 0))
        return 0;
    return begin_expected(path, next, next->event);
}

PyObject *path_update_begins(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !Py_IS_TYPE(args[1], path->frame_type)) {
        PyErr_SetString(PyExc_TypeError, "update_begins() takes an optimizer, and the frame of its update");
        return NULL;
    }
    int was_expected = begin_expected_update(path, args[0]);
    if (was_expected != 0)
        return was_expected < 0 ? NULL : Py_NewRef(Py_True);
    Fields *detector = is_busy_with(path, FETCH) ? NULL : detector_of(path);
    if (detector != NULL)
        ask(path);
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
            note_begin(path, (ExpectedCall){
                                 .kind = AT_UPDATE,
                                 .object = args[0],
                                 .code = (PyObject *)PyFrame_GetCode((PyFrameObject *)args[1]),
                                 .event = detector->numbers[UPDATE_CODE],
                             });
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

/* Record the end of a step among the marks, if it is not before the last of these, and count it: 1; 0 if it is, -1 with an
   exception. */
static int mark_step(Fields *recorder, Fields *count, Events *marks, int64_t now_ns)
{
    if (marks->length >= 2 && marks->items[marks->length - 2] > now_ns)
        return 0;
    if (events_reserve(marks, 2) < 0)
        return -1;
    marks->items[marks->length] = now_ns;
    marks->items[marks->length + 1] = STEP_END;
    marks->length += 2;
    recorder->numbers[QUIET_END_NS] = now_ns;
    count->numbers[STEPS_ENDED]++;
    if (recorder->at[WATERMARK_NS] == NULL || recorder->at[WATERMARK_NS] == Py_None)
        return 1;
    return give_integer(recorder, WATERMARK_NS, now_ns) < 0 ? -1 : 1;
}

/* End a step without the session, as StepEnds does: 1 if that was done, 0 if the session has to be asked, -1 with an
   exception. */
static int end_quietly(FastPath *path, PyObject *end, int64_t now_ns)
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
    if (marks == NULL || !Py_IS_TYPE(marks, path->events_type) || ((Events *)marks)->is_slice)
        return 0;
    return mark_step(recorder, count, (Events *)marks, now_ns);
}

/* Let Python end a step: the session, or the detector if that has to count the update. Return -1 with an exception. */
static int end_by_python(FastPath *path, Fields *detector, PyObject *end, PyObject *optimizer, int64_t now_ns)
{
    PyObject *time = PyLong_FromLongLong(now_ns), *done = NULL;
    Py_XINCREF(end);
    if (time != NULL && end != NULL)
        done = PyObject_CallFunctionObjArgs(end, time, NULL);
    else if (time != NULL)
        done = PyObject_CallMethodObjArgs((PyObject *)detector, path->update_is_recorded, optimizer, time, NULL);
    Py_XDECREF(end);
    Py_XDECREF(time);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Return whether this update surely ends a step, as it did the step before: nothing was set since then. */
static int is_like_last_step(FastPath *path, PyObject *optimizer)
{
    StepPattern *pattern = path->pattern;
    return pattern->is_ready && pattern->changes == field_state.changes && pattern->step_by == optimizer;
}

/* Count an update, and end its step. Return -1 with an exception. */
static int end_step(FastPath *path, Fields *detector, PyObject *optimizer, int64_t now_ns)
{
    Fields *sizes = fields_of(path, SIZES, detector->at[INPUT_SIZES]);
    Fields *phases = fields_of(path, PHASES_OF, detector->at[PHASES]);
    Fields *steps = fields_of(path, STEPS_OF, detector->at[STEPS]);
    PyObject *end = detector->at[END_STEP];
    int64_t updates = detector->numbers[UPDATES] + 1;
    int result = 0;
    if (sizes == NULL || phases == NULL || steps == NULL || updates >= sizes->numbers[NEXT_UPDATE])
        end = NULL;
    else if (!is_like_last_step(path, optimizer) &&
             (detector->at[HAS_MANUAL_STEPS] != Py_False || steps->at[IS_ALONE] != Py_True ||
              !is_id(steps->at[PRIMARY], optimizer)))
        end = NULL;
    path->pattern->step_by = end == NULL ? NULL : optimizer;
    if (end != NULL) { /* as in nearly all trainings */
        detector->numbers[UPDATES] = updates;
        phases->numbers[CYCLE]++;
        result = end_quietly(path, end, now_ns);
    }
    if (result == 0)
        result = end_by_python(path, detector, end, optimizer, now_ns);
    step_ended(path, detector);
    return result < 0 ? -1 : 0;
}

int end_expected_update(FastPath *path, PyObject *optimizer)
{
    ExpectedCall *begun = expected_end(path, AT_UPDATE);
    if (begun == NULL || begun->object != optimizer || path->updates == NULL)
        return 0;
    int64_t now_ns = 0, backwards = path->pattern->detector->numbers[BACKWARDS];
    if (path->updates->numbers[BACKWARDS_BEFORE] == backwards)
        return 0;
    int result = end_expected(path, begun, -begun->event, &now_ns);
    if (result > 0) {
        Fields *detector = (Fields *)Py_NewRef((PyObject *)path->pattern->detector);
        path->updates->numbers[BACKWARDS_BEFORE] = backwards;
        result = end_step(path, detector, optimizer, now_ns) < 0 ? -1 : 1;
        Py_DECREF((PyObject *)detector);
    }
    return result;
}

PyObject *path_update_ends(FastPath *path, PyObject *optimizer)
{
    int was_expected = end_expected_update(path, optimizer);
    if (was_expected != 0)
        return was_expected < 0 ? NULL : Py_NewRef(Py_True);
    Fields *detector = detector_of(path);
    if (detector != NULL)
        ask(path);
    int is_never_skipped = path->gradients != NULL && path->gradients->at[HAS_GRAD_SCALER] == Py_False;
    int result = 0, is_usual = detector != NULL && is_never_skipped && is_usual_update(path, detector, optimizer);
    if (is_usual) {
        path->updates->numbers[BACKWARDS_BEFORE] = detector->numbers[BACKWARDS];
        PyObject *open = path->updates->at[OPEN];
        int64_t now_ns = 0;
        if ((result = PyList_SetSlice(open, 0, 1, NULL)) == 0 &&
            (result = record_update_end(path, detector, &now_ns)) == 0)
            result = call_method(detector, "update_ends", optimizer);
        else if (result > 0) {
            note_end(path);
            result = end_step(path, detector, optimizer, now_ns);
        }
    }
    Py_XDECREF((PyObject *)detector);
    return result < 0 ? NULL : PyBool_FromLong(is_usual);
}
