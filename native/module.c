/* The module `_native`. */

#include "native.h"

static int add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    int result = type == NULL ? -1 : PyModule_AddType(module, type);
    Py_XDECREF((PyObject *)type);
    return result;
}

static int module_fill(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    state->events_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &events_spec, NULL);
    state->writer_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &writer_spec, NULL);
    state->fields_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &fields_spec, NULL);
    state->usual_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &usual_spec, NULL);
    if (state->events_type == NULL || state->writer_type == NULL || state->fields_type == NULL ||
        state->usual_type == NULL || PyModule_AddType(module, state->events_type) < 0 ||
        PyModule_AddType(module, state->fields_type) < 0 || PyModule_AddType(module, state->usual_type) < 0)
        return -1;
    if (add_type(module, &lookup_spec) < 0 || add_type(module, &handover_lock_spec) < 0)
        return -1;
#ifndef _WIN32
    if (add_type(module, &front_spec) < 0)
        return -1;
#endif
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->events_type);
    Py_VISIT(state->writer_type);
    Py_VISIT(state->fields_type);
    Py_VISIT(state->usual_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->events_type);
    Py_CLEAR(state->writer_type);
    Py_CLEAR(state->fields_type);
    Py_CLEAR(state->usual_type);
    return 0;
}

static PyMethodDef module_methods[] = {
    {"event_writer", event_writer, METH_VARARGS, "Return a function that writes the clock's time and a code."},
    {"section_writers", section_writers, METH_VARARGS, "Return the functions of a section."},
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
