/* What patches do in nearly every call of a training under way: fast_path.py has the same in Python, and says when.

The state is that of Python's objects: attributes of the class Fields, which slower paths change as they like. So an
attribute may be any object, and is checked before it is used. What may run Python code (an attribute of the program's
objects, the clock, a method of ours, the end of an object) may change the state: what is used after that is owned. */

#ifndef TRAINING_PROFILER_FAST_PATH_H
#define TRAINING_PROFILER_FAST_PATH_H

#include "step_pattern.h"

/* The classes whose fields are read, and the numbers of these; Python has the same, and a test compares them. */
typedef enum {
    CALL, PHASES_OF, PASSES_OF, PASS, UPDATE_OF, SIZES, EARLY_OF, STEPS_OF, DETECTOR_OF, ENDS_OF, RECORDER_OF, COUNT_OF,
    RUN_OF, USE_OF, ROWS_OF, ROLES
} Role;

enum { BUSY_WITH, IDENT, DETECTOR, FETCHING };                           /* TrainingThread */
enum { CALLER, KIND, IS_BARE, IS_IN_METHOD, IS_PLAIN };                  /* ModuleCall */
enum { IS_UNRESOLVED, PASSES, RUN, IS_OPEN, BEFORE };                    /* PhaseDetector */
enum { KEY, USES, LATEST_USE };                                          /* NoGradRun */
enum { IS_EVALUATED, USE_MODULE, USE_CALLER, USE_CALL, USE_KIND };       /* ModuleUse */
enum { LATEST };                                                         /* Passes */
enum { ITERATOR, PHASE, LOADER_ID, SAMPLES };                            /* LoaderPass */
enum { OPEN_CODE, CODE_OF_UPDATE, IS_SCALING, IS_IN_CLOSURE };           /* OptimizerUpdate */
enum { OPEN };                                                           /* OpenUpdates */
enum { IS_DUE, ROWS };                                                   /* InputSizes */
enum { IS_ALONE, PRIMARY };                                              /* StepDetector */
enum { RECORDER, PASSES_FOLLOWED, LATEST_BEFORE };                       /* StepEnds */
enum { WATERMARK_NS, MARKS, STEP_COUNT };                                /* Recorder */
enum { BACKWARD_WATCH, UNUSED_GRAPH, UPDATES_AT_KEPT, HAS_GRAD_SCALER }; /* PatchContext */
enum { /* LoopDetector */
    CALLS, FAST_PATH, FRAME, PHASES, UPDATE, INPUT_SIZES, IS_GRAD_ENABLED, WRITE, INFERRED, EARLY, BUFFER, IS_SHADOWED,
    STEPS, END_STEP, HAS_MANUAL_STEPS, HOST_CLOCK, CALLED_IN_FRAME
};

/* The same for numbers. */
enum { BEGIN_NS, CODE };                                                                      /* ModuleCall */
enum { FUNCTION };                                                                            /* TrainingThread */
enum { CYCLE, FORWARDS, RUN_END_NS };                                                         /* PhaseDetector */
enum { RUN_CALLS };                                                                           /* NoGradRun */
enum { USE_CALLS, USE_END_NS, DEPTH };                                                        /* ModuleUse */
enum { ROW_CALLS };                                                                           /* EvaluatedRows */
enum { FETCHES, PASS_CYCLE, CYCLE_BEGIN_NS, MEASURED_AT };                                    /* LoaderPass */
enum { BACKWARDS_BEFORE };                                                                    /* OpenUpdates */
enum { NEXT_UPDATE };                                                                         /* InputSizes */
enum { MADE_NS };                                                                             /* EarlyCalls */
enum { QUIET_BEFORE, QUIET_UNTIL_NS, QUIET_END_NS };                                          /* Recorder */
enum { STEPS_ENDED };                                                                         /* StepCount */
enum { BACKWARDS, UPDATES, FORWARD_CODE, BARE_CODE, FETCH_CODE, BACKWARD_CODE, UPDATE_CODE, TRANSFER_CODE }; /* LoopDetector */

enum { FREE, FORWARD, FETCH, BACKWARD, OTHER_PATCH, KINDS }; /* as in training_thread.py */

