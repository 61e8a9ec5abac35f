/* The calls of a step that come in the same order as in the step before.

A fast path asks whether a call is usual. That takes most of its time, because the step has evicted what the answers are
in. Where Python code has changed nothing of the state since the same call of the step before, they are the same, so only
what the program may have changed is compared: which object is called, by which function, and in which mode. Any call
that was not expected is asked about again, and so is the rest of its step, and the step after that. */

#ifndef TRAINING_PROFILER_STEP_PATTERN_H
#define TRAINING_PROFILER_STEP_PATTERN_H

#include "native.h"

typedef enum { AT_CALL, AT_FETCH, AT_BACKWARD, AT_CLEARING, AT_UPDATE, AT_TRANSFER } Moment;

#define MOST_EXPECTED 24 /* calls of a step; of longer ones no pattern is kept */

typedef struct {
    Moment kind;
    int is_merged;         /* its begin takes the end of the span before away */
    void *object, *type;   /* what is called, and its class: compared, and never used */
    PyObject *code;        /* of the function that calls, or NULL */
    Fields *record;        /* what its begin returns, or NULL */
    PyObject *list, *item; /* a list of what is under way while it is, or NULL: its record, or the update */
    int64_t event;         /* code of its span */
} ExpectedCall;

typedef struct {
    uint64_t changes;   /* of the state, when the step began */
    ExpectedCall *open; /* whose end comes next, or NULL */
    int is_ready;       /* the calls of this step are expected */
    int count, at;      /* calls of the step before, and of this one */
    int is_same;        /* so far, the calls of this step are those of the step before */
    int moments;        /* begins and ends in this step that were asked about */
    int noted;          /* of these, the usual ones */
    PyObject *empty;    /* the list for which that of `open` stands */
    void *step_by;      /* the optimizer whose update ended the step before as in nearly all trainings, or NULL */
    Fields *detector;   /* of the step before, owned, and what writes its events */
    Writer *writer;
    ExpectedCall calls[MOST_EXPECTED];
} StepPattern;

#endif
