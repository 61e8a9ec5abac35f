/* Matches a thread's enters and exits, and finds the section that owns each moment: span_matching.py in one pass. */

#include "columns.h"

#include <string.h>

#define SECTION_MASK ((1 << 20) - 1) /* these three as in event_codes.py and span_matching.py */
#define TIME_ONLY (1 << 21)
#define MOST_LEVELS 30000
#define KNOWN_NAMES 64

typedef struct {
    int64_t code, id, begin_ns, parent, outer;
} OpenSpan;

typedef struct {
    int64_t id, begin_ns, end_ns, parent, outer;
    Py_ssize_t level;
    int is_counted;
} NestedSpan;

/* An event outside leaf spans, and the owner of the time from it on. */
typedef struct {
    int64_t time_ns, owner, outer;
} Moment;

typedef struct {
    const int64_t *times_ns, *codes, *open_times_ns, *open_codes, *ends_ns;
    Py_ssize_t events, open_events, pieces, sections, most_open;
    int64_t from_ns;
    const uint8_t *is_outside; /* by section */
    PyObject *rename;
    struct {
        int64_t outer, id, named;
    } known[KNOWN_NAMES]; /* what `rename` returned */

    OpenSpan *open;
    NestedSpan *nested;
    Moment *moments;
    Py_ssize_t open_count, open_room, nested_count, nested_room, moment_count, moment_room, leaf_count, levels;

    int64_t *ids, *begins_ns, *ends_of_spans_ns, *durations_ns, *parents, *pieces_of_spans;
    uint8_t *spans_are_outside, *spans_are_counted;
    int64_t *stretch_begins_ns, *stretch_durations_ns, *owners, *outers, *pieces_of_stretches, *own_ns;
    Py_ssize_t span_room, stretch_room, stretch_count;
} Block;

typedef enum { FAILED = -1, NOT_NESTED, DONE } Outcome;

/* Make room for one more item in `items`. */
static void *with_room(void *items, Py_ssize_t count, Py_ssize_t *room, size_t size)
{
    if (count < *room)
        return items;
    Py_ssize_t more = *room ? 2 * *room : 64;
    void *larger = PyMem_Realloc(items, (size_t)more * size);
    if (larger == NULL)
        PyErr_NoMemory();
    else
        *room = more;
    return larger;
}

/* Return the id that section `id` has inside section `outer`; -1 with an exception. */
static int64_t named_within(Block *block, int64_t outer, int64_t id)
{
    if (outer <= 0 || id <= 0 || outer == id)
        return id;
    size_t slot = (size_t)(31 * outer + id) % KNOWN_NAMES;
    if (block->known[slot].outer == outer && block->known[slot].id == id)
        return block->known[slot].named;
    PyObject *number = PyObject_CallFunction(block->rename, "LL", (long long)outer, (long long)id);
    int64_t named = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    if (named == -1 && PyErr_Occurred())
        return -1;
    if (named < 0 || named > SECTION_MASK) {
        PyErr_SetString(PyExc_ValueError, "a section was given an impossible id");
        return -1;
    }
    block->known[slot].outer = outer;
    block->known[slot].id = id;
    block->known[slot].named = named;
    return named;
}

static int check_section(Block *block, int64_t id)
{
    if (id >= 0 && id < block->sections)
        return 0;
    PyErr_Format(PyExc_IndexError, "there is no section %lld", (long long)id);
    return -1;
}

static Outcome add_moment(Block *block, int64_t time_ns, int64_t owner, int64_t outer)
{
    Moment *moments = with_room(block->moments, block->moment_count, &block->moment_room, sizeof(Moment));
    if (moments == NULL)
        return FAILED;
    block->moments = moments;
    moments[block->moment_count++] = (Moment){time_ns, owner, outer};
    return DONE;
}