#define MAX_PENDING (1 << 16) /* integers, as in pending_events.py */
#define TIME_ONLY (1 << 21)   /* as in event_codes.py */
#define AT_ONCE_NS 50000      /* as in optimizer_update.py */
#define NEAREST 4             /* as in callers.py */
#define MOST_ROW_CALLS 4096   /* as in evaluated_rows.py */
#define STEP_END 0            /* as in event_codes.py */

typedef _Bool (*GradMode)(void);
typedef int64_t (*CountModes)(void);

/* What is asked of the attributes of a module, once for each class, for that takes longest where an attribute is missing. */
#define KNOWN_CLASSES 64 /* a power of two; another class may take the place of one */
typedef struct {
    PyTypeObject *type;
    int has_own_mode;     /* `training` is in the dictionary of a module alone */
    int has_own_compiled; /* the same of `_compiled_call_impl`, and None where it is not there */
} ModuleClass;

typedef struct {
    PyObject_HEAD
    StepPattern *pattern;
    Fields *thread, *updates, *gradients;
    PyObject *ident;        /* of the thread that was compared last */
    void *pointer;          /* of that thread, or NULL where it is not read */
    PyObject *kinds[KINDS]; /* FREE and so on, as Python has them */
    PyObject *compiled_call, *training_mode; /* names of attributes */
    PyObject *is_grad_enabled;               /* torch's function, for which `grad_mode` stands, or NULL */
    GradMode grad_mode;
    CountModes count_modes;  /* of torch functions, which look at each attribute that is read, or NULL */
    PyTypeObject *tensor;    /* torch's class, or NULL */
    lenfunc length_of;       /* of the first dimension of such a tensor */
    ModuleClass classes[KNOWN_CLASSES];
    PyObject *training; /* the phase of a pass that feeds the training */
    PyObject *back, *yielded, *persistent, *loader_id, *shape, *add, *update_is_recorded; /* names of attributes */
    unsigned long ident_number;
    PyObject *update, *optimizer, *frame, *code; /* the latest update under way; of its parts, only the code is owned */
    PyObject *write; /* the function that writes the events of the latest detector, and what does */
    Writer *writer;
    PyTypeObject *fields_type, *writer_type, *events_type, *frame_type;
    PyTypeObject *known[ROLES]; /* the latest class of each role */
} FastPath;

/* Return `object` if it has fields; otherwise NULL without an exception. Borrowed. */
static inline Fields *fields_of(FastPath *path, Role role, PyObject *object)
{
    if (object == NULL || Py_TYPE(object) == path->known[role])
        return (Fields *)object;
    if (!PyObject_TypeCheck(object, path->fields_type))
        return NULL;
    PyTypeObject *before = path->known[role];
    path->known[role] = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(object));
    Py_XDECREF((PyObject *)before);
    return (Fields *)object;
}

/* Return what writes the events of a detector; NULL without an exception where it is not of C. Borrowed. */
static inline Writer *writer_of(FastPath *path, Fields *detector)
{
    PyObject *function = detector->at[WRITE];
    if (function == NULL || function == path->write)
        return function == NULL ? NULL : path->writer;
    PyObject *self = PyCFunction_CheckExact(function) ? PyCFunction_GetSelf(function) : NULL;
    if (self == NULL || !Py_IS_TYPE(self, path->writer_type))
        return NULL;
    PyObject *before = path->write;
    path->write = Py_NewRef(function);
    path->writer = (Writer *)self; /* the function owns it */
    Py_XDECREF(before);
    return (Writer *)self;
}

/* Return an integer; `otherwise`, without an exception, where it is not one. */
static inline int64_t integer(PyObject *value, int64_t otherwise)
{
    if (value == NULL || !PyLong_Check(value))
        return otherwise;
    int64_t found = PyLong_AsLongLong(value);
    if (found == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return otherwise;
    }
    return found;
}

static inline int is_list(PyObject *value, Py_ssize_t length)
{
    return value != NULL && PyList_CheckExact(value) && Py_SIZE(value) == length;
}

