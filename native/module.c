/* The module `_native`. */

#include "native.h"

static int module_fill(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    state->events_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &events_spec, NULL);
    state->writer_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &writer_spec, NULL);
    state->lookup_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &lookup_spec, NULL);
    state->handover_lock_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &handover_lock_spec, NULL);
    if (state->events_type == NULL || state->writer_type == NULL || state->lookup_type == NULL)
        return -1;
    state->fields_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &fields_spec, NULL);
    state->fast_path_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &fast_path_spec, NULL);
    if (state->fields_type == NULL || PyModule_AddType(module, state->fields_type) < 0)
        return -1;
    if (state->fast_path_type == NULL || PyModule_AddType(module, state->fast_path_type) < 0)
        return -1;
    if (fronts_add(module) < 0)
        return -1;
    state->code = PyUnicode_InternFromString("f_code");
    state->back = PyUnicode_InternFromString("f_back");
    if (state->code == NULL || state->back == NULL)
        return -1;
    if (PyModule_AddType(module, state->events_type) < 0 || PyModule_AddType(module, state->lookup_type) < 0)
        return -1;
    if (state->handover_lock_type == NULL || PyModule_AddType(module, state->handover_lock_type) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->events_type);
    Py_VISIT(state->writer_type);
    Py_VISIT(state->lookup_type);
    Py_VISIT(state->handover_lock_type);
    Py_VISIT(state->fields_type);
    Py_VISIT(state->fast_path_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->events_type);
    Py_CLEAR(state->writer_type);
    Py_CLEAR(state->lookup_type);
    Py_CLEAR(state->handover_lock_type);
    Py_CLEAR(state->fields_type);
    Py_CLEAR(state->fast_path_type);
    Py_CLEAR(state->code);
    Py_CLEAR(state->back);
    return 0;
}

static PyMethodDef module_methods[] = {
    {"event_writer", event_writer, METH_VARARGS, "Return a function that writes the clock's time and a code."},
    {"section_writers", section_writers, METH_VARARGS, "Return the functions of a section."},
    {"split_events", split_events, METH_VARARGS, "Write the times and the codes of a block of events to two rows."},
    {"match_events", match_events, METH_VARARGS, "Find the spans of a block of events, and who owns each moment."},
    {"sum_time", sum_time, METH_VARARGS, "Add up the time of each section in each step."},
    {"add_spans", add_spans, METH_VARARGS, "Add spans to the sums of their sections."},
    {"code_ids", (PyCFunction)(void (*)(void))code_ids, METH_FASTCALL, "Return the ids of the functions around a call."},
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