static Outcome enter(Block *block, int64_t time_ns, int64_t code)
{
    int64_t plain = code & SECTION_MASK;
    if (check_section(block, plain) < 0)
        return FAILED;
    if (block->open_count == MOST_LEVELS)
        return NOT_NESTED;
    OpenSpan *open = with_room(block->open, block->open_count, &block->open_room, sizeof(OpenSpan));
    if (open == NULL)
        return FAILED;
    block->open = open;
    const OpenSpan *around = block->open_count ? &open[block->open_count - 1] : NULL;
    int64_t outer = around != NULL && around->outer ? around->outer : block->is_outside[plain] ? plain : 0;
    int64_t named = named_within(block, outer, plain);
    if (named < 0)
        return FAILED;
    open[block->open_count++] = (OpenSpan){code, named, time_ns, around == NULL ? 0 : around->id, outer};
    return add_moment(block, time_ns, named, outer);
}

static Outcome leave(Block *block, int64_t time_ns, int64_t code)
{
    if (!block->open_count || code != -block->open[block->open_count - 1].code)
        return NOT_NESTED;
    NestedSpan *nested = with_room(block->nested, block->nested_count, &block->nested_room, sizeof(NestedSpan));
    if (nested == NULL)
        return FAILED;
    block->nested = nested;
    Py_ssize_t level = block->open_count--;
    const OpenSpan *ended = &block->open[level - 1];
    nested[block->nested_count++] = (NestedSpan){
        ended->id, ended->begin_ns, time_ns, ended->parent, ended->outer, level, (ended->code & TIME_ONLY) == 0};
    if (level > block->levels)
        block->levels = level;
    return add_moment(block, time_ns, ended->parent, level > 1 ? block->open[level - 2].outer : 0);
}

static Outcome add_event(Block *block, int64_t time_ns, int64_t code)
{
    return code > 0 ? enter(block, time_ns, code) : leave(block, time_ns, code);
}

/* Take out the leaf spans, and match the other events. */
static Outcome match(Block *block)
{
    const int64_t *times_ns = block->times_ns, *codes = block->codes;
    Py_ssize_t cut = 0, cuts = block->pieces - 1;
    Outcome outcome = DONE;
    for (Py_ssize_t i = 0; i < block->open_events && outcome == DONE; i++)
        outcome = add_event(block, block->open_times_ns[i], block->open_codes[i]);
    for (Py_ssize_t i = 0; i < block->events && outcome == DONE; i++) {
        if (codes[i] > 0 && i + 1 < block->events && codes[i + 1] == -codes[i]) {
            while (cut < cuts && block->ends_ns[cut] <= times_ns[i])
                cut++;
            if (cut == cuts || block->ends_ns[cut] >= times_ns[i + 1]) {
                Py_ssize_t leaf = block->leaf_count++;
                block->ids[leaf] = codes[i] & SECTION_MASK;
                block->begins_ns[leaf] = times_ns[i];
                block->ends_of_spans_ns[leaf] = times_ns[i + 1];
                block->spans_are_counted[leaf] = (codes[i] & TIME_ONLY) == 0;
                i++;
                continue;
            }
        }
        outcome = add_event(block, times_ns[i], codes[i]);
    }
    return outcome == DONE && block->open_count > block->most_open ? NOT_NESTED : outcome;
}