/* Give a field a value, of which it takes the reference. The value before may end, and run Python code. */
static inline void give(Fields *fields, int at, PyObject *value)
{
    PyObject *before = fields->at[at];
    fields->at[at] = value;
    Py_XDECREF(before);
}

/* The same with an integer. Return -1 with an exception if there is no memory. */
static inline int give_integer(Fields *fields, int at, int64_t value)
{
    PyObject *number = PyLong_FromLongLong(value);
    if (number == NULL)
        return -1;
    give(fields, at, number);
    return 0;
}

/* Return what tells the calling thread from others that live, without a call; NULL where there is no such thing. */
static inline void *thread_pointer(void)
{
#if defined(__x86_64__) && defined(__linux__)
    void *pointer;
    __asm__("mov %%fs:0, %0" : "=r"(pointer)); /* the ABI has the block of the thread point to itself */
    return pointer;
#else
    return NULL;
#endif
}

/* Return whether the calling thread has this identifier, of which nothing is kept yet. */
int is_ident_of_calling(FastPath *path, PyObject *ident);

static inline int is_calling_thread(FastPath *path, Fields *thread)
{
    PyObject *ident = thread->at[IDENT];
    if (ident != NULL && ident == path->ident && path->pointer != NULL)
        return path->pointer == thread_pointer();
    return is_ident_of_calling(path, ident);
}

/* Set the kind of call that the training thread is in; nothing may be hidden. */
static inline void set_busy(FastPath *path, int kind)
{
    if (path->thread != NULL)
        give(path->thread, BUSY_WITH, Py_NewRef(path->kinds[kind]));
}

/* Return the detector of the training thread, owned, if that is the calling one and has trained; NULL without an
   exception otherwise. */
static inline Fields *detector_of(FastPath *path)
{
    Fields *thread = path->thread;
    Fields *detector = thread == NULL ? NULL : fields_of(path, DETECTOR_OF, thread->at[DETECTOR]);
    return detector == NULL || !is_calling_thread(path, thread) ? NULL : (Fields *)Py_NewRef((PyObject *)detector);
}

static inline int is_busy_with(FastPath *path, int kind)
{
    if (path->pattern->busy != FREE)
        return path->pattern->busy == kind;
    return path->thread != NULL && path->thread->at[BUSY_WITH] == path->kinds[kind];
}

/* Return whether a method of the detector may be done without: none that watches it stands in front of it. */
static inline int is_bare_detector(FastPath *path, Fields *detector)
{
    return detector->at[IS_SHADOWED] == Py_False;
}

/* Return whether a training event has something to decide, or an update is open. */
static inline int is_undecided(FastPath *path, Fields *detector)
{
    Fields *phases = fields_of(path, PHASES_OF, detector->at[PHASES]);
    Fields *update = fields_of(path, UPDATE_OF, detector->at[UPDATE]);
    return phases == NULL || update == NULL || phases->at[IS_UNRESOLVED] != Py_False ||
           update->at[OPEN_CODE] != path->kinds[0];
}

/* Return whether gradients are enabled; -1 with an exception. */
static inline int is_with_gradients(FastPath *path, Fields *detector)
{
    if (detector->at[IS_GRAD_ENABLED] == NULL) /* not known */
        return 0;
    if (detector->at[IS_GRAD_ENABLED] == path->is_grad_enabled)
        return path->grad_mode();
    PyObject *is_enabled = Py_NewRef(detector->at[IS_GRAD_ENABLED]), *enabled = PyObject_CallNoArgs(is_enabled);
    Py_DECREF(is_enabled);
    int result = enabled == NULL ? -1 : PyObject_IsTrue(enabled);
    Py_XDECREF(enabled);
    return result;
}

/* Find out about the class of a module. */
ModuleClass *class_of_module(FastPath *path, PyTypeObject *type);

static inline ModuleClass *known_class(FastPath *path, PyObject *module)
{
    PyTypeObject *type = Py_TYPE(module);
    ModuleClass *known = &path->classes[((uintptr_t)type >> 6) % KNOWN_CLASSES];
    return known->type == type ? known : class_of_module(path, type);
}

