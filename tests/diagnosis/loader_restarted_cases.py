"""The rule about a loader that begins a pass for each batch."""

from dataclasses import replace

from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.program import ProgramFacts
from training_profiler.model.snapshot import LineStats, LoaderStats


def run_with(passes, batches=100, first_share=0.6, start_s=0.0, **changes):
    """Return a run of 100 steps and 10 s, in which ``passes`` of the batches are the first of theirs."""
    run = snapshot_of({"data_loading": 0.7, "forward_pass": 0.1, "backward_pass": 0.2}, steps=100)
    sections = dict(run.sections)
    sections["data_loading"] = replace(sections["data_loading"], count=batches)
    total_s = 10 * first_share
    sections["first_fetch"] = section_stats(
        "first_fetch", first_share, count=passes, total_s=total_s, parent="data_loading", step_total_s=total_s
    )
    if start_s:
        sections["worker_start"] = section_stats(
            "worker_start", start_s / 10, count=passes, total_s=start_s, parent="data_loading", step_total_s=start_s
        )
    return replace(run, sections=sections, **changes)


FETCH = LineStats("train.py", 9, "main", 0.6, 600, called={"next": 0.6})


def with_unattributed(*lines, share=0.2):
    """Return a run with a pass for each batch, and 2 s in no section, which these lines have."""
    run = run_with(100, first_share=0.5, lines={"first_fetch": (FETCH,), "other": lines})
    sections = {**run.sections, **snapshot_of({"other": share}, steps=100).sections}
    return replace(run, sections={name: sections[name] for name in (*run.sections, "other")})


def loader(name, cut_passes, wait_s, batches=100, **others):
    return LoaderStats(name, batches, None, wait_s, data_avg_s=wait_s / batches, cut_passes=cut_passes, **others)


def with_two(cut_passes=99, wait_s=6.0, **others):
    """Return a run with another loader, whose passes have 50 batches."""
    return run_with(102, batches=200, loaders=(loader("0", 0, 1.0), loader("1", cut_passes, wait_s, **others)))


def with_start(run, **figures):
    """Return a run whose loaders start workers for 1 s."""
    figures = {"count": 100, "total_s": 1.0, "parent": "data_loading", "step_total_s": 1.0, **figures}
    return replace(run, sections={**run.sections, "worker_start": section_stats("worker_start", 0.1, **figures)})


REST = LineStats("train.py", 12, "main", 0.02, 20)
IN_SAMPLER = (LineStats("data.py", 9, "main", share=0.25, samples=100, phase="sampler"),)
WORKERS = with_two(wait_s=3.0, num_workers=2)
SAYS = {
    "loader-restarted": {
        "for each batch": run_with(100),
        "dropping iterators": with_unattributed(replace(FETCH, share=0.18, samples=180, called={"next": 0.18}), REST),
        "another iterator is dropped": with_unattributed(
            LineStats("train.py", 20, "main", 0.18, 180, called={"next": 0.18})
        ),
        "another call": with_unattributed(replace(FETCH, share=0.18, called={"augment": 0.18})),
        "one of two": with_two(),
        "one of two starts workers": with_start(WORKERS),
        "a validation starts workers": with_start(WORKERS, step_total_s=0.0),
        "starting workers": run_with(100, first_share=0.3, start_s=3.0),
    }
}
SILENT = {
    "loader-restarted": {
        "five batches a pass": run_with(20),
        "few passes": run_with(9, batches=9),
        "fast": run_with(100, first_share=0.05),
        "epochs of one batch": run_with(100, program=ProgramFacts(epochs=100)),
        "one of two is mostly whole": with_two(cut_passes=80),
        "one of two is fast": with_two(wait_s=0.4),
        "one of two has few passes": with_two(cut_passes=9, batches=9),
    },
    "sampler-slow": {"it is the cause": replace(with_two(), lines={"data_loading": IN_SAMPLER})},
}
