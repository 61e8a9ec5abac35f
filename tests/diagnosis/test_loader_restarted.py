"""The rule about a loader that begins a pass for each batch."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.snapshot.program import ProgramFacts
from training_profiler.snapshot.snapshot import LineStats, LoaderStats


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


def findings_of(run):
    return {finding.code: finding for finding in diagnose(run)}


def test_a_pass_for_each_batch_is_named_instead_of_more_workers():
    found = findings_of(run_with(100))
    assert next(iter(found)) == "loader-restarted"
    assert found["loader-restarted"].message == (
        "100 of 100 batches are the first of a new pass over the data loader, as next(iter(loader)) makes it: 60.0 ms "
        "each, 60% of step time. A pass begins with an order of all samples"
    )
    assert found["loader-restarted"].potential_saving_s == pytest.approx(6.0)
    assert found["loader-restarted"].losses == "differ, because batches come in another order"
    assert "data-loading-bound" not in found


FETCH = LineStats("train.py", 9, "main", 0.6, 600, called={"next": 0.6})


def with_unattributed(*lines, share=0.2):
    """Return a run with a pass for each batch, and 2 s in no section, which these lines have."""
    run = run_with(100, first_share=0.5, lines={"first_fetch": (FETCH,), "other": lines})
    sections = {**run.sections, **snapshot_of({"other": share}, steps=100).sections}
    return replace(run, sections={name: sections[name] for name in (*run.sections, "other")})


def test_dropping_the_iterator_of_each_batch_counts_as_well():
    dropping = replace(FETCH, share=0.18, samples=180, called={"next": 0.18})
    rest = LineStats("train.py", 12, "main", 0.02, 20)
    found = findings_of(with_unattributed(dropping, rest))
    assert next(iter(found)) == "loader-restarted"
    finding = found["loader-restarted"]
    assert "68.0 ms each, 68% of step time" in finding.message
    assert finding.potential_saving_s == pytest.approx(5.0 + 1.8)
    assert "unexplained" not in found


@pytest.mark.parametrize(
    "line",
    [
        LineStats("train.py", 20, "main", 0.18, 180, called={"next": 0.18}),  # of another iterator
        replace(FETCH, share=0.18, called={"augment": 0.18}),
    ],
    ids=["another line", "another call"],
)
def test_other_unattributed_time_is_not_the_loaders(line):
    found = findings_of(with_unattributed(line))
    assert found["loader-restarted"].potential_saving_s == pytest.approx(5.0)
    assert "unexplained" in found


def loader(name, cut_passes, wait_s, batches=100, **others):
    return LoaderStats(name, batches, None, wait_s, data_avg_s=wait_s / batches, cut_passes=cut_passes, **others)


def with_two(cut_passes=99, wait_s=6.0, **others):
    """Return a run with another loader, whose passes have 50 batches."""
    return run_with(102, batches=200, loaders=(loader("0", 0, 1.0), loader("1", cut_passes, wait_s, **others)))


def test_one_restarted_loader_of_two_is_named():
    found = findings_of(with_two())
    assert next(iter(found)) == "loader-restarted"
    assert found["loader-restarted"].message.startswith("99 of 100 batches of loader 1 are the first of a new pass")
    assert found["loader-restarted"].evidence["loader"] == "1"
    assert found["loader-restarted"].potential_saving_s == pytest.approx(6.0)
    lines = (LineStats("data.py", 9, "main", share=0.25, samples=100, phase="sampler"),)
    assert "sampler-slow" not in findings_of(replace(with_two(), lines={"data_loading": lines}))


def test_the_workers_of_the_restarted_loader_count():
    run = with_two(wait_s=3.0, num_workers=2)
    start = section_stats("worker_start", 0.1, count=100, total_s=1.0, parent="data_loading", step_total_s=1.0)
    finding = findings_of(replace(run, sections={**run.sections, "worker_start": start}))["loader-restarted"]
    assert finding.potential_saving_s == pytest.approx(4.0)
    of_validation = replace(start, step_total_s=0.0)
    finding = findings_of(replace(run, sections={**run.sections, "worker_start": of_validation}))["loader-restarted"]
    assert finding.potential_saving_s == pytest.approx(3.0)


@pytest.mark.parametrize("run", [with_two(cut_passes=80), with_two(wait_s=0.4), with_two(cut_passes=9, batches=9)])
def test_two_loaders_whose_passes_are_whole_or_short_are_not_flagged(run):
    assert "loader-restarted" not in findings_of(run)


def test_starting_workers_counts():
    finding = findings_of(run_with(100, first_share=0.3, start_s=3.0))["loader-restarted"]
    assert finding.potential_saving_s == pytest.approx(6.0)
    assert finding.message.endswith("with starting workers")


@pytest.mark.parametrize(
    "run",
    [
        run_with(20),
        run_with(9, batches=9),
        run_with(100, first_share=0.05),
        run_with(100, program=ProgramFacts(epochs=100)),
    ],
    ids=["five batches a pass", "few passes", "fast", "epochs of one batch"],
)
def test_other_passes_are_not_flagged(run):
    assert "loader-restarted" not in findings_of(run)