/* Return an attribute of a module that its dictionary alone may have, owned; NULL without an exception if it has it not. */
static inline PyObject *own_attribute(PyObject *module, PyObject *name)
{
    PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    PyObject *found = attributes == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(attributes, name));
    if (attributes == NULL)
        PyErr_Clear();
    Py_XDECREF(attributes);
    return found;
}

/* Return whether a module is in train mode; -1 with an exception. */
static inline int is_training(FastPath *path, PyObject *module)
{
    PyObject *mode = known_class(path, module)->has_own_mode ? own_attribute(module, path->training_mode) : NULL;
    if (mode == NULL)
        mode = PyObject_GetAttr(module, path->training_mode);
    int result = mode == NULL ? -1 : PyObject_IsTrue(mode);
    Py_XDECREF(mode);
    return result;
}

/* Return whether a number is the id of an object. */
static inline int is_id(PyObject *number, PyObject *object)
{
    void *id = number != NULL && PyLong_Check(number) ? PyLong_AsVoidPtr(number) : NULL;
    if (id == NULL && PyErr_Occurred())
        PyErr_Clear();
    return id == (void *)object;
}

/* Return whether a module runs its own Python code, not what torch.compile made of it; -1 with an exception. */
static inline int runs_own_code(FastPath *path, PyObject *module)
{
    PyObject *compiled;
    if (known_class(path, module)->has_own_compiled) {
        if ((compiled = own_attribute(module, path->compiled_call)) == NULL)
            return 1;
    } else
        compiled = PyObject_GetAttr(module, path->compiled_call);
    Py_XDECREF(compiled);
    return compiled == NULL ? -1 : compiled == Py_None;
}

