/* What is recorded of nearly every call of a training under way, and how fronts.c asks for it. */

#ifndef TRAINING_PROFILER_USUAL_CALLS_H
#define TRAINING_PROFILER_USUAL_CALLS_H

#include "native.h"

/* The objects of one loop detector that are never replaced, as instrumentation/fronts.py gives them. */
enum {
    DETECTOR, THREAD, CONTEXT, UPDATES, PHASES, PASSES, UPDATE, SIZES, EARLY, STEPS, ENDS, RECORDER, /* have fields */
    BUFFER, MARKS, CALLS, KNOWN, OPEN, CAPTURED, FETCHING,
    IS_GRAD_ENABLED, HOST_CLOCK, TRAINING, WRITE, PARTS
};
#define LAST_WITH_FIELDS RECORDER
enum { FORWARD_CODE, FETCH_CODE, BACKWARD_CODE, UPDATE_CODE, PIECES_CODE, CODES };
enum { FREE, FORWARD, FETCH, BACKWARD, KINDS }; /* as in training_thread.py */

/* The attributes that are read and set by their number: a class of Python derives from Fields, and names them. */
#define FIELDS 8
enum { BUSY_WITH, IDENT, CONFIRMED, FUNCTION };                                   /* TrainingThread */
enum { FRAME, BACKWARDS, NUMBER_OF_UPDATES, INFERRED, HAS_MANUAL_STEPS, SHADOWS }; /* LoopDetector */
enum { BACKWARD_WATCH, UNUSED_GRAPH, UPDATES_AT_KEPT, HAS_GRAD_SCALER };          /* PatchContext */
enum { BACKWARDS_BEFORE };                                                        /* OpenUpdates */
enum { IS_UNRESOLVED, CYCLE };                                                    /* PhaseDetector */
enum { LATEST };                                                                  /* Passes */
enum { OPEN_CODE, IS_IN_CLOSURE, IS_SCALING };                                    /* OptimizerUpdate */
enum { IS_DUE, NEXT_UPDATE };                                                     /* InputSizes */
enum { MADE_NS };                                                                 /* EarlyCalls */
enum { IS_ALONE, PRIMARY };                                                       /* StepDetector */
enum { LATEST_AT_END };                                                           /* StepEnds */
enum { WATERMARK_NS, STEP_COUNT, QUIET_BEFORE, QUIET_UNTIL_NS, QUIET_END_NS };    /* Recorder */
enum { STEPS_ENDED };                                                             /* StepCount */
enum { CALLER, KIND, IS_BARE, IS_PLAIN, BEGIN_NS, CODE };           /* ModuleCall */
enum { ITERATOR, PHASE, FETCHES, MEASURED_AT, LOADER_ID, SAMPLES, PASS_CYCLE, CYCLE_BEGIN_NS }; /* LoaderPass */

/* Others, which are looked up by name. */
#define FOR_EACH_NAME(DO)                                                                                              \
    DO(_call_impl) DO(_compiled_call_impl) DO(_num_yielded) DO(loader_id) DO(shape)   \
    DO(training)
#define AS_NUMBER(name) N_##name,
enum { FOR_EACH_NAME(AS_NUMBER) NAMES };

typedef struct {
    PyObject_HEAD
    PyObject *at[FIELDS];
} Fields;

typedef struct {
    PyObject_HEAD
    int is_on; /* a training is under way; asked again after each call of the program's code, which may end it */
    PyObject *part[PARTS];
    PyObject *code[CODES], *kind[KINDS], *name[NAMES];
    int64_t event[CODES];
    Writer *writer; /* WRITE owns it */
} UsualCalls;

/* Return whether an attribute that is looked up is this object. */
int usual_is(UsualCalls *self, PyObject *object, int name, PyObject *value);

/* Return field `at` of a part, borrowed. */
static inline PyObject *field_of(UsualCalls *self, int part, int at)
{
    return ((Fields *)self->part[part])->at[at];
}

/* Begins return what the end takes, or 1; ends return 1. All return 0 or NULL for another call, and with an exception -1
   or NULL. */
PyObject *usual_call_begins(UsualCalls *self, PyObject *module, PyObject *frame);
int usual_call_ends(UsualCalls *self, PyObject *call, PyObject *module);
PyObject *usual_fetch_begins(UsualCalls *self, PyObject *iterator);
int usual_fetch_ends(UsualCalls *self, PyObject *pass, PyObject *batch);
int usual_backward_begins(UsualCalls *self);
int usual_backward_ends(UsualCalls *self);
int usual_update_begins(UsualCalls *self, PyObject *optimizer, PyObject *frame);
int usual_update_ends(UsualCalls *self, PyObject *optimizer);
int64_t usual_clearing_begins(UsualCalls *self); /* the code for the end */
int usual_clearing_ends(UsualCalls *self, int64_t code);

#endif
