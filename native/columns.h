/* The arrays that a call reads and fills: borrowed from numpy, checked, and given back before it returns. */

#ifndef TRAINING_PROFILER_COLUMNS_H
#define TRAINING_PROFILER_COLUMNS_H

#include "native.h"

#define MOST_COLUMNS 20

typedef struct {
    Py_buffer views[MOST_COLUMNS];
    int count;
} Columns;

/* Return the memory of `array`, which consists of items of this size, and write their number to `length`. Return NULL
   with an exception if the array is another one. */
void *columns_borrow(Columns *columns, PyObject *array, size_t item_size, int is_written, Py_ssize_t *length);

/* Return the same of an array with at least `needed` items. */
void *columns_borrow_at_least(
    Columns *columns, PyObject *array, size_t item_size, int is_written, Py_ssize_t needed);

void columns_give_back(Columns *columns);

#endif
