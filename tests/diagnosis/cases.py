"""Facts that fire a rule, and facts that look alike and do not: one table of rules.

What the rules say about the facts that fire them is in golden.json. After a change of a text:

    python -m tests.diagnosis.cases     # or: make golden
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.diagnosis.test_machine_rules import machine
from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.registry import RULES, section_of
from training_profiler.reports.verdict import verdict
from training_profiler.snapshot.program import (
    THREADS,
    CallFacts,
    CallSite,
    CompileFacts,
    ConvolutionFacts,
    EmbeddingFacts,
    FrozenFacts,
    LongOperators,
    NanChecks,
    OptimizerFacts,
    OutsideModules,
    ProgramFacts,
    UnusedGradients,
    UnusedGraphs,
)
from training_profiler.snapshot.snapshot import (
    DeviceTimingStats,
    EpochStats,
    GpuStats,
    Level,
    LineStats,
    MachineStats,
    Snapshot,
    Throughput,
)

GOLDEN = Path(__file__).with_name("golden.json")
Given = Mapping[str, Any]  # arguments of a case's facts

ADAM = OptimizerFacts("Adam", 4, ("float32",), ("cpu",), has_foreach=True, has_fused=True)
SGD = OptimizerFacts("SGD", 161, ("float32",), ("cuda",))
TABLE = EmbeddingFacts("EmbeddingBag", 300_000, 0.005, 0.99)
CONVOLUTIONS = ConvolutionFacts(17, 0)
SWITCHED_ON = CallFacts("anomaly", "torch.autograd.set_detect_anomaly", CallSite("train.py", 7))
CHECKS = NanChecks(300, 0.009, 0.012)  # 3/4 of the operators' time in the backward pass of the counted step
SET = (CallFacts(THREADS, "torch.set_num_threads", CallSite("train.py", 4, "<module>"), {"threads": "1"}),)
FROZEN = FrozenFacts(20, 0.5, True, "ResNet", "train.py:20", 0.03)  # 30 ms of a step of 100 ms
BLOCKS = LineStats("model.py", 12, "Model.forward", 0.18, 90, called={"checkpoint": 0.18})
HEAD = LineStats("model.py", 13, "Model.forward", 0.02, 10, called={"self.head": 0.02})
PLAIN = OptimizerFacts("SGD", 12, ("float32",), ("cpu",), has_foreach=True, has_fused=True)
CALL = LineStats("train.py", 9, "main", 0.1, 100, called={"backward": 0.1})
PENALTY = OutsideModules(72, 0.006, 0.01, 24)
TEACHER = UnusedGradients(9_000, 10_000, 0.8, 0.0, True, "Teacher", "train.py:20 main")
ACTING = UnusedGraphs(24, 480, 500, 0.9, "Policy", "train.py:22 act")
MANY_CPUS = machine(wait=0.0, process=1.0, host=0.1, cores=8.0, host_cores=8)


def anomalies(*, part: float = 0.5, is_on: bool = True, checks: Any = None, on_device: bool = False, **run: Any) -> Any:
    training = snapshot_of({"forward_pass": 0.7, "backward_pass": 0.2, "optimizer_step": 0.1}, **run)
    facts = ProgramFacts(ADAM, calls=(SWITCHED_ON,), finds_anomalies=is_on)
    sections = dict(training.sections)
    if on_device:
        sections["backward_pass"] = replace(sections["backward_pass"], device_count=100, device_total_s=2.0)
    phases = {"anomaly detection": part} if part else {}
    program = facts if checks is None else facts._replace(nan_checks=checks)
    return replace(training, program=program, phases=phases, sections=sections)


def convolving(
    *,
    facts: Any = CONVOLUTIONS,
    dtype: str = "tf32",
    mfu: float | None = 0.11,
    busy: float | None = 0.98,
    device: str = "NVIDIA H200",
    optimizer: Any = SGD,
    compiled: Any = None,
    **run: Any,
) -> Any:
    gpu = GpuStats(0, device, loop_utilization=None if busy is None else Level(busy, 1.0, busy))
    return replace(
        snapshot_of({"forward_pass": 0.3, "backward_pass": 0.6}, **run),
        program=ProgramFacts(convolutions=facts, optimizer=optimizer, compiled=compiled),
        throughput=Throughput(10.0, dtype=dtype, device=device, mfu=mfu),
        machine=MachineStats(samples=9, gpus=(gpu,)),
    )


def embedding(*, table: Any = TABLE, optimizer: float = 0.8, **run: Any) -> Any:
    rest = 1 - optimizer
    shares = {"forward_pass": 0.3 * rest, "backward_pass": 0.7 * rest, "optimizer_step": optimizer}
    return replace(snapshot_of(shares, **run), program=ProgramFacts(ADAM, embedding=table))


def threads(
    *,
    calls: Any = SET,
    number: int = 1,
    operators: int = 100,
    counted_s: float = 0.09,
    stats: Any = None,
    loading: float = 0.0,
    device: Any = None,
    **run: Any,
) -> Any:
    """Return a run on two CPUs, of which it uses one; ``counted_s`` is in the counted step's operators."""
    shares = {"data_loading": loading, "forward_pass": 0.1} if loading else {"forward_pass": 0.4, "backward_pass": 0.55}
    forward, backward = (LongOperators(all_s=share * counted_s) for share in (0.4, 0.6))
    facts = {"threads": number, "operators": operators, "calls": calls, "long_forward": forward}
    stats = stats or machine(wait=0.0, process=1.05, host=0.55)
    program = ProgramFacts(**facts, long_backward=backward)
    return replace(snapshot_of(shares, **run), machine=stats, program=program, device=device)


