/* The calls of a step that come in the same order as in the step before.

A fast path asks whether a call is usual. That takes most of its time, because the step has evicted what the answers are
in. Where Python code has changed nothing of the state since the same call of the step before, they are the same, so only
what the program may have changed is compared: which object is called, by which function, and in which mode. Any call
that was not expected is asked about again, and so is the rest of its step, and the step after that.

Of an expected call only its events are recorded. That it is under way is kept here, and put into the fields of Python's
objects once Python code reads them (show_hidden). Most calls end before that. */

#ifndef TRAINING_PROFILER_STEP_PATTERN_H
#define TRAINING_PROFILER_STEP_PATTERN_H

#include "native.h"

typedef enum { AT_CALL, AT_FETCH, AT_BACKWARD, AT_CLEARING, AT_UPDATE, AT_TRANSFER } Moment;

#define MOST_EXPECTED 24 /* calls of a step; of longer ones no pattern is kept */

/* One in each line of the caches. */
typedef struct {
    Moment kind;
    short is_merged;       /* its begin takes the end of the span before away */
    short is_once;         /* an iterator that makes a single pass */
    void *object, *type;   /* what is called, and its class: compared, and never used */
    PyObject *code;        /* of the function that calls, or NULL */
    Fields *record;        /* what its begin returns, or NULL */
    PyObject *list, *item; /* a list of what is under way, once it is shown, or NULL: its record, or the update */
    int64_t event;         /* code of its span */
} ExpectedCall;

/* What calls that are expected need is in the first line of the caches. */
typedef struct {
    uint64_t changes;   /* of the state, when the step began */
    void *thread;       /* the thread of the step before, or NULL where that has to be found out */
    Events *events;     /* of `writer` */
    ExpectedCall *open; /* whose end comes next, or NULL */
    int64_t begin_ns;   /* of `open` */
    int count, at;      /* calls of the step before, and of this one */
    int busy;           /* the kind of call that the thread is in while its field does not say it, or FREE */
    short is_ready;     /* the calls of this step are expected */
    short is_direct;    /* events have the time of the monotonic clock */
    Fields *detector;   /* of the step before, owned, and what writes its events */
    Writer *writer;
    void *step_by;      /* the optimizer whose update ended the step before as in nearly all trainings, or NULL */
    PyObject *empty;    /* the list for which that of `open` stands */
    int is_same;        /* so far, the calls of this step are those of the step before */
    int moments;        /* begins and ends in this step that were asked about */
    int noted;          /* of these, the usual ones */
    void *memory;       /* in which this is */
    char unused[16];    /* up to the end of a line */
    ExpectedCall calls[MOST_EXPECTED];
} StepPattern;

/* Return one that expects nothing; NULL with an exception if there is no memory. */
StepPattern *new_pattern(void);

#endif
