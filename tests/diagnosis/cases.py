"""Runs in which the first steps, samples of lines or the model show a cause, and runs that only look like them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.diagnosis.test_machine_rules import machine
from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.program import (
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
from training_profiler.model.snapshot import (
    DeviceTimingStats,
    EpochStats,
    GpuStats,
    Level,
    LineStats,
    MachineStats,
    Throughput,
)

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


def anomalies(*, part: float = 0.5, is_on: bool = True, checks: Any = None, on_device: bool = False) -> Any:
    training = snapshot_of({"forward_pass": 0.7, "backward_pass": 0.2, "optimizer_step": 0.1})
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
) -> Any:
    gpu = GpuStats(0, device, loop_utilization=None if busy is None else Level(busy, 1.0, busy))
    return replace(
        snapshot_of({"forward_pass": 0.3, "backward_pass": 0.6}),
        program=ProgramFacts(convolutions=facts, optimizer=optimizer, compiled=compiled),
        throughput=Throughput(10.0, dtype=dtype, device=device, mfu=mfu),
        machine=MachineStats(samples=9, gpus=(gpu,)),
    )


def embedding(*, table: Any = TABLE, optimizer: float = 0.8) -> Any:
    rest = 1 - optimizer
    shares = {"forward_pass": 0.3 * rest, "backward_pass": 0.7 * rest, "optimizer_step": optimizer}
    return replace(snapshot_of(shares), program=ProgramFacts(ADAM, embedding=table))


def threads(
    *,
    calls: Any = SET,
    number: int = 1,
    operators: int = 100,
    counted_s: float = 0.09,
    stats: Any = None,
    loading: float = 0.0,
    device: Any = None,
    has_omp_threads: bool = False,
) -> Any:
    """Return a run on two CPUs, of which it uses one; ``counted_s`` is in the counted step's operators."""
    shares = {"data_loading": loading, "forward_pass": 0.1} if loading else {"forward_pass": 0.4, "backward_pass": 0.55}
    forward, backward = (LongOperators(all_s=share * counted_s) for share in (0.4, 0.6))
    facts = {"threads": number, "operators": operators, "calls": calls, "long_forward": forward}
    stats = stats or machine(wait=0.0, process=1.05, host=0.55)
    program = ProgramFacts(**facts, long_backward=backward, has_omp_threads=has_omp_threads)
    return replace(snapshot_of(shares), machine=stats, program=program, device=device)


def epochs(*forward_s: float) -> tuple[EpochStats, ...]:
    each = [{"forward_pass": 25 * seconds} for seconds in forward_s]
    return tuple(EpochStats(i, 2.5, 25, 25, None, None, self_s, None, None) for i, self_s in enumerate(each))


FOUR = epochs(0.06, 0.06, 0.06, 0.06)


def frozen(*, passed: Any = FOUR, count: int = 0, shares: Any = None, **facts: Any) -> Any:
    shares = {"forward_pass": 0.6, "backward_pass": 0.2, **(shares or {})}
    program = ProgramFacts(frozen=FROZEN._replace(**facts), epochs=count)
    return replace(snapshot_of(shares), epochs=passed, program=program)


def recorded(*, part: float | None = 1.0, samples: int = 9) -> Any:
    level = None if part is None else Level(part, 1.0, 1.0)
    shares = {"forward_pass": 0.2, "optimizer_step": 0.6}
    return replace(snapshot_of(shares), machine=MachineStats(samples=samples, recorded=level))


def repeating(
    *, used: float = 0.3, part: float = 0.25, samples: int = 10, phase: str = "recomputation", device: str = "cpu"
) -> Any:
    """Return a run whose backward passes take half, and ``part`` is in this phase."""
    training = snapshot_of({"forward_pass": 0.2, "backward_pass": 0.5, "optimizer_step": 0.1})
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
) -> Any:
    """Return a run whose lines of a data set, by number, take these shares; ``other`` is that of another line."""
    each = {9: 0.3, 10: 0.15} if shares is None else shares
    lines = [LineStats("data.py", i, "Hard.__iter__", share, samples, phase=phase) for i, share in each.items()]
    lines += [LineStats("data.py", 20, "Hard.__iter__", other, samples)] if other else []
    training = snapshot_of({"data_loading": 0.5, "forward_pass": 0.2, "backward_pass": 0.3})
    sections = {section: section_stats(section, 0.4, count=5, parent="data_loading"), **training.sections}
    return replace(training, lines={section: tuple(lines)}, sections=sections)


def hook(share: float, phase: str, samples: int) -> LineStats:
    return LineStats("train.py", 30, "watch", share, samples, phase=phase, called={".item": share})