/* Return the piece of a time: the first that ends after it, or the last. */
static Py_ssize_t piece_at(const Block *block, int64_t time_ns)
{
    Py_ssize_t low = 0, high = block->pieces - 1;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (block->ends_ns[middle] <= time_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Write the other spans after the leaf spans: outermost first, and those of a level by their ends. */
static int write_nested(Block *block)
{
    Py_ssize_t *next = PyMem_Calloc((size_t)block->levels + 2, sizeof(Py_ssize_t));
    if (next == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < block->nested_count; i++)
        next[block->nested[i].level + 1]++;
    next[0] = block->leaf_count;
    for (Py_ssize_t level = 0; level <= block->levels; level++)
        next[level + 1] += next[level];
    for (Py_ssize_t i = 0; i < block->nested_count; i++) {
        const NestedSpan *span = &block->nested[i];
        Py_ssize_t at = next[span->level]++;
        block->ids[at] = span->id;
        block->begins_ns[at] = span->begin_ns;
        block->ends_of_spans_ns[at] = span->end_ns;
        block->durations_ns[at] = difference(span->end_ns, span->begin_ns);
        block->parents[at] = span->parent;
        block->pieces_of_spans[at] = piece_at(block, span->begin_ns);
        block->spans_are_outside[at] = span->outer > 0;
        block->spans_are_counted[at] = (uint8_t)span->is_counted;
    }
    PyMem_Free(next);
    return 0;
}

/* Complete the leaf spans of the stretch until `next_ns`; return their time. */
static Outcome write_leaves(Block *block, Py_ssize_t *leaf, int is_last, int64_t next_ns, int64_t *sum_ns)
{
    Py_ssize_t stretch = block->stretch_count, at = *leaf;
    int64_t owner = block->owners[stretch], outer = block->outers[stretch], sum = 0;
    for (; at < block->leaf_count && (is_last || block->begins_ns[at] < next_ns); at++) {
        int64_t plain = block->ids[at];
        if (check_section(block, plain) < 0)
            return FAILED;
        if (outer && (block->ids[at] = named_within(block, outer, plain)) < 0)
            return FAILED;
        block->durations_ns[at] = difference(block->ends_of_spans_ns[at], block->begins_ns[at]);
        block->parents[at] = owner;
        block->pieces_of_spans[at] = block->pieces_of_stretches[stretch];
        block->spans_are_outside[at] = outer > 0 || block->is_outside[plain];
        sum = total(sum, block->durations_ns[at]);
    }
    *leaf = at;
    *sum_ns = sum;
    return DONE;
}

/* Write the stretches that the moments and the cuts begin, and complete the leaf spans in them. */
static Outcome write_stretches(Block *block)
{
    Py_ssize_t moment = 0, cut = 0, cuts = block->pieces - 1, leaf = 0, piece = 0;
    int64_t begin_ns = block->from_ns, owner = 0, outer = 0;
    for (int is_last = 0; !is_last; block->stretch_count++) {
        int64_t next_ns = block->ends_ns[cuts], next_owner = owner, next_outer = outer, leaves_ns;
        if (moment < block->moment_count && (cut == cuts || block->moments[moment].time_ns <= block->ends_ns[cut])) {
            next_ns = block->moments[moment].time_ns;
            next_owner = block->moments[moment].owner;
            next_outer = block->moments[moment++].outer;
        } else if (cut < cuts)
            next_ns = block->ends_ns[cut++];
        else
            is_last = 1;
        if (!is_last && next_ns < block->from_ns)
            next_ns = block->from_ns;
        while (piece < cuts && block->ends_ns[piece] <= begin_ns)
            piece++;
        Py_ssize_t at = block->stretch_count;
        block->stretch_begins_ns[at] = begin_ns;
        block->stretch_durations_ns[at] = next_ns > begin_ns ? difference(next_ns, begin_ns) : 0;
        block->owners[at] = owner;
        block->outers[at] = outer;
        block->pieces_of_stretches[at] = piece;
        if (write_leaves(block, &leaf, is_last, next_ns, &leaves_ns) == FAILED)
            return FAILED;
        block->own_ns[at] = difference(block->stretch_durations_ns[at], leaves_ns);
        begin_ns = next_ns;
        owner = next_owner;
        outer = next_outer;
    }
    return DONE;
}

static Outcome attribute(Block *block)
{
    Outcome outcome = match(block);
    if (outcome == DONE && write_nested(block) < 0)
        return FAILED;
    return outcome == DONE ? write_stretches(block) : outcome;
}

/* Write the times and the codes of a block of events, which lie in turns, to an array of two rows. */
PyObject *split_events(PyObject *module, PyObject *args)
{
    PyObject *flat, *rows, *result = NULL;
    Py_ssize_t length;
    Columns columns = {.count = 0};
    const int64_t *events;
    int64_t *times_ns;
    if (!PyArg_ParseTuple(args, "OO:split_events", &flat, &rows))
        return NULL;
    if ((events = columns_borrow(&columns, flat, sizeof(int64_t), 0, &length)) != NULL &&
        (times_ns = columns_borrow_at_least(&columns, rows, sizeof(int64_t), 1, length / 2 * 2)) != NULL) {
        Py_ssize_t count = length / 2;
        int64_t *codes = times_ns + count, latest_ns = INT64_MIN;
        for (Py_ssize_t i = 0; i < count; i++) {
            /* A clock may step back between cores, which would give negative durations. */
            latest_ns = events[2 * i] > latest_ns ? events[2 * i] : latest_ns;
            times_ns[i] = latest_ns;
            codes[i] = events[2 * i + 1];
        }
        result = Py_NewRef(Py_None);
    }
    columns_give_back(&columns);
    return result;
}

PyObject *match_events(PyObject *module, PyObject *args)
{
    PyObject *times, *codes, *open_times, *open_codes, *ends, *is_outside;
    PyObject *spans, *details, *flags, *stretches, *still_open;
    long long from_ns;
    Block block = {0};
    Columns columns = {.count = 0};
    if (!PyArg_ParseTuple(
            args, "OOOOOLOOnOOOOO:match_events", &times, &codes, &open_times, &open_codes, &ends, &from_ns, &is_outside,
            &block.rename, &block.most_open, &spans, &details, &flags, &stretches, &still_open))
        return NULL;
    block.from_ns = from_ns;
    PyObject *result = NULL;
    Py_ssize_t needed, length;
    int64_t *open_out;
    const size_t size = sizeof(int64_t);
    if ((block.times_ns = columns_borrow(&columns, times, size, 0, &block.events)) == NULL ||
        (block.codes = columns_borrow_at_least(&columns, codes, size, 0, block.events)) == NULL ||
        (block.open_times_ns = columns_borrow(&columns, open_times, size, 0, &block.open_events)) == NULL ||
        (block.open_codes = columns_borrow_at_least(&columns, open_codes, size, 0, block.open_events)) == NULL ||
        (block.ends_ns = columns_borrow(&columns, ends, size, 0, &block.pieces)) == NULL ||
        (block.is_outside = columns_borrow(&columns, is_outside, 1, 0, &block.sections)) == NULL ||
        (block.ids = columns_borrow(&columns, spans, size, 1, &length)) == NULL)
        goto give_back;
    block.span_room = length / 3;
    needed = (block.events + block.open_events) / 2 + 1;
    if (block.span_room < needed || block.pieces < 1 || block.most_open < 0) {
        PyErr_SetString(PyExc_ValueError, "there is too little room for the spans, or no time");
        goto give_back;
    }
    if ((block.durations_ns = columns_borrow_at_least(&columns, details, size, 1, 3 * block.span_room)) == NULL ||
        (block.spans_are_outside = columns_borrow_at_least(&columns, flags, 1, 1, 2 * block.span_room)) == NULL ||
        (block.stretch_begins_ns = columns_borrow(&columns, stretches, size, 1, &length)) == NULL ||
        (open_out = columns_borrow_at_least(&columns, still_open, size, 1, 2 * block.most_open)) == NULL)
        goto give_back;
    block.stretch_room = length / 6;
    if (block.stretch_room < block.events + block.open_events + block.pieces) {
        PyErr_SetString(PyExc_ValueError, "there is too little room for the stretches");
        goto give_back;
    }
    block.begins_ns = block.ids + block.span_room;
    block.ends_of_spans_ns = block.begins_ns + block.span_room;
    block.parents = block.durations_ns + block.span_room;
    block.pieces_of_spans = block.parents + block.span_room;
    block.spans_are_counted = block.spans_are_outside + block.span_room;
    block.stretch_durations_ns = block.stretch_begins_ns + block.stretch_room;
    block.owners = block.stretch_durations_ns + block.stretch_room;
    block.outers = block.owners + block.stretch_room;
    block.pieces_of_stretches = block.outers + block.stretch_room;
    block.own_ns = block.pieces_of_stretches + block.stretch_room;
    Outcome outcome = attribute(&block);
    if (outcome == NOT_NESTED)
        result = Py_NewRef(Py_None);
    else if (outcome == DONE) {
        for (Py_ssize_t i = 0; i < block.open_count; i++) {
            open_out[i] = block.open[i].begin_ns;
            open_out[block.most_open + i] = block.open[i].code;
        }
        result = Py_BuildValue(
            "nnnn", block.leaf_count, block.leaf_count + block.nested_count, block.stretch_count, block.open_count);
    }
give_back:
    PyMem_Free(block.open);
    PyMem_Free(block.nested);
    PyMem_Free(block.moments);
    columns_give_back(&columns);
    return result;
}
