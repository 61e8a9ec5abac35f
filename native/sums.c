/* Adds spans up: the time of steps, and the sums of sections. */

#include "columns.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_EDGES 256

/* Spans of a block, as `match_events` left them. */
typedef struct {
    const int64_t *ids, *durations_ns, *parents, *pieces;
    const uint8_t *are_outside, *are_counted;
    Py_ssize_t count;
} Spans;

/* Borrow `count` spans and check that each is of a known section and lies in one of the pieces. */
static int borrow_spans(
    Columns *columns, Spans *spans, PyObject *first, PyObject *details, PyObject *flags, Py_ssize_t count,
    Py_ssize_t rows, Py_ssize_t pieces)
{
    Py_ssize_t length, room;
    if ((spans->ids = columns_borrow(columns, first, sizeof(int64_t), 0, &length)) == NULL)
        return -1;
    room = length / 3;
    if ((spans->durations_ns = columns_borrow_at_least(columns, details, sizeof(int64_t), 0, 3 * room)) == NULL ||
        (spans->are_outside = columns_borrow_at_least(columns, flags, 1, 0, 2 * room)) == NULL)
        return -1;
    spans->parents = spans->durations_ns + room;
    spans->pieces = spans->parents + room;
    spans->are_counted = spans->are_outside + room;
    spans->count = count;
    int is_damaged = count < 0 || count > room;
    for (Py_ssize_t i = 0, checked = is_damaged ? 0 : count; i < checked; i++) /* without jumps, which took longer */
        is_damaged |= ((uint64_t)spans->ids[i] >= (uint64_t)rows) | ((uint64_t)spans->parents[i] >= (uint64_t)rows) |
                      ((uint64_t)spans->pieces[i] >= (uint64_t)pieces);
    if (is_damaged)
        PyErr_SetString(PyExc_IndexError, "a span lies in no section or in no time that there is");
    return is_damaged ? -1 : 0;
}

/* The time of the training thread, by step and section. */
PyObject *sum_time(PyObject *module, PyObject *args)
{
    PyObject *first, *details, *flags, *stretches, *step_rows, *is_forward, *self, *totals, *calls, *rows_out;
    Py_ssize_t leaf_count, span_count, stretch_count, complete, rows, pieces, room, length;
    Spans spans;
    Columns columns = {.count = 0};
    if (!PyArg_ParseTuple(
            args, "OOOnnOnOnOOOOO:sum_time", &first, &details, &flags, &leaf_count, &span_count, &stretches,
            &stretch_count, &step_rows, &complete, &is_forward, &self, &totals, &calls, &rows_out))
        return NULL;
    PyObject *result = NULL;
    const size_t size = sizeof(int64_t);
    const int64_t *row_of, *stretch;
    const uint8_t *forward;
    int64_t *self_ns, *total_ns, *made, *span_rows;
    if ((row_of = columns_borrow(&columns, step_rows, size, 0, &pieces)) == NULL ||
        (forward = columns_borrow(&columns, is_forward, 1, 0, &rows)) == NULL ||
        (stretch = columns_borrow(&columns, stretches, size, 0, &length)) == NULL ||
        borrow_spans(&columns, &spans, first, details, flags, span_count, rows, pieces) < 0)
        goto give_back;
    room = length / 6;
    const int64_t *owners = stretch + 2 * room, *outers = stretch + 3 * room, *piece = stretch + 4 * room,
                  *own_ns = stretch + 5 * room;
    int is_damaged = stretch_count < 0 || stretch_count > room || leaf_count < 0 || leaf_count > span_count ||
                     complete < 0 || complete > pieces;
    for (Py_ssize_t i = 0; i < stretch_count && !is_damaged; i++)
        is_damaged = (uint64_t)owners[i] >= (uint64_t)rows || (uint64_t)piece[i] >= (uint64_t)pieces;
    for (Py_ssize_t i = 0; i < pieces && !is_damaged; i++)
        is_damaged = row_of[i] < -1 || row_of[i] > complete;
    if (is_damaged) {
        PyErr_SetString(PyExc_IndexError, "a stretch lies in no section or in no step that there is");
        goto give_back;
    }
    if ((self_ns = columns_borrow_at_least(&columns, self, size, 1, (complete + 2) * rows)) == NULL ||
        (total_ns = columns_borrow_at_least(&columns, totals, size, 1, 2 * rows)) == NULL ||
        (made = columns_borrow_at_least(&columns, calls, size, 1, complete + 1)) == NULL ||
        (span_rows = columns_borrow_at_least(&columns, rows_out, size, 1, span_count)) == NULL)
        goto give_back;
    for (Py_ssize_t i = 0; i < stretch_count; i++) {
        int64_t row = row_of[piece[i]];
        int64_t *sum = self_ns + (outers[i] > 0 || row < 0 ? complete + 1 : row) * rows + owners[i];
        *sum = total(*sum, own_ns[i]);
    }
    for (Py_ssize_t i = 0; i < span_count; i++) {
        int64_t id = spans.ids[i], row = row_of[spans.pieces[i]], duration_ns = spans.durations_ns[i];
        if (spans.are_outside[i])
            row = -1;
        if (i < leaf_count) { /* nothing else owns its time */
            int64_t *own = self_ns + (row < 0 ? complete + 1 : row) * rows + id;
            *own = total(*own, duration_ns);
        }
        if (spans.parents[i] == id)
            row = -1;
        span_rows[i] = row;
        if (row < 0)
            continue;
        int64_t *sum = total_ns + (row == complete ? rows : 0) + id;
        *sum = total(*sum, duration_ns);
        if (forward[id] && spans.are_counted[i])
            made[row]++;
    }
    result = Py_NewRef(Py_None);
give_back:
    columns_give_back(&columns);
    return result;
}

