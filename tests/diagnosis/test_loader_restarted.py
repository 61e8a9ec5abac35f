"""The rule about a loader that begins a pass for each batch."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.snapshot.program import ProgramFacts


def run_with(passes, batches=100, first_share=0.6, start_s=0.0, **changes):
    """Return a run of 100 steps and 10 s, in which ``passes`` of the batches are the first of theirs."""
    run = snapshot_of({"data_loading": 0.7, "forward_pass": 0.1, "backward_pass": 0.2}, steps=100)
    sections = dict(run.sections)
    sections["data_loading"] = replace(sections["data_loading"], count=batches)
    total_s = 10 * first_share
    sections["first_fetch"] = section_stats(
        "first_fetch", first_share, count=passes, total_s=total_s, parent="data_loading"
    )
    if start_s:
        sections["worker_start"] = section_stats(
            "worker_start", start_s / 10, count=passes, total_s=start_s, parent="data_loading"
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
