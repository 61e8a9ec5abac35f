/* The section of a name on the calling thread. */

#include "native.h"

typedef struct {
    Owner owner;
    PyObject *missing;  /* is called with a name that is not found */
    PyObject *sections; /* dict of the thread that looked one up last */
    uint64_t thread;    /* that one; 0 for none. A system thread may have one Python thread after another */
} SectionLookup;

static uint64_t python_thread(void)
{
    return PyThreadState_GetID(PyThreadState_Get());
}

static PyObject *lookup_make(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *missing;
    if (!PyArg_ParseTuple(args, "O:SectionLookup", &missing))
        return NULL;
    SectionLookup *lookup = owner_new(type, 2, 2);
    if (lookup != NULL)
        lookup->missing = Py_NewRef(missing);
    return (PyObject *)lookup;
}

static PyObject *lookup_find(SectionLookup *lookup, PyObject *name)
{
    /* Only a string is looked up here: the hash of anything else may be Python code, which could drop the dict. */
    if (lookup->sections != NULL && lookup->thread == python_thread() && PyUnicode_CheckExact(name)) {
        PyObject *section = PyDict_GetItemWithError(lookup->sections, name);
        if (section != NULL)
            return Py_NewRef(section);
        if (PyErr_Occurred())
            return NULL;
    }
    if (lookup->missing == NULL)
        Py_RETURN_NONE;
    PyObject *missing = Py_NewRef(lookup->missing), *section = PyObject_CallFunctionObjArgs(missing, name, NULL);
    Py_DECREF(missing);
    return section;
}

static PyObject *lookup_use(SectionLookup *lookup, PyObject *sections)
{
    PyObject *before = lookup->sections;
    if (!PyDict_Check(sections)) {
        PyErr_SetString(PyExc_TypeError, "sections are found in a dict");
        return NULL;
    }
    lookup->thread = python_thread();
    lookup->sections = Py_NewRef(sections);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *lookup_drop(SectionLookup *lookup, PyObject *sections)
{
    if (lookup->sections == sections)
        Py_CLEAR(lookup->sections);
    Py_RETURN_NONE;
}

static PyMethodDef lookup_methods[] = {
    {"find", (PyCFunction)lookup_find, METH_O, "Return the section of a name on the calling thread."},
    {"use", (PyCFunction)lookup_use, METH_O, "Find the sections of the calling thread in this dict from now on."},
    {"drop", (PyCFunction)lookup_drop, METH_O, "Let go of the dict of a thread that has ended."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lookup_slots[] = {
    {Py_tp_doc, "Finds the section of a name on the calling thread."},
    {Py_tp_new, lookup_make},
    OWNER_SLOTS,
    {Py_tp_methods, lookup_methods},
    {0, NULL},
};

PyType_Spec lookup_spec = {
    .name = "training_profiler.recording._native.SectionLookup",
    .basicsize = sizeof(SectionLookup),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lookup_slots,
};