typedef struct {
    int64_t key, count; /* key: parent * rows + id; count: 0 for none here */
} Edge;

typedef struct {
    Edge *edges;
    size_t room, used, last; /* room: a power of two; last: where something was added last */
} Edges;

static Edge *edge_of(const Edges *edges, int64_t key)
{
    size_t at = (size_t)((uint64_t)key * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (edges->room - 1);
    while (edges->edges[at].count && edges->edges[at].key != key)
        at = (at + 1) & (edges->room - 1);
    return &edges->edges[at];
}

static int edges_make_room(Edges *edges, size_t room)
{
    Edges larger = {PyMem_Calloc(room, sizeof(Edge)), room, edges->used, 0};
    if (larger.edges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < edges->room; i++)
        if (edges->edges[i].count)
            *edge_of(&larger, edges->edges[i].key) = edges->edges[i];
    PyMem_Free(edges->edges);
    *edges = larger;
    return 0;
}

static int edges_add(Edges *edges, int64_t key)
{
    Edge *edge = &edges->edges[edges->last];
    if (!edge->count || edge->key != key)
        edge = edge_of(edges, key);
    edges->last = (size_t)(edge - edges->edges);
    if (!edge->count++) {
        edge->key = key;
        if (2 * ++edges->used > edges->room)
            return edges_make_room(edges, 2 * edges->room);
    }
    return 0;
}

static int by_key(const void *left, const void *right)
{
    int64_t a = ((const Edge *)left)->key, b = ((const Edge *)right)->key;
    return (a > b) - (a < b);
}

/* Add the edges to the dict of their counts, in the order of their keys. */
static int edges_write(Edges *edges, Py_ssize_t rows, PyObject *counts)
{
    size_t used = 0;
    for (size_t i = 0; i < edges->room; i++)
        if (edges->edges[i].count)
            edges->edges[used++] = edges->edges[i];
    qsort(edges->edges, used, sizeof(Edge), by_key);
    for (size_t i = 0; i < used; i++) {
        const Edge *edge = &edges->edges[i];
        PyObject *key = Py_BuildValue("(LL)", (long long)(edge->key / rows), (long long)(edge->key % rows));
        PyObject *more = PyLong_FromLongLong(edge->count), *sum = NULL;
        PyObject *before = key == NULL ? NULL : PyDict_GetItemWithError(counts, key);
        if (more != NULL && !PyErr_Occurred())
            sum = before == NULL ? Py_NewRef(more) : PyNumber_Add(before, more);
        int result = sum == NULL ? -1 : PyDict_SetItem(counts, key, sum);
        Py_XDECREF(key);
        Py_XDECREF(more);
        Py_XDECREF(sum);
        if (result < 0)
            return -1;
    }
    return 0;
}

/* The arrays of SectionSums, one item a section but for `bins`. */
typedef struct {
    int64_t *count, *total_ns, *measured, *min_ns, *max_ns, *min_step, *max_step, *bins;
    double *mean_ns, *m2;
    Py_ssize_t rows, bin_count;
} Sums;

/* Of the spans of one block and section that count for averages. */
typedef struct {
    int64_t count, sum_ns, min_ns, max_ns, min_step, max_step;
    double mean_ns, m2;
} Distribution; /* a line of the caches */

/* The bin of a duration: a cell is as wide as a 64th of a power of two, so that at most one bin begins inside of it. */
typedef struct {
    const int64_t *bins, *next_begins_ns; /* by cell: the bin of its begin, and the begin of the next bin inside */
    Py_ssize_t count;
} Cells;

static Py_ssize_t bin_of(const Cells *cells, Py_ssize_t bin_count, int64_t duration_ns)
{
    double duration = (double)(duration_ns < 1 ? 1 : duration_ns);
    uint64_t bits;
    memcpy(&bits, &duration, sizeof bits);
    uint64_t cell = (bits >> 46) - (UINT64_C(1023) << 6);
    if (cell >= (uint64_t)cells->count)
        cell = (uint64_t)cells->count - 1;
    uint64_t bin = (uint64_t)cells->bins[cell] + (duration_ns >= cells->next_begins_ns[cell]);
    return (Py_ssize_t)(bin < (uint64_t)bin_count ? bin : (uint64_t)bin_count - 1);
}

static int is_measured(int64_t step, int64_t warmup_steps)
{
    return step == 0 || step > warmup_steps;
}

/* Pairwise update of mean and variance (Chan, Golub, LeVeque 1979), in the order of section_totals.py. */
static void add_moments(Sums *sums, Py_ssize_t id, const Distribution *added)
{
    int64_t before = sums->measured[id];
    double together = (double)total(before, added->count), delta = added->mean_ns - sums->mean_ns[id];
    double between = delta * delta * (double)before * (double)added->count / together;
    sums->m2[id] += added->m2 + between;
    sums->mean_ns[id] += delta * (double)added->count / together;
    sums->measured[id] = total(before, added->count);
}

/* Complete the distributions by means and squares, the latter in the order of the spans. */
static void add_squares(
    const Spans *spans, const int64_t *steps, int64_t warmup_steps, Distribution *added, Py_ssize_t rows)
{
    for (Py_ssize_t id = 0; id < rows; id++)
        if (added[id].count)
            added[id].mean_ns = (double)added[id].sum_ns / (double)added[id].count;
    Distribution *own = added; /* of the span before: most follow one of the same section */
    double m2 = 0.0;
    for (Py_ssize_t i = 0; i < spans->count; i++) {
        if (!spans->are_counted[i] || !is_measured(steps[spans->pieces[i]], warmup_steps))
            continue;
        if (own != &added[spans->ids[i]]) {
            own->m2 = m2;
            own = &added[spans->ids[i]];
            m2 = own->m2;
        }
        double distance = (double)spans->durations_ns[i] - own->mean_ns;
        m2 += distance * distance;
    }
    own->m2 = m2;
}

static int add_up(
    Sums *sums, const Spans *spans, const int64_t *steps, int64_t warmup_steps, const Cells *cells, Edges *edges,
    Distribution *added)
{
    for (Py_ssize_t id = 0; id < sums->rows; id++) {
        added[id].min_ns = sums->min_ns[id];
        added[id].max_ns = sums->max_ns[id];
        added[id].min_step = sums->min_step[id];
        added[id].max_step = sums->max_step[id];
    }
    for (Py_ssize_t i = 0; i < spans->count; i++) {
        int64_t id = spans->ids[i], duration_ns = spans->durations_ns[i], step = steps[spans->pieces[i]];
        Distribution *own = &added[id];
        if (spans->are_counted[i] && edges_add(edges, spans->parents[i] * sums->rows + id) < 0)
            return -1;
        if (!spans->are_counted[i] || !is_measured(step, warmup_steps)) {
            sums->total_ns[id] = total(sums->total_ns[id], duration_ns);
            sums->count[id] += spans->are_counted[i];
            continue;
        }
        own->count++;
        own->sum_ns = total(own->sum_ns, duration_ns);
        if (duration_ns < own->min_ns) {
            own->min_ns = duration_ns;
            own->min_step = step;
        }
        if (duration_ns > own->max_ns) {
            own->max_ns = duration_ns;
            own->max_step = step;
        }
        sums->bins[id * sums->bin_count + bin_of(cells, sums->bin_count, duration_ns)]++;
    }
    add_squares(spans, steps, warmup_steps, added, sums->rows);
    for (Py_ssize_t id = 0; id < sums->rows; id++)
        if (added[id].count) {
            sums->total_ns[id] = total(sums->total_ns[id], added[id].sum_ns);
            sums->count[id] += added[id].count;
            sums->min_ns[id] = added[id].min_ns;
            sums->max_ns[id] = added[id].max_ns;
            sums->min_step[id] = added[id].min_step;
            sums->max_step[id] = added[id].max_step;
            add_moments(sums, id, &added[id]);
        }
    return 0;
}

PyObject *add_spans(PyObject *module, PyObject *args)
{
    PyObject *first, *details, *flags, *steps, *columns_of_sums, *parents, *cell_bins, *cell_begins;
    Py_ssize_t count, pieces;
    long long warmup_steps;
    if (!PyArg_ParseTuple(
            args, "OOOnOLO!O!OO:add_spans", &first, &details, &flags, &count, &steps, &warmup_steps, &PyTuple_Type,
            &columns_of_sums, &PyDict_Type, &parents, &cell_bins, &cell_begins))
        return NULL;
    Columns columns = {.count = 0};
    Spans spans;
    Sums sums = {0};
    Cells cells;
    Edges edges = {NULL, 0, 0, 0};
    Distribution *added = NULL;
    PyObject *result = NULL;
    const int64_t *steps_of_pieces;
    int64_t **integers[] = {&sums.count,  &sums.total_ns, &sums.measured, &sums.min_ns,
                            &sums.max_ns, &sums.min_step, &sums.max_step, &sums.bins};
    double **floats[] = {&sums.mean_ns, &sums.m2};
    if (PyTuple_Size(columns_of_sums) != 10) {
        PyErr_SetString(PyExc_ValueError, "section sums have 10 columns");
        return NULL;
    }
    Py_ssize_t lengths[10];
    for (Py_ssize_t i = 0; i < 10; i++) {
        PyObject *column = PyTuple_GetItem(columns_of_sums, i);
        void *memory = columns_borrow(&columns, column, sizeof(int64_t), 1, &lengths[i]);
        if (memory == NULL)
            goto give_back;
        if (i < 8)
            *integers[i] = memory;
        else
            *floats[i - 8] = memory;
    }
    sums.rows = lengths[0];
    sums.bin_count = sums.rows ? lengths[7] / sums.rows : 0;
    for (Py_ssize_t i = 0; i < 10; i++)
        if (lengths[i] != (i == 7 ? sums.rows * sums.bin_count : sums.rows)) {
            PyErr_SetString(PyExc_ValueError, "the columns of the section sums have different lengths");
            goto give_back;
        }
    if ((cells.bins = columns_borrow(&columns, cell_bins, sizeof(int64_t), 0, &cells.count)) == NULL ||
        (cells.next_begins_ns = columns_borrow_at_least(&columns, cell_begins, sizeof(int64_t), 0, cells.count)) ==
            NULL ||
        (steps_of_pieces = columns_borrow(&columns, steps, sizeof(int64_t), 0, &pieces)) == NULL ||
        borrow_spans(&columns, &spans, first, details, flags, count, sums.rows, pieces) < 0)
        goto give_back;
    if (!cells.count || !sums.bin_count) {
        PyErr_SetString(PyExc_ValueError, "there are no bins");
        goto give_back;
    }
    added = PyMem_Calloc((size_t)sums.rows + 1, sizeof(Distribution));
    if (added == NULL) {
        PyErr_NoMemory();
        goto give_back;
    }
    if (edges_make_room(&edges, FIRST_EDGES) == 0 &&
        add_up(&sums, &spans, steps_of_pieces, warmup_steps, &cells, &edges, added) == 0 &&
        edges_write(&edges, sums.rows, parents) == 0)
        result = Py_NewRef(Py_None);
give_back:
    PyMem_Free(edges.edges);
    PyMem_Free(added);
    columns_give_back(&columns);
    return result;
}
