/* The begins and ends of fetches of batches. */

#include "fast_path.h"

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

/* Return whether the iterator is known to make a single pass: it has no workers that stay for the next. */
static int makes_one_pass(FastPath *path, PyObject *iterator)
{
    PyObject *stays = PyObject_GetAttr(iterator, path->persistent);
    int result = stays == Py_False;
    Py_XDECREF(stays);
    PyErr_Clear();
    return result;
}

/* Return whether a pass is that of the iterator; another one may have the address of one that is gone. */
static int is_iterator_of(Fields *loader_pass, PyObject *iterator)
{
    PyObject *reference = loader_pass->at[ITERATOR];
    return reference != NULL && PyWeakref_CheckRefExact(reference) && PyWeakref_GetObject(reference) == iterator;
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

/* Let a pass know that a fetch began, which may be the first of its cycle. */
static void begin_cycle(Fields *loader_pass, Fields *phases, int64_t now_ns)
{
    if (phases != NULL && loader_pass->numbers[PASS_CYCLE] != phases->numbers[CYCLE]) {
        loader_pass->numbers[PASS_CYCLE] = phases->numbers[CYCLE];
        loader_pass->numbers[CYCLE_BEGIN_NS] = now_ns;
    }
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
    if (done != NULL)
        begin_cycle(loader_pass, fields_of(path, PHASES_OF, detector->at[PHASES]), now_ns);
    return done == NULL ? -1 : 0;
}

/* Record the begin of a fetch that is the next call of the pattern, and return its pass, owned; NULL, perhaps with an
   exception, if it is not. */
static PyObject *expected_fetch(FastPath *path, PyObject *iterator)
{
    ExpectedCall *next = expected(path, AT_FETCH, iterator);
    if (next == NULL || next->record->numbers[FETCHES] >= next->record->numbers[MEASURED_AT])
        return NULL;
    int is_first = next->is_once ? !is_iterator_of(next->record, iterator) : is_first_fetch(path, iterator);
    if (is_first != 0 || expected(path, AT_FETCH, iterator) != next)
        return NULL;
    PyObject *record = Py_NewRef((PyObject *)next->record);
    if (begin_expected(path, next, next->event) <= 0)
        Py_CLEAR(record);
    else
        begin_cycle((Fields *)record, fields_of(path, PHASES_OF, path->pattern->detector->at[PHASES]),
                    path->pattern->begin_ns);
    return record;
}

PyObject *path_fetch_begins(FastPath *path, PyObject *iterator)
{
    int is_free = is_busy_with(path, FREE) || is_busy_with(path, FORWARD);
    PyObject *found = is_free ? expected_fetch(path, iterator) : NULL;
    if (found != NULL || PyErr_Occurred())
        return found;
    Fields *detector = is_free ? detector_of(path) : NULL, *loader_pass = NULL;
    if (detector == NULL)
        Py_RETURN_NONE;
    ask(path);
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
                record_source(path, detector, loader_pass, now_ns) == 0) {
                found = Py_NewRef((PyObject *)loader_pass);
                StepPattern *pattern = path->pattern;
                ExpectedCall *before = pattern->at < MOST_EXPECTED ? &pattern->calls[pattern->at] : NULL;
                int is_known = before != NULL && before->record == loader_pass && before->object == iterator;
                note_begin(path, (ExpectedCall){
                                     .kind = AT_FETCH,
                                     .is_once = is_known ? before->is_once : makes_one_pass(path, iterator),
                                     .object = iterator,
                                     .record = (Fields *)Py_NewRef((PyObject *)loader_pass),
                                     .event = detector->numbers[FETCH_CODE],
                                 });
            }
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
    if (Py_TYPE(batch) == path->tensor && path->length_of != NULL && path->count_modes() == 0) {
        Py_ssize_t length = path->length_of(batch); /* 0 also without dimensions */
        if (length > 0)
            return length;
        PyErr_Clear();
    }
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
    if (rows >= 0 && before >= 0)
        return give_integer(loader_pass, SAMPLES, before + rows);
    PyObject *samples = PyObject_CallMethod((PyObject *)loader_pass, "samples_with", "(O)", batch);
    if (samples == NULL)
        return -1;
    give(loader_pass, SAMPLES, samples);
    return 0;
}

/* Record that the thread is free again, and the end of its fetch. Return -1 with an exception. */
static int end_fetch(FastPath *path, Fields *thread, Fields *detector, Fields *loader_pass)
{
    int64_t now_ns = 0;
    ExpectedCall *open = expected_end(path, AT_FETCH);
    int is_ended = open == NULL || open->record != loader_pass ? 0 : end_expected(path, open, -open->event, &now_ns);
    if (is_ended != 0) {
        loader_pass->numbers[FETCHES] += is_ended > 0;
        return is_ended > 0 ? 0 : -1;
    }
    ask(path);
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
    note_end(path);
    return 0;
}

int fetch_ends(FastPath *path, PyObject *of, PyObject *recorder, PyObject *batch)
{
    Fields *loader_pass = fields_of(path, PASS, of), *thread = path->thread;
    Fields *detector = loader_pass == NULL ? NULL : fields_of(path, DETECTOR_OF, recorder);
    if (detector == NULL || thread == NULL) {
        PyErr_SetString(PyExc_TypeError, "fetch_ends() takes a pass, the detector that recorded it, and a batch");
        return -1;
    }
    if (add_samples(path, loader_pass, batch) == 0)
        return end_fetch(path, thread, detector, loader_pass);
    PyObject *kind, *error, *traceback; /* such as Ctrl-C: the fetch has ended all the same */
    PyErr_Fetch(&kind, &error, &traceback);
    if (end_fetch(path, thread, detector, loader_pass) < 0)
        PyErr_Clear();
    PyErr_Restore(kind, error, traceback);
    return -1;
}

PyObject *path_fetch_ends(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "fetch_ends() takes a pass, the detector that recorded it, and a batch");
        return NULL;
    }
    return fetch_ends(path, args[0], args[1], args[2]) < 0 ? NULL : Py_NewRef(Py_None);
}
