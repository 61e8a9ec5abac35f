/* The attributes that C reads without a look-up by name. A class of Python derives from it, and gives them names of its
own; fields.py has the same as a class with slots. */

#include "native.h"

#include <stddef.h>
#include <structmember.h>

static int fields_traverse(Fields *fields, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)fields));
    for (int i = 0; i < FIELDS; i++)
        Py_VISIT(fields->at[i]);
    return 0;
}

static int fields_clear(Fields *fields)
{
    for (int i = 0; i < FIELDS; i++)
        Py_CLEAR(fields->at[i]);
    return 0;
}

static void fields_dealloc(Fields *fields)
{
    PyTypeObject *type = Py_TYPE((PyObject *)fields);
    PyObject_GC_UnTrack(fields);
    fields_clear(fields);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(fields);
    Py_DECREF(type);
}

FieldState field_state = {0, NULL};

static int fields_set(PyObject *fields, PyObject *name, PyObject *value)
{
    field_state.changes++;
    return PyObject_GenericSetAttr(fields, name, value);
}

/* Field 0 again, for one that a fast path may keep to itself: it is shown first. */
static PyObject *fields_get_shown(Fields *fields, void *unused)
{
    if (field_state.hiding != NULL)
        show_hidden(field_state.hiding);
    if (fields->at[0] == NULL)
        PyErr_SetString(PyExc_AttributeError, "at0");
    return Py_XNewRef(fields->at[0]);
}

static int fields_set_shown(Fields *fields, PyObject *value, void *unused)
{
    if (field_state.hiding != NULL)
        show_hidden(field_state.hiding);
    PyObject *before = fields->at[0];
    fields->at[0] = Py_XNewRef(value);
    Py_XDECREF(before);
    return 0;
}

static PyGetSetDef fields_shown[] = {
    {"shown0", (getter)fields_get_shown, (setter)fields_set_shown, NULL, NULL},
    {NULL},
};

/* Of this kind because the interpreter reads it as fast as a slot of a class in Python. */
#define FIELD(number) {"at" #number, T_OBJECT_EX, offsetof(Fields, at[number]), 0, NULL}

/* Python is slower to read a number than a field, and C much faster to count it. */
#define NUMBER(number) {"number" #number, T_LONGLONG, offsetof(Fields, numbers[number]), 0, NULL}

static PyMemberDef fields_members[] = {
    FIELD(0),  FIELD(1),  FIELD(2),  FIELD(3),  FIELD(4),  FIELD(5),  FIELD(6),  FIELD(7),  FIELD(8),  FIELD(9),
    FIELD(10), FIELD(11), FIELD(12), FIELD(13), FIELD(14), FIELD(15), FIELD(16), FIELD(17), FIELD(18), FIELD(19),
    NUMBER(0), NUMBER(1), NUMBER(2), NUMBER(3), NUMBER(4), NUMBER(5), NUMBER(6), NUMBER(7),
    {NULL},
};

static PyType_Slot fields_slots[] = {
    {Py_tp_doc, "Attributes that C reads, too."},
    {Py_tp_traverse, fields_traverse},
    {Py_tp_clear, fields_clear},
    {Py_tp_dealloc, fields_dealloc},
    {Py_tp_members, fields_members},
    {Py_tp_getset, fields_shown},
    {Py_tp_setattro, fields_set},
    {0, NULL},
};

PyType_Spec fields_spec = {
    .name = "training_profiler.recording._native.Fields",
    .basicsize = sizeof(Fields),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = fields_slots,
};
