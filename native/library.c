/* What torch's library in C++ says of gradients and tensors. Its functions for Python return the same, but prepare for
warnings first, or make a tuple of all sizes, which takes ten times as much code. */

#ifdef __linux__
#define _GNU_SOURCE /* for RTLD_NOLOAD */
#include <dlfcn.h>
#endif

#include "fast_path.h"

/* Return a function of torch's library; NULL where that is not loaded, or has no such function. */
static void *library_function(const char *library, const char *name)
{
#ifdef __linux__
    void *found = dlopen(library, RTLD_LAZY | RTLD_NOLOAD); /* stays loaded: torch does */
    if (found != NULL)
        return dlsym(found, name);
#endif
    return NULL;
}

/* Return whether torch's class of tensors has a length that is found without its functions for Python. */
static int use_lengths(FastPath *path, PyTypeObject *tensor)
{
    PyObject *classes = PyObject_GetAttrString((PyObject *)tensor, "__mro__");
    PyObject *base = classes != NULL && PyTuple_Size(classes) > 1 ? PyTuple_GetItem(classes, 1) : NULL;
    path->count_modes = (CountModes)(uintptr_t)library_function(
        "libtorch_cpu.so", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
    path->length_of = base == NULL ? NULL : (lenfunc)(uintptr_t)PyType_GetSlot((PyTypeObject *)base, Py_mp_length);
    PyObject *before = (PyObject *)path->tensor;
    path->tensor = (PyTypeObject *)Py_NewRef((PyObject *)tensor);
    Py_XDECREF(classes);
    Py_XDECREF(before);
    PyErr_Clear();
    return path->count_modes != NULL && path->length_of != NULL;
}

PyObject *path_use_library(FastPath *path, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyType_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "use_library() takes whether gradients are enabled, and the class of tensors");
        return NULL;
    }
    GradMode found = (GradMode)(uintptr_t)library_function("libc10.so", "_ZN3c108GradMode10is_enabledEv");
    PyObject *enabled = found == NULL ? Py_NewRef(Py_None) : PyObject_CallNoArgs(args[0]);
    if (enabled == NULL)
        return NULL;
    int is_same = found != NULL && enabled == (found() ? Py_True : Py_False);
    Py_DECREF(enabled);
    path->grad_mode = is_same ? found : NULL;
    PyObject *before = path->is_grad_enabled;
    path->is_grad_enabled = is_same ? Py_NewRef(args[0]) : NULL;
    Py_XDECREF(before);
    if (!use_lengths(path, (PyTypeObject *)args[1]))
        path->length_of = NULL;
    return PyBool_FromLong(is_same);
}
