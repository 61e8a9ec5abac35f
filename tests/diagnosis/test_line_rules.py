"""The rule about lines that wait for the device."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.program import OptimizerFacts, ProgramFacts
from training_profiler.snapshot.snapshot import LineStats, Snapshot


def line(number: int, share: float, waiting: float, call: str = "item") -> LineStats:
    return LineStats(
        "train.py", number, "main", share=share, samples=round(share * 1000), waiting_share=waiting, waits_in=call
    )


def found(run: Snapshot) -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == "waits-for-device"), None)


def run_with(*lines: LineStats, section: str = "other", steps: int = 64) -> Snapshot:
    run = snapshot_of({"forward_pass": 0.25, "backward_pass": 0.25}, steps=steps, step_s=0.125)
    return replace(run, lines={section: lines})


def test_wait_for_the_device_names_its_lines():
    finding = found(run_with(line(42, 0.25, 0.1875), line(50, 0.0625, 0.0625, "cpu")))
    assert finding.message == (
        "Python waits for the device for 25.0% of step time (31.2 ms per step): "
        "train.py:42 main (.item(), 75% of it), train.py:50 main (.cpu(), 25% of it)"
    )
    assert finding.potential_saving_s == 2.0
    assert (finding.step_s, finding.step_if_gone_s) == (0.125, 0.09375)


@pytest.mark.parametrize(
    ("inside", "place", "fix"),
    [
        (
            "transformers/trainer.py:1914 Trainer._training_step",
            "transformers/trainer.py:1914 Trainer._training_step",
            "A library reads numbers there: let it log every n-th step, and pass logging_nan_inf_filter=False to",
        ),
        ("lightning/loop.py:9 fit > lightning/bar.py:3 show", "lightning/loop.py:9 fit > lightning/bar.py:3 show", "A"),
    ],
)
def test_a_library_that_reads_numbers_has_another_fix(inside, place, fix):
    finding = found(run_with(replace(line(42, 0.25, 0.25, "bool"), inside=inside)))
    assert finding.message.endswith(f": {place} (bool(), 100% of it)")
    assert finding.fix.startswith(fix)
    assert ".detach()" not in finding.fix
    assert finding.losses == "same bit for bit"


def test_on_the_cpu_nothing_waits_for_a_device():
    facts = ProgramFacts(OptimizerFacts("SGD", 12, ("float32",), ("cpu",)))
    finding = found(replace(run_with(line(42, 0.25, 0.25)), program=facts))
    assert finding.message.startswith("Reading numbers out of tensors takes 25.0% of step time (31.2 ms per step): ")
    assert finding.fix.endswith(".tolist() all of them at once")


def test_waits_within_a_section_of_the_step_count():
    assert found(run_with(line(42, 0.25, 0.25), section="forward_pass")) is not None


@pytest.mark.parametrize("section", ["data_loading", "first_fetch"])
def test_numbers_that_are_read_to_make_a_batch_are_no_wait_for_the_device(section):
    """They come from arrays and samples in memory, and each batch needs its own."""
    run = run_with(line(27, 0.25, 0.25, "tolist"))
    loading = {**run.sections, section: run.sections["forward_pass"]}
    assert found(replace(run, sections=loading, lines={section: run.lines["other"]})) is None


@pytest.mark.parametrize(
    "run",
    [
        run_with(),
        run_with(line(42, 0.5, 0.0, "")),
        run_with(line(42, 0.5, 0.05)),  # a twentieth is not over a twentieth
        run_with(line(42, 0.25, 0.25), steps=9),
        run_with(replace(line(42, 0.25, 0.25), samples=9)),
    ],
)
def test_short_wait_has_no_finding(run):
    assert found(run) is None


def test_waits_outside_steps_do_not_count():
    run = run_with(line(42, 0.25, 0.25), section="validation_epoch")
    validation = replace(run.sections["other"], name="validation_epoch", step_total_s=0.0)
    assert found(replace(run, sections={**run.sections, "validation_epoch": validation})) is None


def finding_of(run: Snapshot, code: str) -> Finding:
    return next(finding for finding in diagnose(run) if finding.code == code)


def test_a_finding_about_a_section_names_its_line():
    run = snapshot_of({"data_generation": 0.5, "backward_pass": 0.25}, steps=64, step_s=0.125)
    share = run.sections["data_generation"].share
    hot = LineStats("train.py", 9, "make", share=0.75 * share, samples=75)
    cold = LineStats("train.py", 10, "make", share=0.125 * share, samples=12)
    finding = finding_of(replace(run, lines={"data_generation": (hot, cold)}), "data-generation-bound")
    assert finding.message.endswith("; above all in train.py:9 make (75% of it)")
    assert finding.evidence["lines"] == "train.py:9 make (75% of it)"


def test_a_finding_about_a_section_whose_time_is_scattered_names_no_line():
    run = snapshot_of({"data_generation": 0.5, "backward_pass": 0.25}, steps=64, step_s=0.125)
    scattered = tuple(LineStats("a.py", i, f"f{i}", share=0.02, samples=20) for i in range(20))
    finding = finding_of(replace(run, lines={"data_generation": scattered}), "data-generation-bound")
    assert "lines" not in finding.evidence
    assert "above all in" not in finding.message


def test_time_of_no_section_spread_over_a_module_names_its_lines():
    run = snapshot_of({"forward_pass": 0.25, "backward_pass": 0.25}, steps=64, step_s=0.125)
    share = run.sections["other"].share
    spread = tuple(LineStats("train.py", i, "<module>", share=share / 39, samples=20) for i in range(1, 40))
    finding = finding_of(replace(run, lines={"other": spread}), "unexplained")
    assert "train.py:1 <module> (39 lines) (100% of it: line 1 3%, line 2 3%, line 3 3%)" in finding.message


def test_time_in_a_trainer_names_its_frames_and_who_called_it():
    run = snapshot_of({"forward_pass": 0.25, "backward_pass": 0.25}, steps=64, step_s=0.125)
    inside = "transformers/trainer.py:2310 Trainer._inner_training_loop > callback on_step_end"
    place = LineStats("train.py", 30, "main", share=run.sections["other"].share, samples=90, inside=inside)
    finding = finding_of(replace(run, lines={"other": (place,)}), "unexplained")
    assert finding.message.endswith(f": {inside} (100% of it); called at train.py:30 main")


def calling(number: int, share: float, function: str) -> LineStats:
    return LineStats("train.py", number, "main", share=share, samples=round(share * 1000), called={function: share})


@pytest.mark.parametrize("function", ["F.cross_entropy", "nn.functional.smooth_l1_loss", "mse_loss"])
def test_the_loss_is_not_time_that_could_be_saved(function):
    run = run_with(calling(42, 0.375, function), calling(50, 0.125, "write"))
    finding = finding_of(run, "unexplained")
    assert finding.message == (
        "12.5% of step time is unattributed (15.6 ms per step), beside 37.5% in which the loss is computed, most of it "
        "spent printing and writing (write(), 100%): train.py:50 main (100% of it, in write())"
    )
    assert finding.potential_saving_s == 1.0
    run = run_with(calling(42, 0.4375, function), calling(50, 0.0625, "write"))
    assert not [finding for finding in diagnose(run) if finding.code == "unexplained"]


def test_a_line_that_does_more_than_the_loss_counts_with_the_rest():
    both = replace(calling(42, 0.5, "F.cross_entropy"), called={"F.cross_entropy": 0.25, "print": 0.25})
    finding = finding_of(run_with(both), "unexplained")
    assert finding.potential_saving_s == 2.0
    assert finding.message.endswith(": train.py:42 main (100% of it, in print())")


def test_functions_that_only_sound_like_a_loss_count():
    finding = finding_of(run_with(calling(42, 0.5, "log_losses")), "unexplained")
    assert finding.potential_saving_s == 4.0
