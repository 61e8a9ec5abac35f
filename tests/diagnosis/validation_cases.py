"""The rule about gradients that nothing uses."""

from dataclasses import replace

from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.program import PassesBefore
from training_profiler.model.snapshot import LineStats


def run_with(count, spent_s):
    return replace(snapshot_of({"backward_pass": 1.0}), with_grad_count=count, with_grad_s=spent_s)


def validating(share, spent_s, others):
    """Return a run of 10 s in steps, whose validation takes ``share`` of that, ``spent_s`` of it with gradients."""
    run = run_with(100, spent_s)
    section = section_stats("validation_epoch", share, count=10, total_s=share * 10, step_total_s=0.0)
    return replace(run, sections={**snapshot_of(others).sections, "validation_epoch": section})


def prepared(count, spent_s, of=10, share=0.5):
    run = validating(share, 0.0, {"optimizer_step": 0.2, "backward_pass": 0.8})
    section = replace(run.sections["validation_epoch"], count=of)
    run = replace(run, sections={**run.sections, "validation_epoch": section}, with_grad_count=0)
    return replace(run, program=run.program._replace(passes_before=PassesBefore(count, spent_s)))


def with_lines(**lines):
    """Return a run with a line in sections outside of steps, by their names with ``__`` for a slash."""
    run, by_section = run_with(12, 1.5), {name.replace("__", "/"): (line,) for name, line in lines.items()}
    sections = {name: section_stats(name, 0.1, total_s=1.0, step_total_s=0.0) for name in by_section}
    return replace(run, lines=by_section, sections={**run.sections, **sections})


LOOP, MODEL = (LineStats("train.py", line, name, 0.1, 40) for line, name in ((42, "evaluate"), (7, "Net.forward")))
SAYS = {
    "validation-with-gradients": {
        "a part of its forward passes": run_with(12, 1.5),
        "one pass": run_with(1, 1.5),
        "its line": with_lines(validation_epoch__forward_pass=LOOP),
        "the line of the loop comes before the model's": with_lines(
            validation_epoch__forward_pass=MODEL, validation_epoch=LOOP
        ),
        "before the validation": validating(0.5, 4.0, {"optimizer_step": 0.2, "backward_pass": 0.8}),
        "after a costlier cause": validating(0.2, 1.0, {"data_loading": 0.8, "backward_pass": 0.2}),
    },
    "passes-before-training": {"one pass": prepared(1, 5.0, of=1), "beside validations": prepared(2, 3.0)},
    "validation-heavy": {"without these passes": prepared(2, 3.0)},
}
SILENT = {
    "validation-with-gradients": {
        "none": run_with(0, 0.0),
    },
    "passes-before-training": {"short": prepared(1, 0.5)},
    "validation-heavy": {"all of it is before the training": prepared(1, 5.0, of=1)},
}