def epochs(*forward_s: float) -> tuple[EpochStats, ...]:
    each = [{"forward_pass": 25 * seconds} for seconds in forward_s]
    return tuple(EpochStats(i, 2.5, 25, 25, None, None, self_s, None, None) for i, self_s in enumerate(each))


FOUR = epochs(0.06, 0.06, 0.06, 0.06)


def frozen(
    *, passed: Any = FOUR, count: int = 0, shares: Any = None, steps: int = 100, step_s: float = 0.1, **facts: Any
) -> Any:
    shares = {"forward_pass": 0.6, "backward_pass": 0.2, **(shares or {})}
    program = ProgramFacts(frozen=FROZEN._replace(**facts), epochs=count)
    return replace(snapshot_of(shares, steps=steps, step_s=step_s), epochs=passed, program=program)


def recorded(*, part: float | None = 1.0, samples: int = 9, **run: Any) -> Any:
    level = None if part is None else Level(part, 1.0, 1.0)
    shares = {"forward_pass": 0.2, "optimizer_step": 0.6}
    return replace(snapshot_of(shares, **run), machine=MachineStats(samples=samples, recorded=level))


def repeating(
    *,
    used: float = 0.3,
    part: float = 0.25,
    samples: int = 10,
    phase: str = "recomputation",
    device: str = "cpu",
    **run: Any,
) -> Any:
    """Return a run whose backward passes take half, and ``part`` is in this phase."""
    training = snapshot_of({"forward_pass": 0.2, "backward_pass": 0.5, "optimizer_step": 0.1}, **run)
    return replace(
        training,
        machine=MachineStats(samples, cores=4.0, ram_share=Level(used, used, used)) if used else None,
        phases={phase: part} if phase else {},
        lines={"forward_pass": (BLOCKS, HEAD)},
        program=ProgramFacts(ADAM._replace(devices=(device,))),
    )


def sampling(
    *,
    shares: Mapping[int, float] | None = None,
    phase: str = "sampler",
    samples: int = 100,
    section: str = "data_loading",
    other: float = 0.0,
    **run: Any,
) -> Any:
    """Return a run whose lines of a data set, by number, take these shares; ``other`` is that of another line."""
    each = {9: 0.3, 10: 0.15} if shares is None else shares
    lines = [LineStats("data.py", i, "Hard.__iter__", share, samples, phase=phase) for i, share in each.items()]
    lines += [LineStats("data.py", 20, "Hard.__iter__", other, samples)] if other else []
    training = snapshot_of({"data_loading": 0.5, "forward_pass": 0.2, "backward_pass": 0.3}, **run)
    sections = {section: section_stats(section, 0.4, count=5, parent="data_loading"), **training.sections}
    return replace(training, lines={section: tuple(lines)}, sections=sections)


def hook(share: float, phase: str, samples: int) -> LineStats:
    return LineStats("train.py", 30, "watch", share, samples, phase=phase, called={".item": share})


def backward(
    *lines: LineStats,
    of: str = "backward_pass",
    without: str = "",
    changes: Any = None,
    steps: int = 100,
    step_s: float = 0.1,
    **facts: Any,
) -> Any:
    """Return a run whose backward passes take half, with these lines of a section; 20 % of it are in no section."""
    shares = {"forward_pass": 0.2, "backward_pass": 0.5, "optimizer_step": 0.1}
    training = snapshot_of(shares, steps=steps, step_s=step_s)
    sections = {name: section for name, section in training.sections.items() if name != without}
    program = ProgramFacts(**{"optimizer": PLAIN, **facts})
    return replace(training, lines={of: lines}, program=program, sections=sections, **(changes or {}))