def backward(*lines: LineStats, of: str = "backward_pass", without: str = "", changes: Any = None, **facts: Any) -> Any:
    """Return a run whose backward passes take half, with these lines of a section; 20 % of it are in no section."""
    shares = {"forward_pass": 0.2, "backward_pass": 0.5, "optimizer_step": 0.1}
    training = snapshot_of(shares)
    sections = {name: section for name, section in training.sections.items() if name != without}
    program = ProgramFacts(**{"optimizer": PLAIN, **facts})
    return replace(training, lines={of: lines}, program=program, sections=sections, **(changes or {}))


def hooked(*, share: float = 0.4, phase: str = "backward hook", samples: int = 100) -> Any:
    return backward(hook(share, phase, samples), CALL)


def hooked_forward(*, share: float = 0.15, samples: int = 100) -> Any:
    line = LineStats("train.py", 9, "main", 0.05, 50)
    return backward(hook(share, "forward hook", samples), line, of="forward_pass")


def penalized(*, outside: Any = PENALTY, **given: Any) -> Any:
    line = LineStats("train.py", 4, "penalty", 0.15, 100)
    return backward(line, of="other", operators=200, outside=outside, **given)


def acting(*, on_device: bool = False, **given: Any) -> Any:
    training = backward(**{"unused_graphs": ACTING, **given})
    forward = training.sections["forward_pass"]
    on_it = replace(forward, device_count=100, device_total_s=3.0) if on_device else forward
    return replace(training, sections={**training.sections, "forward_pass": on_it})