/* Call a method, and drop its result. Return -1 with an exception. */
static inline int call_method(Fields *fields, const char *name, PyObject *argument)
{
    PyObject *done = argument == NULL ? PyObject_CallMethod((PyObject *)fields, name, NULL)
                                      : PyObject_CallMethod((PyObject *)fields, name, "(O)", argument);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Write the event of a writer that the state may drop meanwhile; put its time into `now_ns`. */
static inline int write_owned(Writer *writer, int64_t code, int64_t *now_ns)
{
    Py_INCREF((PyObject *)writer);
    int result = write_event(writer, code);
    if (result == 0)
        *now_ns = writer->events->items[writer->events->length - 2];
    Py_DECREF((PyObject *)writer);
    return result;
}

/* Return the writer of an end that may be written at once, or NULL if the detector has to be asked. Borrowed. */
static inline Writer *writer_of_end(FastPath *path, Fields *detector)
{
    Writer *writer = is_bare_detector(path, detector) ? writer_of(path, detector) : NULL;
    return writer != NULL && writer->events->length + 2 <= MAX_PENDING ? writer : NULL;
}

/* Calls that are expected: between their begin and their end, what the fields have to say of them is hidden, which is most of
   what a begin would set and an end set back. show_hidden() sets it where that may be read: by Python code that reads one
   of these fields, or at a begin or an end that is asked about. */

/* Return the next call of the pattern if it is this one, on the training thread; NULL without an exception otherwise. */
static inline ExpectedCall *expected(FastPath *path, Moment kind, void *object)
{
    StepPattern *pattern = path->pattern;
    if (!pattern->is_ready || pattern->at == pattern->count || pattern->changes != field_state.changes)
        return NULL;
    ExpectedCall *call = &pattern->calls[pattern->at];
    int is_next = call->kind == kind && call->object == object && pattern->open == NULL && field_state.hiding == NULL &&
                  pattern->events->length + 2 <= MAX_PENDING;
    if (pattern->thread != NULL && is_next)
        return pattern->thread == thread_pointer() ? call : NULL;
    return is_next && is_calling_thread(path, path->thread) ? call : NULL;
}

/* Return the expected call of this kind whose end comes next; NULL where the end has to be asked about. */
static inline ExpectedCall *expected_end(FastPath *path, Moment kind)
{
    StepPattern *pattern = path->pattern;
    ExpectedCall *call = pattern->open;
    int is_next = call != NULL && call->kind == kind && pattern->changes == field_state.changes &&
                  pattern->events->length + 2 <= MAX_PENDING;
    return is_next ? call : NULL;
}

static inline int is_hiding(FastPath *path)
{
    return field_state.hiding == path;
}

/* Show what is hidden. */
void stop_hiding(FastPath *path);

/* Take note that an expected call began. */
void open_expected(FastPath *path, ExpectedCall *call, int64_t begin_ns);

/* Record the begin of an expected call, of this event if it has one of its own: 1; 0 if it is not expected any more, -1 with
   an exception, and then nothing has begun. */
int begin_expected(FastPath *path, ExpectedCall *call, int64_t event);

/* Record its end: 1; 0 if that has to be asked about, -1 with an exception. Nothing is hidden afterwards. */
int end_expected(FastPath *path, ExpectedCall *call, int64_t event, int64_t *now_ns);

/* Take note of a begin or an end that is asked about: from here on nothing is expected in this step. */
static inline void ask(FastPath *path)
{
    StepPattern *pattern = path->pattern;
    pattern->moments++;
    if (pattern->is_ready) {
        if (is_hiding(path))
            stop_hiding(path);
        pattern->is_ready = pattern->is_same = 0;
        pattern->open = NULL;
    }
}

/* Take note that a begin that was asked about was usual, or its end. The call takes the references. */
void note_begin(FastPath *path, ExpectedCall call);

static inline void note_end(FastPath *path)
{
    path->pattern->noted++;
}

/* Expect the calls of the step that has ended in the next one, if they are as usual. */
void step_ended(FastPath *path, Fields *detector);

/* Let go of what is expected. */
void forget_pattern(FastPath *path);

/* Record the begin of a call of a module that is expected, and return its record, owned; NULL, perhaps with an exception, if
   it is not. */
Fields *expected_call(FastPath *path, PyObject *module, PyObject *caller);

/* Record the begin of a usual call, or of one that repeats an earlier one without gradients, and return what is needed at
   its end, owned; NULL, perhaps with an exception, where that was not done. The arguments of the call do not matter, and
   its module runs its own Python code. */
Fields *begin_call(FastPath *path, PyObject *module, PyObject *caller);
Fields *repeat_call(FastPath *path, PyObject *module, PyObject *caller);

/* Record the end of a repeated call: 1 if it is one and that was done, 0 if not, -1 with an exception. */
int end_repeated(FastPath *path, Fields *detector, Fields *call);

/* The methods, which fast_path.py documents, for fronts: 1 if that was done, or the code; 0 if not, -1 with an exception. Those
   of a fetch and of clearing return 0 if they succeed. */
int begin_expected_update(FastPath *path, PyObject *optimizer);
int end_expected_update(FastPath *path, PyObject *optimizer);
int call_ends(FastPath *path, PyObject *call, PyObject *module, PyObject *detector);
int fetch_ends(FastPath *path, PyObject *loader_pass, PyObject *detector, PyObject *batch);
int64_t clearing_begins(FastPath *path);
int clearing_ends(FastPath *path, int64_t code, PyObject *detector);

/* The same for Python. */
PyObject *path_call_begins(FastPath *path, PyObject *const *args, Py_ssize_t count);
PyObject *path_call_ends(FastPath *path, PyObject *const *args, Py_ssize_t count);
PyObject *path_fetch_begins(FastPath *path, PyObject *iterator);
PyObject *path_fetch_ends(FastPath *path, PyObject *const *args, Py_ssize_t count);
PyObject *path_transfer_begins(FastPath *path, PyObject *ignored);
PyObject *path_transfer_ends(FastPath *path, PyObject *detector);
PyObject *path_clearing_begins(FastPath *path, PyObject *ignored);
PyObject *path_clearing_ends(FastPath *path, PyObject *const *args, Py_ssize_t count);
PyObject *path_update_begins(FastPath *path, PyObject *const *args, Py_ssize_t count);
PyObject *path_update_ends(FastPath *path, PyObject *optimizer);
PyObject *path_use_library(FastPath *path, PyObject *const *args, Py_ssize_t count);

#endif
