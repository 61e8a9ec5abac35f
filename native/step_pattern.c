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
    PyObject *code = call.code, *record = (PyObject *)call.record;
    pattern->noted++;
    if (pattern->at == MOST_EXPECTED)
        pattern->is_same = 0;
    else {
        ExpectedCall *before = &pattern->calls[pattern->at++];
        if (!is_same(before, &call)) {
            pattern->is_same = 0;
            code = before->code;
            record = (PyObject *)before->record;
            *before = call;
        }
    }
    Py_XDECREF(code);
    Py_XDECREF(record);
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
    Py_CLEAR(pattern->detector);
    Py_CLEAR(pattern->writer);
    for (int i = 0; i < MOST_EXPECTED; i++) {
        ExpectedCall *call = &pattern->calls[i];
        call->object = call->type = NULL;
        Py_CLEAR(call->code);
        Py_CLEAR(call->record);
    }
}
