"""Rules about how a program computes fire on facts, and are silent where the same numbers have another reason."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.rules import COMPUTES_SLOWLY
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.machine import Level, MachineStats
from training_profiler.snapshot.program import CompileFacts, CpuSpeed, ForwardFacts, OptimizerFacts, ProgramFacts
from training_profiler.snapshot.snapshot import Snapshot, Throughput

ADAM = OptimizerFacts("Adam", 20, ("float32",), ("cpu",), has_foreach=True, has_fused=True)
CPU = CpuSpeed("float32", 50.0, 3e-6)
SECTIONS = {"forward_pass": 0.4, "backward_pass": 0.5, "optimizer_step": 0.1}  # of 100 steps of 100 ms


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


@pytest.mark.parametrize(
    "facts",
    [
        ProgramFacts(ADAM, cpu=CPU, operators=200),  # a few, each of them long
        ProgramFacts(ADAM, cpu=CPU, operators=5_000),  # 18 us each: they compute
        ProgramFacts(ADAM, cpu=None, operators=12_000),  # on an accelerator, or a short run
        ProgramFacts(None, cpu=CPU, operators=12_000),  # without an optimizer of torch
        ProgramFacts(ADAM._replace(tensors=1_500), cpu=CPU, operators=12_000),  # as many as its layers need
    ],
)
def test_other_operators_are_not_called_small(facts):
    assert "small-operators" not in findings_of(run_with(facts))


LONG = ForwardFacts(100, 0.004, 0.05)  # operators take 8 of 40 ms, with what is between them


def test_a_forward_pass_outside_of_operators_is_found():
    found = findings_of(run_with(ProgramFacts(ADAM, cpu=CPU, operators=300, forward=LONG)))
    assert next(iter(found)) == "python-in-forward"
    finding = found["python-in-forward"]
    assert "80% of the forward pass is not in torch's operators" in finding.message
    assert finding.potential_saving_s == pytest.approx(3.2)
    assert finding.losses == "same bit for bit, if the data stays the same"


@pytest.mark.parametrize(
    "facts",
    [
        ProgramFacts(ADAM),  # not counted
        ProgramFacts(ADAM, forward=LONG._replace(operators_s=0.03)),
        ProgramFacts(ADAM, forward=LONG._replace(operators=800)),  # many operators, which is another finding
        ProgramFacts(ADAM, forward=LONG._replace(calls_s=0.01)),  # operators between modules take the rest
        ProgramFacts(ADAM, forward=LONG, compiled=CompileFacts(1, 2.0)),
        ProgramFacts(ADAM._replace(devices=("cuda",)), forward=LONG),  # the device may be busy instead
        ProgramFacts(None, forward=LONG),
    ],
)
def test_other_forward_passes_are_not_called_python(facts):
    assert "python-in-forward" not in findings_of(run_with(facts))


def test_a_delay_in_the_counted_step_is_not_python():
    run = run_with(ProgramFacts(ADAM, forward=LONG))
    shortest = replace(run.sections["forward_pass"], min_s=0.012)
    assert "python-in-forward" not in findings_of(replace(run, sections={**run.sections, "forward_pass": shortest}))


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


def with_backwards(count: int, kept: int) -> Snapshot:
    run = run_with(ProgramFacts(ADAM, kept_graphs=kept))
    sections = dict(run.sections)
    sections["backward_pass"] = replace(sections["backward_pass"], count=count)
    return replace(run, sections=sections)


def test_two_backward_passes_through_one_graph_are_found():
    found = findings_of(with_backwards(count=200, kept=100))["repeated-backward"]
    assert found.potential_saving_s == pytest.approx(2.5)


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


HEAVY = {"forward_pass": 0.2, "backward_pass": 0.2, "optimizer_step": 0.6}


@pytest.mark.parametrize(
    ("optimizer", "said", "unsaid"),
    [
        (ADAM, "Pass fused=True to Adam", "foreach"),
        (ADAM._replace(fused=True), "is fused already", "fused=True"),
        (ADAM._replace(dtypes=("complex64",)), "Pass foreach=True", "fused=True"),
        (ADAM._replace(has_fused=False), "Pass foreach=True", "fused=True"),
        (ADAM._replace(has_fused=False, foreach=True), "Nothing is left to set", "=True"),
        (ADAM._replace(has_fused=False, has_foreach=False, name="Own"), "Own updates 20 tensors one by one", "Pass"),
        (ADAM._replace(devices=("cpu", "cuda")), "Pass foreach=True", "fused=True"),
        (ADAM._replace(has_fused=False, has_foreach=False, name="LBFGS"), "lower history_size", "batch"),
    ],
)
def test_fix_of_the_optimizer_is_none_that_is_set(optimizer, said, unsaid):
    fix = findings_of(run_with(ProgramFacts(optimizer), HEAVY))["optimizer-heavy"].fix
    assert said in fix
    assert unsaid not in fix.replace(said, "")


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


def test_saving_has_a_range():
    found = findings_of(run_with(ProgramFacts(ADAM), HEAVY))["optimizer-heavy"]
    assert found.saving_range_s is not None
    low, high = found.saving_range_s
    assert 0 < low < found.potential_saving_s < high <= 10.0
