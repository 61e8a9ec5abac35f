/* Arrays of numpy that are borrowed for one call. */

#include "columns.h"

void *columns_borrow(Columns *columns, PyObject *array, size_t item_size, int is_written, Py_ssize_t *length)
{
    static int64_t nothing[1]; /* an array without items may have no memory */
    if (columns->count == MOST_COLUMNS) {
        PyErr_SetString(PyExc_SystemError, "too many arrays");
        return NULL;
    }
    Py_buffer *view = &columns->views[columns->count];
    if (PyObject_GetBuffer(array, view, is_written ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return NULL;
    columns->count++;
    if (view->len % (Py_ssize_t)item_size || (uintptr_t)view->buf % item_size) {
        PyErr_SetString(PyExc_ValueError, "an array has items of another size");
        return NULL;
    }
    *length = view->len / (Py_ssize_t)item_size;
    return *length ? view->buf : nothing;
}

void *columns_borrow_at_least(Columns *columns, PyObject *array, size_t item_size, int is_written, Py_ssize_t needed)
{
    Py_ssize_t length;
    void *memory = columns_borrow(columns, array, item_size, is_written, &length);
    if (memory != NULL && length < needed) {
        PyErr_Format(PyExc_ValueError, "an array has %zd items and needs %zd", length, needed);
        return NULL;
    }
    return memory;
}

void columns_give_back(Columns *columns)
{
    while (columns->count)
        PyBuffer_Release(&columns->views[--columns->count]);
}
