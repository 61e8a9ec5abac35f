"""Unattributed time says what it is spent on where the called functions show it."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.reports.findings import important
from training_profiler.reports.verdict import verdict
from training_profiler.snapshot.snapshot import Health, LineStats, Snapshot


def run_with(*lines: tuple[dict[str, float], float], forward: float = 0.25, inside: str = "") -> Snapshot:
    """Return a run whose unattributed half has these lines: parts of the half by the called function, and in all."""
    run = snapshot_of({"forward_pass": forward, "backward_pass": 0.25}, steps=64, step_s=0.125)
    half = run.sections["other"].share
    stats = [
        LineStats("train.py", number, "main", whole * half, 100, inside=inside, called=_scaled(called, half))
        for number, (called, whole) in enumerate(lines, 10)
    ]
    return replace(run, lines={"other": tuple(stats)})


def _scaled(called: dict[str, float], by: float) -> dict[str, float]:
    return {name: part * by for name, part in called.items()}


def unexplained(run: Snapshot) -> Finding:
    return next(finding for finding in diagnose(run) if finding.code == "unexplained")


def test_a_copy_is_named_with_its_line() -> None:
    finding = unexplained(run_with(({"copy.deepcopy": 0.6}, 0.7), ({"zip": 0.3}, 0.3)))
    assert finding.message == (
        "50.0% of step time is unattributed (62.5 ms per step), most of it spent copying objects (copy.deepcopy(), "
        "60%): train.py:10 main (70% of it, mostly in copy.deepcopy()), train.py:11 main (30% of it, in zip())"
    )
    assert finding.fix.startswith("Copy only what is kept")
    # All of its line, which is for the copy; the rest has no remedy that is known.
    assert finding.potential_saving_s == pytest.approx(0.7 * 4.0)
    assert finding.saving_range_s == pytest.approx((0.5 * 0.7 * 4.0, 4.0))


def test_what_recording_may_take_saves_nothing() -> None:
    """At 6.25 ms a span, the two spans of a step of 125 ms could take 12.5 of the 62.5 ms."""
    run = run_with(({"copy.deepcopy": 1.0}, 1.0))
    finding = unexplained(replace(run, health=Health(span_s=0.00625)))
    assert finding.message.startswith(
        "50.0% of step time is unattributed (62.5 ms per step, up to 12.5 ms of it the profiler's own), most of it"
    )
    assert finding.potential_saving_s == pytest.approx(4.0 * 50 / 62.5)
    assert finding.evidence["recording_s"] == pytest.approx(64 * 0.0125)


def test_a_part_that_is_known_is_one_of_all_the_time() -> None:
    run = run_with(({"copy.deepcopy": 0.6}, 0.7))
    assert unexplained(replace(run, health=Health(span_s=0.00625))).potential_saving_s == pytest.approx(0.7 * 4.0)


def test_the_rest_of_a_line_that_mostly_does_something_else_is_not_saved() -> None:
    finding = unexplained(run_with(({"copy.deepcopy": 0.4, "zip": 0.5}, 0.9), ({"copy.deepcopy": 0.1}, 0.1)))
    assert finding.potential_saving_s == pytest.approx(0.5 * 4.0)


def test_time_that_recording_alone_may_take_is_not_reported() -> None:
    run = run_with(({"copy.deepcopy": 1.0}, 1.0))
    busy = replace(run, health=Health(span_s=0.028))
    assert [finding.code for finding in diagnose(busy) if finding.code == "unexplained"] == []


def test_checks_of_distributions_are_what_leaving_them_out_saves() -> None:
    run = run_with(({"<checks>": 0.5, "Categorical": 0.125}, 0.65), ({"<checks>": 0.1, ".log_prob": 0.125}, 0.35))
    finding = unexplained(run)
    assert (
        "most of it spent checking the arguments of probability distributions (60%) and making and asking probability "
        "distributions (Categorical(), .log_prob(), 25%): train.py:10 main (65% of it), train.py:11 main (35% of it)"
    ) in finding.message
    assert finding.fix.startswith("torch.distributions.Distribution.set_default_validate_args(False)")


def test_checks_that_do_not_run_are_not_advised_against() -> None:
    finding = unexplained(run_with(({"Categorical": 0.5, ".log_prob": 0.3}, 0.9)))
    assert "making and asking probability distributions (Categorical(), .log_prob(), 80%)" in finding.message
    assert finding.fix == "Where a step makes several, make one distribution for a whole batch"


def test_opening_a_file_is_not_called_reading() -> None:
    """It may be opened to write: which is not known."""
    finding = unexplained(run_with(({"open": 0.6}, 0.7)))
    assert "most of it spent opening and reading files (open(), 60%)" in finding.message
    assert finding.fix.startswith("Open and read files once, before the loop")


def test_an_activity_on_many_lines_is_one() -> None:
    finding = unexplained(run_with(*(({"loss.item": 0.04, ".tolist": 0.03}, 0.1) for _ in range(10))))
    spent = "most of it spent reading numbers out of tensors (loss.item(), .tolist(), 70%): "
    assert spent in finding.message
    assert finding.losses == (
        "less frequent work: same bit for bit, if the training does not use its result; "
        "no kept graphs: same bit for bit"
    )


def test_standard_deviations_of_weights_are_statistics() -> None:
    finding = unexplained(run_with(({".norm": 0.25, "p.std": 0.2}, 0.8)))
    assert "much of it spent computing norms and statistics of tensors (.norm(), p.std(), 45%)" in finding.message
    assert "compute them every n-th step" in finding.fix


def test_two_activities_are_named_with_both_fixes() -> None:
    finding = unexplained(run_with(({"print": 0.25}, 0.3), ({".norm": 0.2}, 0.3)))
    spent = "printing and writing (print(), 25%) and computing norms and statistics of tensors (.norm(), 20%)"
    assert f"much of it spent {spent}" in finding.message
    assert finding.evidence["spent_on"] == "printing and writing, computing norms and statistics of tensors"
    assert finding.fix.startswith("Write every n-th step")
    assert "; where they are only logged or checked" in finding.fix
    assert "clip_grad_norm_" in finding.fix


@pytest.mark.parametrize(
    ("name", "spent"),
    [
        ("urlopen", "waiting for the network"),
        ("requests.post", "waiting for the network"),
        ("roc_auc_score", "computing metrics"),
        ("torch.tensor", "making tensors of lists and arrays"),
        ("torch.optim.AdamW", "making optimizers and schedulers"),
        ("Categorical", "making and asking probability distributions"),
        (".log_prob", "making and asking probability distributions"),
        ("torch.zeros_like", "filling tensors with zeros"),
        ("tensor.clone", "copying objects"),
        ("p.mul_", "changing tensors in place"),
        (".lerp_", "changing tensors in place"),
        ("torch.cuda.empty_cache", "emptying the cache of torch's allocator"),
        ("plt.pause", "drawing figures"),
        ("fig.canvas.draw", "drawing figures"),
        ("plt.savefig", "drawing figures"),
    ],
)
def test_what_no_step_needs_is_named(name: str, spent: str) -> None:
    finding = unexplained(run_with(({name: 0.8}, 0.9)))
    assert f"most of it spent {spent} ({name}(), 80%)" in finding.message
    assert finding.losses


@pytest.mark.parametrize("name", ["torch.log", "torch.stack", "f", ".backward", "env.step"])
def test_what_may_be_work_of_the_training_has_no_activity(name: str) -> None:
    finding = unexplained(run_with(({name: 0.9}, 0.9)))
    assert "spent" not in finding.message
    assert finding.fix.startswith("Make these lines cheaper")


@pytest.mark.parametrize(
    "run", [run_with(({"print": 0.2}, 0.2)), run_with(({"print": 0.9}, 0.9), inside="lib/a.py:3 f")]
)
def test_a_small_part_or_a_library_s_loop_says_nothing(run: Snapshot) -> None:
    assert "spent" not in unexplained(run).message


def test_functional_code_may_save_what_its_forward_pass_cannot_be() -> None:
    run = run_with(({"sort": 0.6}, 0.6), forward=0.0)
    without_forward = replace(run, sections={k: v for k, v in run.sections.items() if k != "forward_pass"})
    finding = unexplained(without_forward)
    assert finding.message.endswith("; it includes the forward pass, because no call of a module was seen")
    assert finding.potential_saving_s == pytest.approx(64 * 0.125 * (0.75 - 0.25))


def test_functional_code_that_only_computes_saves_nothing() -> None:
    run = snapshot_of({"backward_pass": 0.5}, steps=64, step_s=0.125)
    assert unexplained(run).potential_saving_s == 0.0


def test_a_loop_in_python_is_named() -> None:
    finding = unexplained(run_with(({"<python>": 0.6, "zip": 0.1}, 0.8)))
    assert ", most of it spent in loops and functions of Python (60%): train.py:10 main (80% of it)" in finding.message


def test_a_loop_of_functional_code_may_be_its_forward_pass() -> None:
    run = snapshot_of({"backward_pass": 0.25}, steps=64, step_s=0.125)
    line = LineStats("train.py", 10, "main", 0.7, 100, called={"<python>": 0.7})
    assert "spent" not in unexplained(replace(run, lines={"other": (line,)})).message


def test_time_without_a_line_is_shown_and_no_saving_is_claimed() -> None:
    run = run_with()
    finding = unexplained(run)
    assert finding.message == "50.0% of step time is unattributed (62.5 ms per step)"
    assert (finding.potential_saving_s, finding.saving_range_s, finding.evidence["unknown_s"]) == (0.0, None, 4.0)
    assert important(run, [finding]) == [finding]
    assert verdict(run, [finding])[:3] == ("UNATTRIBUTED: 50.0% of step time is unattributed", "", "")


def test_a_line_of_which_nothing_is_known_may_save_nothing() -> None:
    finding = unexplained(run_with(({"f": 0.9}, 0.9)))
    assert finding.potential_saving_s == 4.0
    assert finding.saving_range_s == (0.0, 4.0 * 1.1)


def test_functional_code_without_a_line_that_only_computes_is_not_shown() -> None:
    run = snapshot_of({"backward_pass": 0.5}, steps=64, step_s=0.125)
    assert important(run, [unexplained(run)]) == []
    longer = snapshot_of({"backward_pass": 0.46}, steps=64, step_s=0.125)
    assert important(longer, [unexplained(longer)]) == []
    other = snapshot_of({"backward_pass": 0.3}, steps=64, step_s=0.125)
    assert important(other, [unexplained(other)]) != []


def test_a_library_s_own_loop_cannot_be_wrapped_in_sections() -> None:
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.3}, steps=64, step_s=0.125)
    assert unexplained(run).fix.startswith("Wrap the parts of the loop")
    in_library = unexplained(replace(run, phases={"evaluation": 0.1}))
    assert in_library.fix.startswith("It lies in a library's own loop")
    assert in_library.losses == "same bit for bit, if they change nothing"
