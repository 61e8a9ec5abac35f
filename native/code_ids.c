/* The functions around a call, for those who compare them: code_ids.py has the same in Python. */

#include "native.h"

PyObject *code_ids(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t most = count == 2 ? PyLong_AsSsize_t(args[1]) : -1, length = 0;
    if (most < 0 || most > MOST_CODES) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "code_ids() takes a frame or None, and how many functions");
        return NULL;
    }
    ModuleState *state = PyModule_GetState(module);
    PyObject *ids[MOST_CODES], *frame = Py_NewRef(args[0]), *back, *tuple = NULL;
    while (length < most && frame != Py_None && frame != NULL) {
        PyObject *code = PyObject_GetAttr(frame, state->code);
        ids[length] = code == NULL ? NULL : PyLong_FromVoidPtr(code); /* its frame keeps it */
        Py_XDECREF(code);
        back = ids[length] == NULL ? NULL : PyObject_GetAttr(frame, state->back);
        length += ids[length] != NULL;
        Py_DECREF(frame);
        frame = back;
    }
    if (frame != NULL)
        tuple = PyTuple_New(length);
    Py_XDECREF(frame);
    for (Py_ssize_t i = 0; i < length; i++) {
        if (tuple == NULL)
            Py_DECREF(ids[i]);
        else
            PyTuple_SetItem(tuple, i, ids[i]);
    }
    return tuple;
}
