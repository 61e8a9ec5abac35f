/* Whether gradients are enabled, as torch's library in C++ has it for each thread. Its function for Python returns the same,
but prepares for warnings first, which takes ten times as much code. */

#ifdef __linux__
#define _GNU_SOURCE /* for RTLD_NOLOAD */
#include <dlfcn.h>
#endif

#include "fast_path.h"

/* Return torch's own function, which has no arguments and returns a bool; NULL where it is not loaded, or not found. */
static GradMode library_function(void)
{
#ifdef __linux__
    void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD); /* stays loaded: torch does */
    if (library != NULL)
        return (GradMode)(uintptr_t)dlsym(library, "_ZN3c108GradMode10is_enabledEv");
#endif
    return NULL;
}

PyObject *path_use_grad_mode(FastPath *path, PyObject *is_grad_enabled)
{
    GradMode found = library_function();
    PyObject *enabled = found == NULL ? Py_NewRef(Py_None) : PyObject_CallNoArgs(is_grad_enabled);
    if (enabled == NULL)
        return NULL;
    int is_same = found != NULL && enabled == (found() ? Py_True : Py_False);
    Py_DECREF(enabled);
    path->grad_mode = is_same ? found : NULL;
    PyObject *before = path->is_grad_enabled;
    path->is_grad_enabled = is_same ? Py_NewRef(is_grad_enabled) : NULL;
    Py_XDECREF(before);
    return PyBool_FromLong(is_same);
}
