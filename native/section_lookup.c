/* The section of a name on the calling thread. */

#include "native.h"

#if defined(_MSC_VER)
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

typedef struct {
    PyObject_HEAD
    PyObject *missing;  /* is called with a name that is not found */
    PyObject *sections; /* list of the dicts in use, one a thread */
    uint64_t stamp;     /* unique among all lookups, and renewed whenever a dict is dropped */
} SectionLookup;

static uint64_t last_stamp;

/* The dict that the thread used last. It is alive while its lookup has this stamp, which holds it in `sections`. */
static THREAD_LOCAL struct {
    uint64_t stamp, thread;
    PyObject *sections;
} last_used;

/* A system thread may have one Python thread after another; each has sections of its own. */
static uint64_t python_thread(void)
{
    return PyThreadState_GetID(PyThreadState_Get());
}

static PyObject *lookup_make(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *missing;
    if (!PyArg_ParseTuple(args, "O:SectionLookup", &missing))
        return NULL;
    SectionLookup *lookup = (SectionLookup *)PyType_GenericAlloc(type, 0);
    if (lookup == NULL)
        return NULL;
    lookup->missing = Py_NewRef(missing);
    lookup->stamp = ++last_stamp;
    lookup->sections = PyList_New(0);
    if (lookup->sections == NULL) {
        Py_DECREF((PyObject *)lookup);
        return NULL;
    }
    return (PyObject *)lookup;
}

static int lookup_traverse(SectionLookup *lookup, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)lookup));
    Py_VISIT(lookup->missing);
    Py_VISIT(lookup->sections);
    return 0;
}

static int lookup_clear(SectionLookup *lookup)
{
    lookup->stamp = ++last_stamp;
    Py_CLEAR(lookup->missing);
    Py_CLEAR(lookup->sections);
    return 0;
}

static void lookup_dealloc(SectionLookup *lookup)
{
    PyTypeObject *type = Py_TYPE((PyObject *)lookup);
    PyObject_GC_UnTrack(lookup);
    lookup_clear(lookup);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(lookup);
    Py_DECREF(type);
}

static PyObject *lookup_find(SectionLookup *lookup, PyObject *name)
{
    /* Only a string is looked up here: the hash of anything else may be Python code, which could drop the dict. */
    if (last_used.stamp == lookup->stamp && last_used.thread == python_thread() && PyUnicode_CheckExact(name)) {
        PyObject *section = PyDict_GetItemWithError(last_used.sections, name);
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

/* Return where `sections` is among the dicts in use; -1 if it is not. */
static Py_ssize_t position_of(SectionLookup *lookup, PyObject *sections)
{
    Py_ssize_t at = lookup->sections == NULL ? 0 : PyList_Size(lookup->sections);
    while (--at >= 0 && PyList_GetItem(lookup->sections, at) != sections)
        ;
    return at;
}

static PyObject *lookup_use(SectionLookup *lookup, PyObject *sections)
{
    if (!PyDict_Check(sections) || lookup->sections == NULL) {
        PyErr_SetString(PyExc_TypeError, "sections are found in a dict");
        return NULL;
    }
    if (position_of(lookup, sections) < 0 && PyList_Append(lookup->sections, sections) < 0)
        return NULL;
    last_used.stamp = lookup->stamp;
    last_used.thread = python_thread();
    last_used.sections = sections;
    Py_RETURN_NONE;
}

static PyObject *lookup_drop(SectionLookup *lookup, PyObject *sections)
{
    Py_ssize_t at = position_of(lookup, sections);
    lookup->stamp = ++last_stamp;
    if (at >= 0 && PyList_SetSlice(lookup->sections, at, at + 1, NULL) < 0)
        return NULL;
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
    {Py_tp_traverse, lookup_traverse},
    {Py_tp_clear, lookup_clear},
    {Py_tp_dealloc, lookup_dealloc},
    {Py_tp_methods, lookup_methods},
    {0, NULL},
};

PyType_Spec lookup_spec = {
    .name = "training_profiler.recording._native.SectionLookup",
    .basicsize = sizeof(SectionLookup),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lookup_slots,
};
