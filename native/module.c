/* The module `_native`. */

#include "native.h"

void *owner_new(PyTypeObject *type, int references, int cleared)
{
    Owner *owner = (Owner *)PyType_GenericAlloc(type, 0);
    if (owner != NULL) {
        owner->references = references;
        owner->cleared = cleared;
    }
    return owner;
}

int owner_traverse(PyObject *self, visitproc visit, void *arg)
{
    PyObject **reference = (PyObject **)((Owner *)self + 1);
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < ((Owner *)self)->references; i++)
        Py_VISIT(reference[i]);
    return 0;
}

int owner_clear(PyObject *self)
{
    PyObject **reference = (PyObject **)((Owner *)self + 1);
    for (int i = 0; i < ((Owner *)self)->cleared; i++)
        Py_CLEAR(reference[i]);
    return 0;
}

void owner_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    ((Owner *)self)->cleared = ((Owner *)self)->references;
    owner_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Spec *const SPECS[MOST_TYPES] = {
    &events_spec,
    &writer_spec,
#ifndef _WIN32
    &usual_spec,
    &front_spec,
#endif
    &lookup_spec,
    &handover_lock_spec,
};

static int module_fill(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    for (int i = 0; i < MOST_TYPES && SPECS[i] != NULL; i++) {
        state->type[i] = (PyTypeObject *)PyType_FromModuleAndSpec(module, SPECS[i], NULL);
        if (state->type[i] == NULL || PyModule_AddType(module, state->type[i]) < 0)
            return -1;
    }
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    for (int i = 0; i < MOST_TYPES; i++)
        Py_VISIT(state->type[i]);
    return 0;
}

static int module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    for (int i = 0; i < MOST_TYPES; i++)
        Py_CLEAR(state->type[i]);
    return 0;
}

static PyMethodDef module_methods[] = {
    {"event_writer", event_writer, METH_VARARGS, "Return a function that writes the clock's time and a code."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_fill},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "training_profiler.recording._native",
    .m_doc = "The recorder in C.",
    .m_size = sizeof(ModuleState),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module_definition);
}