SAYS = {
    "anomaly-detection": {
        "stacks": anomalies(),
        "stacks and checks": anomalies(checks=CHECKS),
        "on a device": anomalies(checks=CHECKS, on_device=True),
    },
    "backward-hooks": {
        "reads a number": hooked(),
    },
    "channels-first": {
        "tf32": convolving(),
        "autocast already": convolving(dtype="bfloat16"),
    },
    "dense-embedding": {
        "few rows": embedding(),
        "its gradients take time as well": embedding(table=TABLE._replace(gradient_s=0.005), optimizer=0.5),
        "gradients take no longer than passes": embedding(table=TABLE._replace(gradient_s=9.0), optimizer=0.5),
    },
    "few-threads": {
        "one of two CPUs": threads(),
        "torch does not choose one of many": threads(calls=(), stats=MANY_CPUS),
        "a launcher set one": threads(calls=(), has_omp_threads=True),
    },
    "forward-hooks": {
        "in a forward pass": hooked_forward(),
    },
    "frozen-forward": {
        "four epochs": frozen(),
        "slow data": frozen(shares={"backward_pass": 0.1, "data_loading": 0.2}),
        "without gradients": frozen(has_grad=False, shares={"forward_pass": 0.2, "forward_without_grad": 0.4}),
        "several layers": frozen(module="layer3 of ResNet", modules=4),
        "epochs that are not all there": frozen(count=10),
    },
    "needless-create-graph": {
        "in nearly all steps": backward(created_graphs=95),
    },
    "parameter-loop": {
        "a penalty of all": penalized(),
        "a shorter one": penalized(outside=PENALTY._replace(seconds=0.003)),
    },
    "profiler-records": {
        "all steps": recorded(),
    },
    "recomputation": {
        "blocks": repeating(),
        "hooks in them": repeating(phase="recomputation > forward hook"),
    },
    "unused-gradients": {
        "of a teacher": backward(unused_gradients=TEACHER),
        "passed on": backward(unused_gradients=TEACHER._replace(passed_on=0.8, is_whole=False)),
        "after all that are used": backward(unused_gradients=TEACHER._replace(part=0.4, after_trained=0.9)),
        "between those that are used": backward(unused_gradients=TEACHER._replace(is_whole=False, after_trained=0.2)),
    },
    "unused-graphs": {
        "of acting": acting(),
    },
    "sampler-slow": {
        "two lines": sampling(),
        "first batches": sampling(section="first_fetch"),
        "beside data": sampling(shares={9: 0.2}, other=0.3),
    },
}
SILENT = {
    "anomaly-detection": {
        "of a compiler": anomalies(is_on=False),
        "on in the first step alone": anomalies(part=0.0),
    },
    "backward-hooks": {
        "a custom function": hooked(phase="custom backward"),
        "recomputation": hooked(phase="recomputation"),
        "at the threshold": hooked(share=0.1),
        "few samples": hooked(samples=9),
    },
    "channels-first": {
        "no convolutions": convolving(facts=None),
        "one": convolving(facts=ConvolutionFacts(1, 0)),
        "channels_last": convolving(facts=ConvolutionFacts(0, 17)),
        "a part in channels_last": convolving(facts=ConvolutionFacts(3, 14)),
        "inputs in channels_last": convolving(facts=CONVOLUTIONS._replace(inputs_last=True)),
        "no tensor cores": convolving(dtype="float32"),
        "hardly any convolution": convolving(mfu=0.01),
        "unknown arithmetic": convolving(mfu=None),
        "idle device": convolving(busy=0.5),
        "unknown utilization": convolving(busy=None),
        "another library": convolving(device="AMD Instinct MI300X"),
        "on the CPU": convolving(optimizer=SGD._replace(devices=("cpu",))),
        "torch.compile chooses the order itself": convolving(compiled=CompileFacts(1, 9.0)),
    },
    "dense-embedding": {
        "an output layer shares it": embedding(table=TABLE._replace(used=0.9)),
        "another optimizer has the rest": embedding(table=TABLE._replace(part=0.1)),
        "a quick optimizer": embedding(optimizer=0.1),
    },
    "few-threads": {
        "torch's choice": threads(calls=()),
        "several are set by a variable": threads(
            calls=(), number=4, has_omp_threads=True, stats=machine(wait=0.0, process=4.0, host=0.5, cores=8.0)
        ),
        "all CPUs": threads(number=2),
        "short operators": threads(operators=2000),
        "not counted": threads(operators=0),
        "an episode in other steps": threads(operators=10, counted_s=0.03),
        "workers": threads(stats=machine(wait=0.0, process=1.9, host=0.95)),
        "a busy machine": threads(stats=machine(wait=0.0, process=1.0, host=1.0)),
        "two ranks": threads(stats=machine(wait=0.0, process=1.0, host=0.5, local_ranks=2)),
        "data": threads(loading=0.9),
        "two CPUs a core": threads(
            calls=(), number=4, stats=machine(wait=0.0, process=4.0, host=0.5, cores=8.0, host_cores=8)
        ),
        "an accelerator": threads(device=DeviceTimingStats("cuda", "A100", "events", 100)),
    },
    "forward-hooks": {
        "short": hooked_forward(share=0.09),
        "few samples": hooked_forward(samples=9),
    },
    "frozen-forward": {
        "one epoch": frozen(passed=epochs(0.06)),
        "no epochs": frozen(passed=()),
        "kept already": frozen(passed=epochs(0.06, 0.014, 0.014)),
        "at the threshold": frozen(part=0.25),
        "few batches": frozen(batches=7),
    },
    "needless-create-graph": {
        "none": backward(),
        "in fewer steps": backward(created_graphs=89),
    },
    "parameter-loop": {
        "a layer that the program computes itself": penalized(outside=PENALTY._replace(of_parameters=5)),
        "of a few tensors": penalized(optimizer=PLAIN._replace(tensors=49)),
        "at the threshold": penalized(outside=PENALTY._replace(seconds=0.001)),
        "not counted": penalized(outside=OutsideModules(0, 0.0, 0.0, 24)),
        "no optimizer": penalized(optimizer=None),
        "a model of functions": penalized(without="forward_pass"),
    },
    "profiler-records": {
        "half": recorded(part=0.5),
        "a window": recorded(part=0.03),
        "unknown": recorded(part=None),
        "few samples": recorded(samples=4),
    },
    "recomputation": {
        "memory is short": repeating(used=0.6),
        "few samples": repeating(samples=4),
        "no memory known": repeating(used=0.0),
        "at the threshold": repeating(part=0.1),
        "a reversible layer": repeating(phase="custom backward"),
        "a GPU": repeating(device="cuda"),
        "no phases": repeating(phase=""),
    },
    "unused-gradients": {
        "hardly any": backward(unused_gradients=TEACHER._replace(part=0.09)),
        "none": backward(),
    },
    "unused-graphs": {
        "a small part": acting(unused_graphs=ACTING._replace(part=0.3)),
        "looked at in few steps": acting(unused_graphs=ACTING._replace(steps=5)),
        "now and then": acting(unused_graphs=ACTING._replace(calls=5)),
        "of validation, which has a rule": acting(changes={"with_grad_count": 100, "with_grad_s": 1.0}),
        "on a device": acting(on_device=True),
    },
    "sampler-slow": {
        "data set": sampling(phase=""),
        "at the threshold": sampling(shares={9: 0.05}),
        "few samples": sampling(samples=4, shares={9: 0.45}),
        "validation": sampling(section="validation_epoch/data_loading"),
    },
}
