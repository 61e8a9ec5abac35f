/* What is kept of the calls of a step, and for how long. */

#include "fast_path.h"

#include <time.h>

#define LINE 64 /* bytes of a line of the caches */

StepPattern *new_pattern(void)
{
    void *memory = PyMem_Calloc(1, sizeof(StepPattern) + LINE);
    if (memory == NULL)
        return (StepPattern *)PyErr_NoMemory();
    StepPattern *pattern = (StepPattern *)(((uintptr_t)memory + LINE - 1) / LINE * LINE);
    pattern->memory = memory;
    return pattern;
}

static int is_same(const ExpectedCall *one, const ExpectedCall *other)
{
    return one->kind == other->kind && one->object == other->object && one->type == other->type &&
           one->code == other->code && one->record == other->record && one->event == other->event &&
           one->is_merged == other->is_merged;
}

void note_begin(FastPath *path, ExpectedCall call)
{
    StepPattern *pattern = path->pattern;
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

/* Return the list of an item alone, owned; NULL with an exception if there is no memory. It may start a garbage collection,
   and that run Python code. */
static PyObject *list_of(ExpectedCall *call, PyObject *item)
{
    if (call->item == item && is_list(call->list, 1))
        return Py_NewRef(call->list);
    PyObject *list = PyList_New(1);
    if (list != NULL && PyList_SetItem(list, 0, Py_NewRef(item)) < 0)
        Py_CLEAR(list);
    return list;
}

/* Return an update under way as OpenUpdates has it, owned; NULL with an exception. That of its frames that has this code is
   the outermost: there is none if it has raised. */
static PyObject *update_of(FastPath *path, ExpectedCall *call)
{
    PyObject *frame = Py_XNewRef((PyObject *)PyEval_GetFrame()), *found = NULL;
    while (frame != NULL && frame != Py_None) {
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame), *back;
        if (code == call->code) {
            Py_XDECREF(found);
            found = Py_NewRef(frame);
        }
        Py_DECREF(code);
        back = PyObject_GetAttr(frame, path->back);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    PyObject *id = PyLong_FromVoidPtr(call->object), *frame_id = PyLong_FromVoidPtr(found), *update = NULL;
    Py_XDECREF(found);
    if (id != NULL && frame_id != NULL)
        update = PyTuple_Pack(3, id, frame_id, call->code == NULL ? Py_None : call->code);
    Py_XDECREF(id);
    Py_XDECREF(frame_id);
    return update;
}

/* Have a field hold a list of this item alone, in place of an empty one, until end_list(). */
static void begin_list(FastPath *path, ExpectedCall *call, Fields *fields, int at, PyObject *list, PyObject *item)
{
    StepPattern *pattern = path->pattern;
    PyObject *before[] = {pattern->empty, NULL};
    pattern->empty = fields->at[at];
    fields->at[at] = Py_NewRef(list);
    if (call->list != list) {
        before[1] = call->list;
        call->list = Py_NewRef(list);
        call->item = item;
    }
    Py_XDECREF(before[0]);
    Py_XDECREF(before[1]);
}

/* Put the empty list back. Return 0 if the field does not hold that list any more. */
static int end_list(FastPath *path, ExpectedCall *call, Fields *fields, int at)
{
    StepPattern *pattern = path->pattern;
    PyObject *list = fields->at[at];
    if (list != call->list || !is_list(list, 1) || PyList_GetItem(list, 0) != call->item || !is_list(pattern->empty, 0))
        return 0;
    PyObject *empty = pattern->empty;
    pattern->empty = NULL;
    give(fields, at, empty);
    return 1;
}

void show_hidden(void *hiding)
{
    FastPath *path = hiding;
    StepPattern *pattern = path->pattern;
    ExpectedCall *call = pattern->open;
    int is_update = call->kind == AT_UPDATE;
    if (is_update && !is_calling_thread(path, path->thread)) /* its frames are not here, and only its thread looks at it */
        return;
    PyObject *kind, *error, *traceback, *item = NULL, *list = NULL;
    PyErr_Fetch(&kind, &error, &traceback);
    Fields *fields = is_update ? path->updates : pattern->detector;
    if (is_update)
        item = update_of(path, call);
    else if (call->kind == AT_CALL)
        item = Py_NewRef((PyObject *)call->record);
    if (item != NULL)
        list = list_of(call, item);
    /* Unless Python code has read it meanwhile. */
    if (is_hiding(path) && pattern->open == call) {
        int busy = pattern->busy;
        field_state.hiding = NULL;
        pattern->busy = FREE;
        if (list != NULL)
            begin_list(path, call, fields, is_update ? OPEN : CALLS, list, item);
        if (call->kind == AT_CALL)
            call->record->numbers[BEGIN_NS] = pattern->begin_ns;
        if (busy != FREE)
            set_busy(path, busy);
        Fields *update = is_update ? fields_of(path, UPDATE_OF, pattern->detector->at[UPDATE]) : NULL;
        if (update != NULL)
            give(update, OPEN_CODE, Py_XNewRef(update->at[CODE_OF_UPDATE]));
    }
    Py_XDECREF(item);
    Py_XDECREF(list);
    PyErr_Restore(kind, error, traceback); /* without memory, a list stays empty */
}

void stop_hiding(FastPath *path)
{
    show_hidden(path);
    if (is_hiding(path)) /* an update of another thread */
        field_state.hiding = NULL;
    path->pattern->busy = FREE;
}

/* Return whether the call may begin now; -1 with an exception. A clock of Python's may have changed that. */
static int read_begin(FastPath *path, ExpectedCall *call, int64_t *now_ns)
{
    StepPattern *pattern = path->pattern;
    Writer *writer = (Writer *)Py_NewRef((PyObject *)pattern->writer);
    int result = read_clock(writer->clock, now_ns) < 0 || events_reserve(writer->events, 2) < 0 ? -1 : 1;
    if (result == 1 && writer->clock != Py_None)
        result = expected(path, call->kind, call->object) == call;
    Py_DECREF((PyObject *)writer);
    return result;
}

static inline void append(Events *events, int64_t time_ns, int64_t event)
{
    int64_t *next = events->items + events->length;
    next[0] = time_ns;
    next[1] = event;
    events->length += 2;
}

/* Return the time if that is all that an event needs; 0 where it is not. */
static inline int64_t read_directly(StepPattern *pattern)
{
#ifdef CLOCK_MONOTONIC
    struct timespec now;
    if (pattern->is_direct && pattern->events->capacity - pattern->events->length >= 2 &&
        clock_gettime(CLOCK_MONOTONIC, &now) == 0)
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
#endif
    return 0;
}

static const int BUSY_IN[] = {
    [AT_CALL] = FORWARD, [AT_FETCH] = FETCH, [AT_BACKWARD] = BACKWARD, [AT_CLEARING] = FREE, [AT_UPDATE] = FREE,
    [AT_TRANSFER] = OTHER_PATCH};

void open_expected(FastPath *path, ExpectedCall *call, int64_t begin_ns)
{
    StepPattern *pattern = path->pattern;
    pattern->open = call;
    pattern->begin_ns = begin_ns;
    pattern->busy = BUSY_IN[call->kind];
    field_state.hiding = path;
}

int begin_expected(FastPath *path, ExpectedCall *call, int64_t event)
{
    StepPattern *pattern = path->pattern;
    Events *events = pattern->events;
    int64_t now_ns = 0;
    if (!call->is_merged) {
        now_ns = read_directly(pattern);
        int result = now_ns != 0 ? 1 : read_begin(path, call, &now_ns);
        if (result <= 0)
            return result;
        append(events, now_ns, event);
    } else if (events->length < 2 || events->items[events->length - 1] != -event)
        return 0;
    else
        events->length -= 2;
    open_expected(path, call, now_ns);
    return 1;
}

static inline void close_expected(StepPattern *pattern, int64_t event, int64_t now_ns)
{
    append(pattern->events, now_ns, event);
    pattern->open = NULL;
    pattern->busy = FREE;
    pattern->at++;
    field_state.hiding = NULL;
}

/* Set back what is shown of an open call: 1; 0 if that has to be asked about. */
static int hide_again(FastPath *path, ExpectedCall *call)
{
    StepPattern *pattern = path->pattern;
    int result = 1;
    if (call->kind == AT_CALL)
        result = end_list(path, call, pattern->detector, CALLS);
    else if (call->kind == AT_UPDATE) {
        Fields *update = fields_of(path, UPDATE_OF, pattern->detector->at[UPDATE]);
        if ((result = end_list(path, call, path->updates, OPEN)) && update != NULL)
            give(update, OPEN_CODE, Py_NewRef(path->kinds[0]));
    }
    if (result == 1 && BUSY_IN[call->kind] != FREE)
        set_busy(path, FREE);
    return result;
}

/* Let nothing be under way any more. */
static void drop_open(FastPath *path, ExpectedCall *call)
{
    StepPattern *pattern = path->pattern;
    if (pattern->open == call && !is_hiding(path))
        hide_again(path, call);
    else if (is_hiding(path))
        field_state.hiding = NULL;
    pattern->open = NULL;
    pattern->busy = FREE;
    pattern->is_ready = pattern->is_same = 0;
}

/* The same as end_expected(), by a clock of Python's, or after Python code has read the state. */
static int end_slowly(FastPath *path, ExpectedCall *call, int64_t event, int64_t *now_ns)
{
    StepPattern *pattern = path->pattern;
    Writer *writer = (Writer *)Py_NewRef((PyObject *)pattern->writer);
    int result = read_clock(writer->clock, now_ns) < 0 || events_reserve(writer->events, 2) < 0 ? -1 : 1;
    if (result == 1 && writer->clock != Py_None)
        result = expected_end(path, call->kind) == call;
    if (result < 0) /* the call has ended all the same */
        drop_open(path, call);
    else if (result == 1 && !is_hiding(path))
        result = hide_again(path, call);
    if (result == 1)
        close_expected(pattern, event, *now_ns);
    Py_DECREF((PyObject *)writer);
    return result;
}

int end_expected(FastPath *path, ExpectedCall *call, int64_t event, int64_t *now_ns)
{
    *now_ns = is_hiding(path) ? read_directly(path->pattern) : 0;
    if (*now_ns == 0)
        return end_slowly(path, call, event, now_ns);
    close_expected(path->pattern, event, *now_ns);
    return 1;
}

/* Return whether calls record nothing but their times, and none is under way: as long as Python code changes none of these
   fields, only calls that are asked about do. */
static int is_plain(FastPath *path, Fields *detector)
{
    Fields *sizes = fields_of(path, SIZES, detector->at[INPUT_SIZES]), *gradients = path->gradients;
    Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    PyObject *fetching = path->thread == NULL ? NULL : path->thread->at[FETCHING];
    return sizes != NULL && sizes->at[IS_DUE] == Py_False && is_list(detector->at[CALLS], 0) &&
           detector->at[FRAME] == Py_None && update != NULL && update->at[OPEN_CODE] == path->kinds[0] &&
           path->updates != NULL && is_list(path->updates->at[OPEN], 0) && gradients != NULL &&
           gradients->at[BACKWARD_WATCH] == Py_None && gradients->at[UNUSED_GRAPH] == Py_None &&
           gradients->at[UPDATES_AT_KEPT] == Py_None && is_busy_with(path, FREE) && fetching != NULL &&
           PyAnySet_Check(fetching) && PySet_Size(fetching) == 0;
}

void step_ended(FastPath *path, Fields *detector)
{
    StepPattern *pattern = path->pattern;
    int is_unchanged = pattern->changes == field_state.changes;
    if (pattern->is_ready)
        pattern->is_ready = is_unchanged && pattern->at == pattern->count;
    else if (is_unchanged && pattern->is_same && pattern->at == pattern->count && pattern->moments == pattern->noted &&
             is_plain(path, detector)) {
        Writer *writer = writer_of(path, detector);
        PyObject *before[] = {(PyObject *)pattern->detector, (PyObject *)pattern->writer};
        pattern->is_ready = writer != NULL && is_calling_thread(path, path->thread);
        pattern->thread = path->pointer;
        pattern->events = writer == NULL ? NULL : writer->events;
        pattern->is_direct = writer != NULL && has_direct_clock(writer);
        pattern->detector = (Fields *)Py_NewRef((PyObject *)detector);
        pattern->writer = (Writer *)Py_XNewRef((PyObject *)writer);
        Py_XDECREF(before[0]);
        Py_XDECREF(before[1]);
    } else
        pattern->count = pattern->at;
    pattern->changes = field_state.changes;
    pattern->is_same = 1;
    pattern->at = pattern->moments = pattern->noted = 0;
    pattern->open = NULL;
}

void forget_pattern(FastPath *path)
{
    StepPattern *pattern = path->pattern;
    if (is_hiding(path))
        stop_hiding(path);
    pattern->is_ready = pattern->is_same = pattern->at = pattern->count = 0;
    pattern->open = NULL;
    pattern->step_by = NULL;
    Py_CLEAR(pattern->empty);
    Py_CLEAR(pattern->detector);
    Py_CLEAR(pattern->writer);
    for (int i = 0; i < KNOWN_CLASSES; i++)
        Py_CLEAR(path->classes[i].type);
    for (int i = 0; i < MOST_EXPECTED; i++) {
        ExpectedCall *call = &pattern->calls[i];
        call->object = call->type = NULL;
        Py_CLEAR(call->code);
        Py_CLEAR(call->record);
        Py_CLEAR(call->list);
        call->item = NULL;
    }
}
