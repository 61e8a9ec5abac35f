"""Rules about how a program computes fire on facts, and are silent where the same numbers have another reason."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.registry import section_of
from training_profiler.diagnosis.rules import COMPUTES_SLOWLY, with_uncertainty
from training_profiler.findings.finding import Evidence, Finding
from training_profiler.snapshot.machine import Level, MachineStats
from training_profiler.snapshot.program import (
    CompileFacts,
    CpuSpeed,
    ForwardFacts,
    KeptGraphs,
    LongOperators,
    OptimizerFacts,
    ProgramFacts,
    RepeatFacts,
    SliceFacts,
)
from training_profiler.snapshot.snapshot import LineStats, LoaderStats, Snapshot, Throughput

ADAM = OptimizerFacts("Adam", 20, ("float32",), ("cpu",), has_foreach=True, has_fused=True)
CPU = CpuSpeed("float32", 50.0, 3e-6)
SECTIONS = {"forward_pass": 0.4, "backward_pass": 0.5, "optimizer_step": 0.1}  # of 100 steps of 100 ms


LONG = ForwardFacts(100, 0.004, 0.05)  # operators take 8 of 40 ms, with what is between them


def run_with(facts: ProgramFacts, sections: dict[str, float] | None = None, dtype: str = "float32") -> Snapshot:
    run = snapshot_of(sections or SECTIONS)
    forward = run.sections["forward_pass"]
    run = replace(run, sections={**run.sections, "forward_pass": replace(forward, min_s=forward.avg_s)})
    return replace(run, program=facts, throughput=Throughput(10.0, flops_per_step=1e9, dtype=dtype), wall_s=10.0)


def findings_of(run: Snapshot) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(run)}


def test_many_operators_that_compute_nothing_are_found():
    run = run_with(ProgramFacts(ADAM, cpu=CPU, operators=12_000))  # 7.5 us each
    found = findings_of(run)["small-operators"]
    assert found.potential_saving_s == pytest.approx(9.0 * (1 - 120 / 12_000))
    assert "12000 small operators a step, 7.5 us each" in found.message
    assert "healthy" not in findings_of(run)


def test_operators_shorter_than_the_shortest_that_was_measured_are_not_set_beside_it():
    run = run_with(ProgramFacts(ADAM, cpu=CPU, operators=12_000))
    message = findings_of(run)["small-operators"].message
    assert "7.5 us each (starting one takes 3.0 us here)" in message
    slow = replace(run, program=run.program._replace(cpu=CPU._replace(operator_s=8e-6)))
    assert "7.5 us each: mostly Python" in findings_of(slow)["small-operators"].message


def test_operators_are_small_on_a_busy_machine_too():
    run = run_with(ProgramFacts(ADAM, cpu=CPU, operators=4_000))  # 22.5 us each, half of it without a CPU
    busy = MachineStats(10, cores=2.0, cpu_wait=Level(0.5, 0.5, 0.5))
    assert "small-operators" not in findings_of(run)
    found = findings_of(replace(run, machine=busy))
    assert "11.2 us each" in found["small-operators"].message


def test_a_layer_that_loops_by_itself_is_not_called_a_loop_of_the_program():
    forward = ForwardFacts(12_000, 0.03, 0.2, "model.py:10", "GRU")
    found = findings_of(run_with(ProgramFacts(ADAM, operators=12_000, forward=forward)))["small-operators"]
    assert found.fix.startswith("torch computes this nn.GRU step by step: on the CPU nn.LSTM has one kernel")
    packed = ProgramFacts(ADAM, operators=12_000, forward=forward._replace(layer="LSTM"))
    fix = findings_of(run_with(packed))["small-operators"].fix
    assert fix.startswith("torch computes this nn.LSTM step by step: on the CPU there is one kernel")
    assert "differ" in found.losses


def test_a_run_too_short_to_measure_the_cpu_has_the_finding_too():
    message = findings_of(run_with(ProgramFacts(ADAM, operators=12_000)))["small-operators"].message
    assert message.startswith("The model takes 12000 small operators a step, 7.5 us each: mostly Python")


def test_small_operators_of_a_loop_in_the_loss_have_its_line():
    sections = {"forward_pass": 0.05, "backward_pass": 0.5, "optimizer_step": 0.05}  # 40 ms are in no section
    run = run_with(ProgramFacts(ADAM, cpu=CPU, operators=6_100, forward=LONG), sections)
    loop = LineStats("loss.py", 7, "pairs", 0.39, 100, called={"F.cross_entropy": 0.3})
    found = findings_of(replace(run, lines={"other": (loop,)}))
    assert next(iter(found)) == "small-operators"
    finding = found["small-operators"]
    assert "Backward passes take 6000 small operators a step, 8.3 us each" in finding.message
    assert "above all in loss.py:7 pairs" in finding.message
    assert finding.potential_saving_s == pytest.approx(9.0 * (1 - 120 / 6_000))
    assert "unexplained" not in found


def test_other_time_than_that_of_operators_is_not_saved_with_them():
    sections = {"forward_pass": 0.05, "backward_pass": 0.3, "optimizer_step": 0.05}  # 600 ms in no section: files, too
    run = run_with(ProgramFacts(ADAM, cpu=CPU, operators=6_100, forward=LONG), sections)
    found = findings_of(replace(run, lines={"other": (LineStats("loss.py", 7, "pairs", 0.59, 100),)}))
    assert found["small-operators"].potential_saving_s == pytest.approx((3.0 + 3.0) * (1 - 120 / 6_000))


def with_lines_of(*parts: tuple[str, float, float]) -> str:
    """Return the message where lines have these parts of the forward pass: in all, and in Python."""
    run = run_with(ProgramFacts(ADAM, cpu=CPU, operators=12_090, forward=ForwardFacts(12_000, 0.03, 0.2)))
    share = run.sections["forward_pass"].share
    lines = [
        LineStats("model.py", 9, name, part * share, 50, called={"<python>": loop * share})
        for name, part, loop in parts
    ]
    found = findings_of(replace(run, lines={"forward_pass": tuple(lines)}))
    return found["small-operators"].message


def test_the_loop_in_python_is_named_and_not_the_layer_with_more_time():
    assert with_lines_of(("Block.forward", 0.4, 0.0), ("mask", 0.3, 0.25)).endswith("above all in model.py:9 mask")


def test_the_line_with_most_time_is_named_where_loops_in_python_have_little():
    assert "model.py:9 Block.forward" in with_lines_of(("Block.forward", 0.6, 0.0), ("mask", 0.1, 0.1))


COMPUTING = LongOperators(400, 0.035), LongOperators(400, 0.045)


def test_constants_made_in_a_loop_have_no_backward_pass_to_save():
    """As a mask that is filled in a loop: the backward pass has as many operators as the layers need."""
    loop = ForwardFacts(12_000, 0.03, 0.2)
    found = findings_of(run_with(ProgramFacts(ADAM, cpu=CPU, operators=12_090, forward=loop)))["small-operators"]
    assert found.potential_saving_s == pytest.approx(4.0 * (1 - 30 / 12_000))


def test_time_of_long_operators_is_not_saved_and_the_line_of_the_loop_is_named():
    loop = ForwardFacts(4_000, 0.03, 0.2, "model.py:10")
    # 62 of 90 ms are in operators that compute.
    long_forward, long_backward = LongOperators(30, 0.022), LongOperators(70, 0.04)
    facts = ProgramFacts(ADAM, None, "", 0, CPU, 12_100, forward=loop, long_forward=long_forward)
    run = run_with(facts._replace(long_backward=long_backward))
    lines = LineStats("model.py", 11, "forward", 0.3, 300), LineStats("model.py", 10, "forward", 0.1, 100)
    found = findings_of(replace(run, lines={"forward_pass": lines}))["small-operators"]
    assert "12000 small operators a step, 2.3 us each" in found.message
    assert "above all in model.py:10 forward" in found.message
    assert found.potential_saving_s == pytest.approx(1.8 * (1 - 30 / 3_970) + 1.0 * (1 - 90 / 8_030))


def test_long_operators_of_a_slow_step_count_by_their_part_of_it():
    # All took twice as long in the step in which they were timed: 124 of 180 ms, so 62 of 90.
    long = {"long_forward": LongOperators(40, 0.055, 0.08), "long_backward": LongOperators(60, 0.069, 0.1)}
    found = findings_of(run_with(ProgramFacts(ADAM, cpu=CPU, operators=12_100, **long)))["small-operators"]
    assert found.potential_saving_s == pytest.approx(2.8 * (1 - 120 / 12_000))


@pytest.mark.parametrize(
    "facts",
    [
        ProgramFacts(ADAM, None, "", 0, CPU, 12_000, long_forward=COMPUTING[0], long_backward=COMPUTING[1]),
        ProgramFacts(ADAM, cpu=CPU, operators=12_000, finds_anomalies=True),
        ProgramFacts(ADAM, cpu=CPU, operators=200),  # a few, each of them long
        ProgramFacts(ADAM, cpu=CPU, operators=5_000),  # 18 us each: they compute
        ProgramFacts(ADAM._replace(devices=("cuda",)), cpu=None, operators=12_000),
        ProgramFacts(ADAM, cpu=None, operators=7_000),  # 12.9 us each, and how long starting one takes is unknown
        ProgramFacts(None, cpu=CPU, operators=12_000),  # without an optimizer of torch
        ProgramFacts(ADAM._replace(tensors=1_500), cpu=CPU, operators=12_000),  # as many as its layers need
    ],
)
def test_other_operators_are_not_called_small(facts):
    assert "small-operators" not in findings_of(run_with(facts))


def test_compiled_model_is_not_advised_to_compile():
    facts = ProgramFacts(ADAM, cpu=CPU, operators=12_000)
    assert "torch.compile" in findings_of(run_with(facts))["small-operators"].fix
    compiled = facts._replace(compiled=CompileFacts(1, 2.0))
    assert "torch.compile" not in findings_of(run_with(compiled))["small-operators"].fix


def test_float64_is_found_and_its_fix_says_what_changes():
    found = findings_of(run_with(ProgramFacts(ADAM), dtype="float64"))["double-precision"]
    assert found.potential_saving_s == pytest.approx(5.0)
    assert found.losses == "differ by rounding"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", ""])
def test_other_types_are_not_float64(dtype):
    assert "double-precision" not in findings_of(run_with(ProgramFacts(ADAM), dtype=dtype))


def with_backwards(count: int, kept: int, past_updates: int = 0) -> Snapshot:
    run = run_with(ProgramFacts(ADAM, kept_graphs=kept, kept_past_updates=past_updates))
    sections = dict(run.sections)
    sections["backward_pass"] = replace(sections["backward_pass"], count=count)
    return replace(run, sections=sections)


def test_two_backward_passes_through_one_graph_are_found():
    found = findings_of(with_backwards(count=200, kept=100))["repeated-backward"]
    assert found.potential_saving_s == pytest.approx(2.5)
    assert found.message == (
        "Each step has 2 backward passes, 50.0 ms in all; 1 of them keeps the graph for the next, which repeats what "
        "they have in common"
    )
    assert found.fix.startswith("Add the losses")


def test_losses_with_an_update_each_are_not_to_be_added():
    run = with_backwards(count=200, kept=100)
    optimizer = replace(run.sections["optimizer_step"], count=200)
    found = findings_of(replace(run, sections={**run.sections, "optimizer_step": optimizer}))["repeated-backward"]
    assert found.fix.startswith("Each loss has an update of its own: give it .detach()")


def test_a_graph_that_is_kept_past_an_update_is_not_to_be_added_to_the_next_loss():
    found = findings_of(with_backwards(count=300, kept=100, past_updates=100))["repeated-backward"]
    assert found.message == (
        "Each step has 3 backward passes, 50.0 ms in all; 1 of them keeps the graph, although an update comes before "
        "another backward pass"
    )
    assert found.fix.startswith("Each loss has an update of its own: give it .detach()")


def test_losses_of_one_update_are_added_though_the_last_keeps_the_graph_too():
    found = findings_of(with_backwards(count=200, kept=200, past_updates=100))["repeated-backward"]
    assert found.fix.startswith("Add the losses")


@pytest.mark.parametrize(
    ("count", "kept"),
    [(200, 0), (100, 100), (200, 10)],
    ids=["accumulation over batches", "truncated in time", "now and then"],
)
def test_other_backward_passes_are_not_repeated(count, kept):
    assert "repeated-backward" not in findings_of(with_backwards(count, kept))


def test_recompilation_is_found_with_its_line():
    facts = ProgramFacts(ADAM, compiled=CompileFacts(8, 5.0, 7, 4.0, "train.py:31 main"))
    found = findings_of(run_with(facts))["recompiles"]
    assert found.potential_saving_s == 4.0
    assert "mostly at train.py:31 main" in found.message


@pytest.mark.parametrize("compiled", [CompileFacts(3, 5.0), CompileFacts(8, 5.0, 1, 4.0), CompileFacts(9, 1.0, 8, 0.1)])
def test_compiling_once_is_not_recompilation(compiled):
    assert "recompiles" not in findings_of(run_with(ProgramFacts(ADAM, compiled=compiled)))


def test_model_far_below_its_cpu_is_not_called_healthy():
    slow = findings_of(run_with(ProgramFacts(ADAM, cpu=CPU)))  # 11 of 50 GFLOP/s
    assert "it computes at 22% of the 50.0 GFLOP/s" in slow["healthy"].message
    slower = findings_of(run_with(ProgramFacts(ADAM, cpu=CPU._replace(gflops=500.0))))
    assert "healthy" not in slower
    assert "only 2% of the 500 GFLOP/s" in slower[COMPUTES_SLOWLY].message


def test_how_fast_a_model_computes_is_unknown_on_a_busy_machine():
    slow = run_with(ProgramFacts(ADAM, cpu=CPU._replace(gflops=500.0)))
    quiet, busy = (MachineStats(10, cores=2.0, cpu_wait=Level(wait, wait, wait)) for wait in (0.09, 0.11))
    assert COMPUTES_SLOWLY in findings_of(replace(slow, machine=quiet))
    assert "not checked: how fast the model" in findings_of(replace(slow, machine=busy))["healthy"].message


OWN = ADAM._replace(has_fused=False, has_foreach=False, name="Own")
HEAVY = {"forward_pass": 0.2, "backward_pass": 0.2, "optimizer_step": 0.6}


@pytest.mark.parametrize(
    ("optimizer", "said", "unsaid"),
    [
        (ADAM, "Pass fused=True to Adam", "foreach"),
        (ADAM._replace(fused=True), "is fused already", "fused=True"),
        (ADAM._replace(dtypes=("complex64",)), "Pass foreach=True", "fused=True"),
        (ADAM._replace(has_fused=False), "Pass foreach=True", "fused=True"),
        (ADAM._replace(has_fused=False, numbers=100_000), "Pass foreach=True", "fused=True"),
        (ADAM._replace(has_fused=False, numbers=100_001), "Nothing is left to set", "=True"),  # slower on the CPU
        (ADAM._replace(has_fused=False, foreach=True), "Nothing is left to set", "=True"),
        (OWN, "Own updates 20 tensors one by one", "Pass"),
        (OWN, "use torch._foreach functions in it", "in place"),
        (OWN._replace(numbers=100_001), "compute in place in it", "_foreach"),
        (OWN._replace(numbers=100_001, devices=("cuda",)), "use torch._foreach functions in it", "in place"),
        (OWN._replace(name="SparseAdam"), "Nothing is left to set", "fused"),
        (ADAM._replace(devices=("cpu", "cuda")), "Pass foreach=True", "fused=True"),
        (ADAM._replace(has_fused=False, has_foreach=False, name="LBFGS"), "lower history_size", "batch"),
    ],
)
def test_fix_of_the_optimizer_is_none_that_is_set(optimizer, said, unsaid):
    fix = findings_of(run_with(ProgramFacts(optimizer), HEAVY))["optimizer-heavy"].fix
    assert said in fix
    assert unsaid not in fix.replace(said, "")


@pytest.mark.parametrize(
    ("optimizer", "saved"),
    [
        (ADAM, 0.72),
        (ADAM._replace(tensors=4), 0.72),  # large ones gain as much
        (ADAM._replace(name="SGD"), 0.2),
        (ADAM._replace(name="SGD", has_momentum=True), 0.4),
        (ADAM._replace(name="RMSprop", has_fused=False), 0.25),
        (ADAM._replace(name="RMSprop", has_fused=False, numbers=10_000_000), 0.5),  # accumulated gradients
        (ADAM._replace(fused=True), 0.5),
        (OWN, 0.7),
        (OWN._replace(numbers=10_000_000), 0.7),
        (OWN._replace(tensors=7), 0.5),
        (OWN._replace(name="Muon"), 0.5),
        (OWN._replace(devices=("cuda",)), 0.5),
        (ADAM._replace(devices=("cuda",)), 0.5),
        (ADAM._replace(devices=("cuda",), foreach=False), 0.9),
        (ADAM._replace(devices=("cuda",), foreach=False, has_fused=False), 0.5),
    ],
)
def test_what_is_left_to_set_saves_what_was_measured(optimizer, saved):
    finding = findings_of(run_with(ProgramFacts(optimizer), HEAVY))["optimizer-heavy"]
    assert finding.potential_saving_s == pytest.approx(6.0 * saved)


def test_time_outside_of_updates_is_not_saved_by_a_fused_optimizer():
    """LBFGS after Adam: one update with a closure takes most of the time, but is not a span of its own."""
    run = run_with(ProgramFacts(ADAM), HEAVY)
    section = run.sections["optimizer_step"]
    run = replace(run, sections={**run.sections, "optimizer_step": replace(section, avg_s=section.avg_s / 10)})
    found = findings_of(run)["optimizer-heavy"]
    assert found.fix.startswith("Most of it is not in Adam's updates")
    assert "fused" not in found.fix


@pytest.mark.parametrize(
    ("facts", "said", "unsaid"),
    [
        (ProgramFacts(ADAM), "torch.compile", "mixed precision"),
        (ProgramFacts(ADAM._replace(devices=("cuda",))), "mixed precision", "nothing"),
        (ProgramFacts(ADAM._replace(devices=("cuda",)), autocast="bfloat16"), "torch.compile", "mixed precision"),
        (ProgramFacts(ADAM, compiled=CompileFacts(1, 1.0)), "a smaller model", "torch.compile"),
    ],
)
def test_fix_of_the_forward_pass_is_none_that_is_set(facts, said, unsaid):
    fix = findings_of(run_with(facts, {"forward_pass": 0.8, "backward_pass": 0.2}))["forward-dominates"].fix
    assert said in fix
    assert unsaid not in fix


def test_a_range_of_step_time_ends_at_all_of_it():
    run = run_with(ProgramFacts(ADAM))
    finding = Finding("time-step-loop", "", {}, potential_saving_s=9.5, fix="")
    assert with_uncertainty(finding, replace(run, wall_s=30.0)).saving_range_s[1] == pytest.approx(10.0)


def test_saving_has_a_range():
    found = findings_of(run_with(ProgramFacts(ADAM), HEAVY))["optimizer-heavy"]
    assert found.saving_range_s is not None
    low, high = found.saving_range_s
    assert 0 < low < found.potential_saving_s < high <= 10.0


def test_at_most_all_waiting_is_saved_where_workers_save_a_part():
    """What a faster data set brings is in the range, although the estimate is for workers."""
    run = run_with(ProgramFacts(ADAM), {"data_loading": 0.6, "forward_pass": 0.4})
    evidence: Evidence = {"seconds_per_step": 0.06, "steps": 100, "share_of_step": 0.6}
    for code, most_s in (("data-loading-bound", 6.0), ("data-transfer", 3.0)):
        found = with_uncertainty(Finding(code, "", evidence, potential_saving_s=3.0, fix=""), run)
        assert found.saving_range_s is not None
        assert found.saving_range_s[1] == pytest.approx(most_s, rel=0.01)


TWICE = RepeatFacts(25, 25, 25 * 0.020, 0, 0, 0, "train.py:20", 25)  # 20 of the 40 ms of forward passes in each step


def test_a_forward_pass_that_runs_twice_is_found():
    found = findings_of(run_with(ProgramFacts(ADAM, repeats=TWICE)))
    assert next(iter(found)) == "repeated-forward"
    finding = found["repeated-forward"]
    assert "runs again for the same input at train.py:20 (20.0 ms per step, 20% of step time)" in finding.message
    assert finding.potential_saving_s == pytest.approx(2.0)
    assert "same bit for bit, if the model draws no random numbers" in finding.losses
    assert "healthy" not in found


def test_two_passes_with_dropout_have_no_saving():
    finding = findings_of(run_with(ProgramFacts(ADAM, repeats=TWICE._replace(random=25))))["repeated-forward"]
    assert finding.potential_saving_s == 0
    assert "unless the method needs two different outputs" in finding.fix


def test_a_second_pass_for_metrics_is_not_called_validation():
    sections = {"forward_pass": 0.3, "backward_pass": 0.4, "optimizer_step": 0.1, "validation_epoch": 0.2}
    metric = TWICE._replace(without_grad=25, after_update=25)
    found = findings_of(run_with(ProgramFacts(ADAM, repeats=metric), sections))
    assert "Take metrics from the output" in found["repeated-forward"].fix
    assert found["repeated-forward"].message.endswith("(20.0 ms per step, outside of steps)")
    assert "validation-heavy" not in found


def test_a_second_pass_beside_a_validation_is_not_called_validation():
    sections = {"forward_pass": 0.2, "forward_without_grad": 0.2, "backward_pass": 0.4, "validation_epoch": 0.2}
    metric = TWICE._replace(without_grad=25)
    found = findings_of(run_with(ProgramFacts(ADAM, repeats=metric), sections))
    assert "also without gradients" in found["repeated-forward"].message
    assert section_of(found["repeated-forward"]) == "forward_without_grad"
    assert found["validation-heavy"].potential_saving_s > 0


@pytest.mark.parametrize(
    "repeats",
    [
        TWICE._replace(steps_with=2),  # by chance
        TWICE._replace(steps=9, calls=9, steps_with=9),  # too few to know
        TWICE._replace(seconds=25 * 0.002),  # short
    ],
)
def test_other_repeated_calls_are_not_reported(repeats):
    assert "repeated-forward" not in findings_of(run_with(ProgramFacts(ADAM, repeats=repeats)))


def test_ten_repeated_calls_in_every_tenth_step_are_not_called_one_per_step():
    probe = TWICE._replace(calls=30, seconds=30 * 0.020, steps_with=3)
    finding = findings_of(run_with(ProgramFacts(ADAM, repeats=probe)))["repeated-forward"]
    assert "in 3 of 25 steps that were looked at (24.0 ms per step on average, 24% of step time)" in finding.message


def test_kept_graphs_are_found_with_their_line():
    found = findings_of(run_with(ProgramFacts(ADAM, graphs=KeptGraphs(16, 16, 8, "train.py:9", "train.py:8"))))
    assert "16 of 16 losses or outputs still had theirs 8 steps later: train.py:9" in found["kept-graphs"].message
    assert found["kept-graphs"].losses == "same bit for bit"
    assert "healthy" not in found


@pytest.mark.parametrize("graphs", [KeptGraphs(16, 13, 8), KeptGraphs(9, 9, 8), KeptGraphs(16, 0, 8)])
def test_graphs_that_are_freed_are_not_reported(graphs):
    assert "kept-graphs" not in findings_of(run_with(ProgramFacts(ADAM, graphs=graphs)))


ONE = LoaderStats("0", 100, 100, 0.0, made_at="train.py:8")


def with_batches(loader, operator_s=30e-6, **facts):
    run = run_with(ProgramFacts(ADAM, cpu=CPU._replace(operator_s=operator_s), operators=1000, **facts))
    backward = run.sections["backward_pass"]
    sections = {**run.sections, "backward_pass": replace(backward, min_s=backward.avg_s)}
    return replace(run, sections=sections, loaders=(loader,))


def test_batches_of_one_sample_are_found():
    found = findings_of(with_batches(ONE))  # 90 us an operator
    finding = found["tiny-batches"]
    assert "Batches of 1 sample (train.py:8): an operator takes 90.0 us, and starting one 30.0 us" in finding.message
    assert finding.losses == "differ"
    assert not {"healthy", "forward-dominates", "optimizer-heavy"} & found.keys()


@pytest.mark.parametrize(
    "run",
    [
        with_batches(ONE, operator_s=10e-6),  # each operator computes, as for one long sequence
        with_batches(replace(ONE, samples=1600)),
        with_batches(replace(ONE, samples=None)),
        with_batches(replace(ONE, batches=5, samples=5)),
    ],
)
def test_other_batches_are_not_called_tiny(run):
    assert "tiny-batches" not in findings_of(run)


SLICES = SliceFacts(24, 24 * 32, 1.0, 32, "train.py:25")
WHOLE = replace(ONE, samples=100 * 32)


def test_a_batch_that_goes_through_the_model_one_sample_at_a_time_is_found():
    finding = findings_of(with_batches(WHOLE, slices=SLICES))["tiny-batches"]
    assert "A batch of 32 goes through the model in 32 calls of 1 sample each (train.py:25)" in finding.message
    assert 0 < finding.potential_saving_s < 9.0  # what small operators leave of it
    assert finding.losses == "differ by rounding"


@pytest.mark.parametrize(
    "run",
    [
        with_batches(WHOLE, slices=SLICES._replace(slices=24 * 2)),  # parts that fit in memory
        with_batches(WHOLE, slices=SLICES._replace(steps=3, slices=3 * 32)),
        with_batches(WHOLE, operator_s=10e-6, slices=SLICES),  # each operator computes
    ],
)
def test_other_parts_of_batches_are_not_called_tiny(run):
    assert "tiny-batches" not in findings_of(run)


def test_a_batch_shorter_than_the_others_shows_no_tiny_batches():
    run = with_batches(ONE)
    shortest = {name: replace(section, min_s=(section.min_s or 0.0) / 50) for name, section in run.sections.items()}
    assert "tiny-batches" not in findings_of(replace(run, sections=shortest))