def hooked(*, share: float = 0.4, phase: str = "backward hook", samples: int = 100, **run: Any) -> Any:
    return backward(hook(share, phase, samples), CALL, **run)


def hooked_forward(*, share: float = 0.15, samples: int = 100, **run: Any) -> Any:
    line = LineStats("train.py", 9, "main", 0.05, 50)
    return backward(hook(share, "forward hook", samples), line, of="forward_pass", **run)


def penalized(*, outside: Any = PENALTY, **run: Any) -> Any:
    line = LineStats("train.py", 4, "penalty", 0.15, 100)
    return backward(line, of="other", operators=200, outside=outside, **run)


def acting(*, on_device: bool = False, **given: Any) -> Any:
    training = backward(**{"unused_graphs": ACTING, **given})
    forward = training.sections["forward_pass"]
    on_it = replace(forward, device_count=100, device_total_s=3.0) if on_device else forward
    return replace(training, sections={**training.sections, "forward_pass": on_it})


class Case(NamedTuple):
    """A row of the table."""

    facts: Callable[..., Any]
    fires: Mapping[str, Given]
    alike: Mapping[str, Given]
    is_share_of_time: bool = True  # with less than 20 ms it is silent


CASES: dict[str, Case] = {
    "anomaly-detection": Case(
        anomalies,
        {"stacks": {}, "stacks and checks": {"checks": CHECKS}, "on a device": {"checks": CHECKS, "on_device": True}},
        {"of a compiler": {"is_on": False}, "on in the first step alone": {"part": 0.0}},
    ),
    "backward-hooks": Case(
        hooked,
        {"reads a number": {}},
        {
            "a custom function": {"phase": "custom backward"},
            "recomputation": {"phase": "recomputation"},
            "at the threshold": {"share": 0.1},
            "few samples": {"samples": 9},
        },
    ),
    "channels-first": Case(
        convolving,
        {"tf32": {}, "autocast already": {"dtype": "bfloat16"}},
        {
            "no convolutions": {"facts": None},
            "one": {"facts": ConvolutionFacts(1, 0)},
            "channels_last": {"facts": ConvolutionFacts(0, 17)},
            "a part in channels_last": {"facts": ConvolutionFacts(3, 14)},
            "inputs in channels_last": {"facts": CONVOLUTIONS._replace(inputs_last=True)},
            "no tensor cores": {"dtype": "float32"},
            "hardly any convolution": {"mfu": 0.01},
            "unknown arithmetic": {"mfu": None},
            "idle device": {"busy": 0.5},
            "unknown utilization": {"busy": None},
            "another library": {"device": "AMD Instinct MI300X"},
            "on the CPU": {"optimizer": SGD._replace(devices=("cpu",))},
            "torch.compile chooses the order itself": {"compiled": CompileFacts(1, 9.0)},
        },
    ),
    "dense-embedding": Case(
        embedding,
        {"few rows": {}},
        {
            "an output layer shares it": {"table": TABLE._replace(used=0.9)},
            "another optimizer has the rest": {"table": TABLE._replace(part=0.1)},
            "a quick optimizer": {"optimizer": 0.1},
        },
    ),
    "few-threads": Case(
        threads,
        {"one of two CPUs": {}, "torch does not choose one of many": {"calls": (), "stats": MANY_CPUS}},
        {
            "torch's choice": {"calls": ()},
            "all CPUs": {"number": 2},
            "short operators": {"operators": 2000},
            "not counted": {"operators": 0},
            "an episode in other steps": {"operators": 10, "counted_s": 0.03},
            "workers": {"stats": machine(wait=0.0, process=1.9, host=0.95)},
            "a busy machine": {"stats": machine(wait=0.0, process=1.0, host=1.0)},
            "two ranks": {"stats": machine(wait=0.0, process=1.0, host=0.5, local_ranks=2)},
            "data": {"loading": 0.9},
            "two CPUs a core": {
                "calls": (),
                "number": 4,
                "stats": machine(wait=0.0, process=4.0, host=0.5, cores=8.0, host_cores=8),
            },
            "an accelerator": {"device": DeviceTimingStats("cuda", "A100", "events", 100)},
        },
    ),
    "forward-hooks": Case(
        hooked_forward, {"in a forward pass": {}}, {"short": {"share": 0.09}, "few samples": {"samples": 9}}
    ),
    "frozen-forward": Case(
        frozen,
        {
            "four epochs": {},
            "slow data": {"shares": {"backward_pass": 0.1, "data_loading": 0.2}},
            "without gradients": {"has_grad": False, "shares": {"forward_pass": 0.2, "forward_without_grad": 0.4}},
            "several layers": {"module": "layer3 of ResNet", "modules": 4},
            "epochs that are not all there": {"count": 10},
        },
        {
            "one epoch": {"passed": epochs(0.06)},
            "no epochs": {"passed": ()},
            "kept already": {"passed": epochs(0.06, 0.014, 0.014)},
            "at the threshold": {"part": 0.25},
            "few batches": {"batches": 7},
        },
    ),
    "needless-create-graph": Case(
        backward,
        {"in nearly all steps": {"created_graphs": 95}},
        {"none": {}, "in fewer steps": {"created_graphs": 89}},
    ),
    "parameter-loop": Case(
        penalized,
        {"a penalty of all": {}, "a shorter one": {"outside": PENALTY._replace(seconds=0.003)}},
        {
            "a layer that the program computes itself": {"outside": PENALTY._replace(of_parameters=5)},
            "of a few tensors": {"optimizer": PLAIN._replace(tensors=49)},
            "at the threshold": {"outside": PENALTY._replace(seconds=0.001)},
            "not counted": {"outside": OutsideModules(0, 0.0, 0.0, 24)},
            "no optimizer": {"optimizer": None},
            "a model of functions": {"without": "forward_pass"},
        },
    ),
    "profiler-records": Case(
        recorded,
        {"all steps": {}},
        {"half": {"part": 0.5}, "a window": {"part": 0.03}, "unknown": {"part": None}, "few samples": {"samples": 4}},
        is_share_of_time=False,
    ),
    "recomputation": Case(
        repeating,
        {"blocks": {}, "hooks in them": {"phase": "recomputation > forward hook"}},
        {
            "memory is short": {"used": 0.6},
            "few samples": {"samples": 4},
            "no memory known": {"used": 0.0},
            "at the threshold": {"part": 0.1},
            "a reversible layer": {"phase": "custom backward"},
            "a GPU": {"device": "cuda"},
            "no phases": {"phase": ""},
        },
    ),
    "unused-gradients": Case(
        backward,
        {
            "of a teacher": {"unused_gradients": TEACHER},
            "passed on": {"unused_gradients": TEACHER._replace(passed_on=0.8, is_whole=False)},
        },
        {"at the threshold": {"unused_gradients": TEACHER._replace(part=0.1)}, "none": {}},
    ),
    "unused-graphs": Case(
        acting,
        {"of acting": {}},
        {
            "a small part": {"unused_graphs": ACTING._replace(part=0.3)},
            "few steps": {"unused_graphs": ACTING._replace(steps=5)},
            "now and then": {"unused_graphs": ACTING._replace(calls=5)},
            "of validation, which has a rule": {"changes": {"with_grad_count": 100, "with_grad_s": 1.0}},
            "on a device": {"on_device": True},
        },
    ),
    "sampler-slow": Case(
        sampling,
        {
            "two lines": {},
            "first batches": {"section": "first_fetch"},
            "beside data": {"shares": {9: 0.2}, "other": 0.3},
        },
        {
            "data set": {"phase": ""},
            "at the threshold": {"shares": {9: 0.05}},
            "few samples": {"samples": 4, "shares": {9: 0.45}},
            "validation": {"section": "validation_epoch/data_loading"},
        },
    ),
}


def finding_of(rule: str, run: Snapshot) -> Finding | None:
    """Return the finding of a rule in a run, beside all others; None without one."""
    return next((finding for finding in diagnose(run) if finding.code == rule), None)


def said(rule: str, run: Snapshot) -> dict[str, Any]:
    """Return what the rules say of a run, as golden.json has it: above all this one, whatever is left of it there."""
    findings = diagnose(run)
    finding = next((each for each in findings if each.code == rule), None) or RULES[rule](run, run.thresholds)
    assert finding is not None, f"{rule} finds nothing"
    return {
        "verdict": verdict(run, findings).headline,
        "findings": [[each.code, round(each.potential_saving_s, 6)] for each in findings],
        "message": finding.message,
        "evidence": {name: round(v, 6) if isinstance(v, float) else v for name, v in finding.evidence.items()},
        "range_s": [round(seconds, 6) for seconds in finding.saving_range_s or ()],
        "section": section_of(finding),
        "fix": finding.fix,
        "losses": finding.losses,
    }


if __name__ == "__main__":
    from tests.diagnosis.test_cases import golden

    GOLDEN.write_text(json.dumps(golden(), indent=1) + "\n", encoding="utf-8")
