/* What is kept of the calls of a step, and for how long. */

#include "fast_path.h"

static int is_same(const ExpectedCall *one, const ExpectedCall *other)
{
    return one->kind == other->kind && one->object == other->object && one->type == other->type &&
           one->code == other->code && one->record == other->record && one->event == other->event &&
           one->is_merged == other->is_merged;
}

void note_begin(FastPath *path, ExpectedCall call)
{
    StepPattern *pattern = &path->pattern;
    PyObject *code = call.code, *record = (PyObject *)call.record, *list = NULL;
    pattern->noted++;
    if (pattern->at == MOST_EXPECTED)
        pattern->is_same = 0;
    else {
        ExpectedCall *before = &pattern->calls[pattern->at++];
        if (!is_same(before, &call)) {
            pattern->is_same = 0;
            code = before->code;
            record = (PyObject *)before->record;
            list = before->list;
            *before = call;
        }
    }
    Py_XDECREF(code);
    Py_XDECREF(record);
    Py_XDECREF(list);
}

/* Return the list of an item alone, borrowed; NULL with an exception if there is no memory. */
static PyObject *list_of(ExpectedCall *call, PyObject *item)
{
    if (call->item != item || !is_list(call->list, 1)) {
        PyObject *list = PyList_New(1);
        if (list == NULL || PyList_SetItem(list, 0, Py_NewRef(item)) < 0)
            return NULL;
        PyObject *before = call->list; /* not earlier: the pattern may have been let go of meanwhile */
        call->list = list;
        call->item = item;
        Py_XDECREF(before);
    }
    return call->list;
}

int begin_with_list(FastPath *path, ExpectedCall *call, Fields *fields, int at, PyObject *item, int64_t *now_ns)
{
    StepPattern *pattern = &path->pattern;
    Events *events = pattern->writer->events;
    PyObject *list = Py_XNewRef(list_of(call, item));
    int result = list == NULL ? -1 : 1;
    /* A new list may start a garbage collection, and that run Python code. */
    if (result == 1 && pattern->is_ready && pattern->changes == field_changes && is_list(fields->at[at], 0) &&
        (!call->is_merged || (events->length >= 2 && events->items[events->length - 1] == -call->event)))
        result = begin_expected(path, call, now_ns);
    if (result != 0) {
        Py_XDECREF(list);
        return result;
    }
    PyObject *before = pattern->empty;
    pattern->empty = fields->at[at];
    fields->at[at] = list;
    Py_XDECREF(before);
    return 0;
}

int end_list(FastPath *path, ExpectedCall *call, Fields *fields, int at, PyObject *item)
{
    StepPattern *pattern = &path->pattern;
    PyObject *list = fields->at[at];
    if (list != call->list || call->item != item || !is_list(list, 1) || !is_list(pattern->empty, 0))
        return 0;
    PyObject *empty = pattern->empty;
    pattern->empty = NULL;
    give(fields, at, empty);
    return 1;
}

/* Return whether calls of modules record nothing but their times. */
static int is_plain(FastPath *path, Fields *detector)
{
    Fields *sizes = fields_of(path, SIZES, detector->at[INPUT_SIZES]);
    return sizes != NULL && sizes->at[IS_DUE] == Py_False;
}

void step_ended(FastPath *path, Fields *detector)
{
    StepPattern *pattern = &path->pattern;
    int is_unchanged = pattern->changes == field_changes;
    if (pattern->is_ready)
        pattern->is_ready = is_unchanged && pattern->at == pattern->count;
    else if (is_unchanged && pattern->is_same && pattern->at == pattern->count && pattern->moments == pattern->noted &&
             is_plain(path, detector)) {
        Writer *writer = writer_of(path, detector);
        PyObject *before[] = {(PyObject *)pattern->detector, (PyObject *)pattern->writer};
        pattern->is_ready = writer != NULL;
        pattern->detector = (Fields *)Py_NewRef((PyObject *)detector);
        pattern->writer = (Writer *)Py_XNewRef((PyObject *)writer);
        Py_XDECREF(before[0]);
        Py_XDECREF(before[1]);
    } else
        pattern->count = pattern->at;
    pattern->changes = field_changes;
    pattern->is_same = 1;
    pattern->at = pattern->moments = pattern->noted = 0;
    pattern->open = NULL;
}

void forget_pattern(FastPath *path)
{
    StepPattern *pattern = &path->pattern;
    pattern->is_ready = pattern->is_same = pattern->at = pattern->count = 0;
    pattern->open = NULL;
    pattern->step_by = NULL;
    Py_CLEAR(pattern->empty);
    Py_CLEAR(pattern->detector);
    Py_CLEAR(pattern->writer);
    for (int i = 0; i < MOST_EXPECTED; i++) {
        ExpectedCall *call = &pattern->calls[i];
        call->object = call->type = NULL;
        Py_CLEAR(call->code);
        Py_CLEAR(call->record);
        Py_CLEAR(call->list);
        call->item = NULL;
    }
}
