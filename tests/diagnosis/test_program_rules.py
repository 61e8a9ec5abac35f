"""Rules about how a program computes fire on facts, and are silent where the same numbers have another reason."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis.finding import Evidence, Finding
from training_profiler.diagnosis.program import saved_by_whole_sequences
from training_profiler.diagnosis.rules import COMPUTES_SLOWLY, with_uncertainty
from training_profiler.model.machine import Level, MachineStats
from training_profiler.model.program import (
    IMAGE_ENDS,
    LOADER,
    CallFacts,
    CallSite,
    CompileFacts,
    ComputedWeights,
    ConstantLine,
    CpuSpeed,
    ForwardFacts,
    KeptGraphs,
    LongOperators,
    OptimizerFacts,
    PaddingFacts,
    ProgramFacts,
    RecurrentFacts,
    RepeatFacts,
    SliceFacts,
)
from training_profiler.model.snapshot import OTHER, LineStats, LoaderStats, Snapshot, Throughput

ADAM = OptimizerFacts("Adam", 20, ("float32",), ("cpu",), has_foreach=True, has_fused=True)
CPU = CpuSpeed("float32", 50.0, 3e-6)
SECTIONS = {"forward_pass": 0.4, "backward_pass": 0.5, "optimizer_step": 0.1}  # of 100 steps of 100 ms


LONG = ForwardFacts(100, 0.004, 0.05)  # operators take 8 of 40 ms, with what is between them


def run_with(facts: ProgramFacts, sections: dict[str, float] | None = None, dtype: str = "float32") -> Snapshot:
    run = snapshot_of(sections or SECTIONS)
    forward = run.sections["forward_pass"]
    run = replace(run, sections={**run.sections, "forward_pass": replace(forward, min_s=forward.avg_s)})
    return replace(run, program=facts, throughput=Throughput(10.0, flops_per_step=1e9, dtype=dtype), wall_s=10.0)


def with_lines_of(*parts: tuple[str, float, float]) -> Snapshot:
    """Return a run where lines have these parts of the forward pass: in all, and in Python."""
    run = run_with(ProgramFacts(ADAM, cpu=CPU, operators=12_090, forward=ForwardFacts(12_000, 0.03, 0.2)))
    share = run.sections["forward_pass"].share
    lines = [
        LineStats("model.py", 9, name, part * share, 50, called={"<python>": loop * share})
        for name, part, loop in parts
    ]
    return replace(run, lines={"forward_pass": tuple(lines)})


def with_backwards(count: int, kept: int, past_updates: int = 0) -> Snapshot:
    run = run_with(ProgramFacts(ADAM, kept_graphs=kept, kept_past_updates=past_updates))
    sections = dict(run.sections)
    sections["backward_pass"] = replace(sections["backward_pass"], count=count)
    return replace(run, sections=sections)


OWN = ADAM._replace(has_fused=False, has_foreach=False, name="Own")
HEAVY = {"forward_pass": 0.2, "backward_pass": 0.2, "optimizer_step": 0.6}


@pytest.mark.parametrize(
    ("kind", "work", "takes"),  # CPU time of one thread
    [
        *(("LSTMCell", 32_768, 0.13), ("LSTMCell", 147_456, 0.23), ("LSTMCell", 2_097_152, 0.41)),
        *(("LSTM", 32_768, 0.07), ("LSTM", 262_144, 0.20), ("LSTM", 8_388_608, 0.42)),
        *(("GRU", 2_048, 0.55), ("GRU", 147_456, 0.76), ("GRU", 8_388_608, 0.92)),
        *(("RNN", 32_768, 0.39), ("RNN", 147_456, 0.50), ("RNN", 2_097_152, 0.84), ("GRUCell", 147_456, 1.05)),
    ],
)
def test_whole_sequences_save_what_was_measured_and_no_more(kind, work, takes):
    saved = saved_by_whole_sequences(RecurrentFacts(kind, 40.0, 1.0, 1.0, True, work))
    assert takes - 0.1 <= 1 - saved <= takes + 0.1


def test_a_range_of_step_time_ends_at_all_of_it():
    run = run_with(ProgramFacts(ADAM))
    finding = Finding("time-step-loop", "", {}, potential_saving_s=9.5, fix="")
    assert with_uncertainty(finding, replace(run, wall_s=30.0)).saving_range_s[1] == pytest.approx(10.0)


def test_at_most_all_waiting_is_saved_where_workers_save_a_part():
    """What a faster data set brings is in the range, although the estimate is for workers."""
    run = run_with(ProgramFacts(ADAM), {"data_loading": 0.6, "forward_pass": 0.4})
    evidence: Evidence = {"seconds_per_step": 0.06, "steps": 100, "share_of_step": 0.6}
    for code, most_s in (("data-loading-bound", 6.0), ("data-transfer", 3.0)):
        found = with_uncertainty(Finding(code, "", evidence, potential_saving_s=3.0, fix=""), run)
        assert found.saving_range_s is not None
        assert found.saving_range_s[1] == pytest.approx(most_s, rel=0.01)


TWICE = RepeatFacts(25, 25, 25 * 0.020, 0, 0, 0, "train.py:20", 25)  # 20 of the 40 ms of forward passes in each step


ONE = LoaderStats("0", 100, 100, 0.0, made_at="train.py:8")


def with_batches(loader, operator_s=30e-6, **facts):
    run = run_with(ProgramFacts(ADAM, cpu=CPU._replace(operator_s=operator_s), operators=1000, **facts))
    backward = run.sections["backward_pass"]
    sections = {**run.sections, "backward_pass": replace(backward, min_s=backward.avg_s)}
    return replace(run, sections=sections, loaders=(loader,))


SLICES = SliceFacts(24, 24 * 32, 1.0, 32, "train.py:25")
WHOLE = replace(ONE, samples=100 * 32)


def changed(run: Snapshot, section: str, **figures: float) -> Snapshot:
    return replace(run, sections={**run.sections, section: replace(run.sections[section], **figures)})


def of_loss(backward: float, share: float, *, called: dict[str, float] | None = None) -> Snapshot:
    """Return a run with a loop in the loss, whose line takes this share, and small forward passes."""
    sections = {"forward_pass": 0.05, "backward_pass": backward, "optimizer_step": 0.05}
    run = run_with(ProgramFacts(ADAM, cpu=CPU, operators=6_100, forward=LONG), sections)
    return replace(run, lines={"other": (LineStats("loss.py", 7, "pairs", share, 100, called=called or {}),)})


def of_own_function(share: float) -> Snapshot:
    """Return a run whose backward passes, half of it, have a line with this share in an own ``backward`` method."""
    line = LineStats("norm.py", 18, "Norm.backward", share, 100, phase="custom backward")
    return replace(of_loss(0.5, 0.1), lines={"backward_pass": (line,)})


def with_long(facts: ProgramFacts, *lines: LineStats, forward: LongOperators, backward: LongOperators) -> Snapshot:
    run = run_with(facts._replace(long_forward=forward, long_backward=backward))
    return replace(run, lines={"forward_pass": lines} if lines else {})


def optimizing(facts: OptimizerFacts) -> Snapshot:
    return run_with(ProgramFacts(facts), HEAVY)


def computing(facts: ProgramFacts) -> Snapshot:
    return run_with(facts, {"forward_pass": 0.8, "backward_pass": 0.2})


def repeating(sections: dict[str, float] | None = None, **facts: float) -> Snapshot:
    return run_with(ProgramFacts(ADAM, repeats=TWICE._replace(**facts)), sections)


def keeping(*facts: object) -> Snapshot:
    return run_with(ProgramFacts(ADAM, graphs=KeptGraphs(*facts)))


def beside_others(wait: float) -> Snapshot:
    machine = MachineStats(10, cores=2.0, cpu_wait=Level(wait, wait, wait))
    return replace(run_with(ProgramFacts(ADAM, cpu=CPU._replace(gflops=500.0))), machine=machine)


MANY = run_with(ProgramFacts(ADAM, cpu=CPU, operators=12_000))  # 7.5 us each
FEWER = run_with(ProgramFacts(ADAM, cpu=CPU, operators=4_000))  # 22.5 us each
HALF_BUSY = MachineStats(10, cores=2.0, cpu_wait=Level(0.5, 0.5, 0.5))
IN_LAYER = ForwardFacts(12_000, 0.03, 0.2, "model.py:10", "GRU")
IN_LOOP = ForwardFacts(4_000, 0.03, 0.2, "model.py:10")
MASK = ForwardFacts(12_000, 0.03, 0.2)
ON_CUDA = ADAM._replace(devices=("cuda",))
TWO_OF_ONE = with_backwards(count=200, kept=100)
OPTIMIZERS = {
    "plain": ADAM,
    "large tensors gain as much": ADAM._replace(tensors=4),
    "fused already": ADAM._replace(fused=True),
    "of complex numbers": ADAM._replace(dtypes=("complex64",)),
    "without a fused form": ADAM._replace(has_fused=False),
    "of 100,000 numbers": ADAM._replace(has_fused=False, numbers=100_000),
    "of 100,001 numbers, which foreach makes slower": ADAM._replace(has_fused=False, numbers=100_001),
    "foreach already": ADAM._replace(has_fused=False, foreach=True),
    "own": OWN,
    "own, of 100,001 numbers": OWN._replace(numbers=100_001),
    "own, of ten million numbers": OWN._replace(numbers=10_000_000),
    "own, of 7 tensors": OWN._replace(tensors=7),
    "own, on CUDA": OWN._replace(devices=("cuda",)),
    "own, of 100,001 numbers on CUDA": OWN._replace(numbers=100_001, devices=("cuda",)),
    "SparseAdam": OWN._replace(name="SparseAdam"),
    "Muon": OWN._replace(name="Muon"),
    "on two devices": ADAM._replace(devices=("cpu", "cuda")),
    "LBFGS": ADAM._replace(has_fused=False, has_foreach=False, name="LBFGS"),
    "SGD": ADAM._replace(name="SGD"),
    "SGD with momentum": ADAM._replace(name="SGD", has_momentum=True),
    "RMSprop": ADAM._replace(name="RMSprop", has_fused=False),
    "RMSprop of ten million numbers": ADAM._replace(name="RMSprop", has_fused=False, numbers=10_000_000),
    "on CUDA": ON_CUDA,
    "on CUDA without foreach": ON_CUDA._replace(foreach=False),
    "on CUDA without foreach, and without a fused form": ON_CUDA._replace(foreach=False, has_fused=False),
}


LITTLE, MUCH = 50_000, 500_000
GRU = RecurrentFacts("GRU", 24.0, 0.6, 0.9, True, MUCH, "model.py:10")
OPERATORS = ProgramFacts(ADAM, cpu=CPU, operators=12_000, forward=ForwardFacts(12_000, 0.03, 0.2, "model.py:10", "GRU"))


def with_facts(**facts):
    return run_with(OPERATORS._replace(**facts))


CELL = GRU._replace(kind="GRUCell", part=0.9, loop=0.95, work=LITTLE)
WEIGHTS = ComputedWeights("turn.weight", 1, 8.0, 0.6, 0.7, "model.py:10")


CONSTANTS = (ConstantLine("model.py", 10, "mask", 4, True), ConstantLine("model.py", 12, "mask", 12, True))
TABLE = ConstantLine("train.py", 31, "main", 1)


def with_constants(*constants, samples=100, section="forward_pass", **line):
    """Return a run in which a loop that fills a mask has 40% of a section."""
    run = run_with(OPERATORS._replace(constants=constants), {"forward_pass": 0.4, "backward_pass": 0.2})
    share = run.sections[section].share
    made = LineStats(**{"file": "model.py", "line": 11, "function": "mask", **line}, share=0.4 * share, samples=samples)
    other = LineStats("model.py", 38, "Net.forward", 0.6 * share, 100)
    return replace(run, lines={section: (other, made)})


PADDED = PaddingFacts(24, 0.86, 0.91, 0.67, 0.84, 0.98, "padding_idx=0", "train.py:28 collate")
GROUPED = PADDED._replace(padding=0.45, worst=0.6, to_longest=0.0, grouped=0.4, what="the mask")
OF_IMAGES = PADDED._replace(padding=0.8, worst=0.84, to_longest=0.69, grouped=0.79, what=IMAGE_ENDS)
FACTS = ProgramFacts(ADAM, cpu=CPU, operators=200, padding=PADDED)
LOADERS = {
    name: CallFacts(LOADER, "DataLoader", CallSite("train.py", 51, inside=inside))
    for name, inside in (("own", ""), ("trainer", "transformers/trainer.py:812 get_train_dataloader"))
}


def padded(loader="own", facts=PADDED, **others):
    return run_with(FACTS._replace(padding=facts, calls=(LOADERS[loader],), **others))


OF_800 = LONG._replace(operators=800)  # what is between them may take all of the rest


def with_loop(part: float, facts: ForwardFacts, samples: int = 100, called: str = "<python>") -> Snapshot:
    """Return a run in whose forward pass a line runs a loop in Python for this part of the time."""
    run = run_with(ProgramFacts(ADAM, forward=facts))
    share = run.sections["forward_pass"].share
    line = LineStats("model.py", 9, "Net.forward", share, samples, called={called: part * share})
    return replace(run, lines={"forward_pass": (line,)})


def with_too_many(uncounted: int, called: str = "<python>") -> Snapshot:
    """Return a run in whose forward pass a layer takes half of the time, and a loop that fills a mask 40%."""
    run = run_with(ProgramFacts(ADAM, uncounted=uncounted))
    share = run.sections["forward_pass"].share
    layer = LineStats("model.py", 38, "Block.forward", 0.5 * share, 100, called={"self.attn": 0.5 * share})
    # What the loop stores has no call: mask[i, j] = 0.
    loop = LineStats("model.py", 9, "mask", 0.4 * share, 90, called={called: 0.1 * share})
    return replace(run, lines={"forward_pass": (layer, loop)})


def with_calls(part: float, called: str = "F.one_hot", samples: int = 100) -> Snapshot:
    """Return a run in whose forward pass a line calls this function for this part of the time."""
    return replace(with_loop(part, LONG, samples, called), program=ProgramFacts(ADAM))


def with_vectors(function: str) -> Snapshot:
    """Return a run in whose forward pass this function makes one-hot vectors, before a layer and another module."""
    run = with_calls(0.4)
    (line,) = run.lines["forward_pass"]
    made = replace(line, function=function, share=0.4 * line.share)
    layer = replace(line, line=10, share=0.35 * line.share, called={"self.rows": 0.35 * line.share})
    other = replace(line, line=38, function="Block.forward", share=0.25 * line.share, called={})
    return replace(run, lines={"forward_pass": (layer, other, made)})


def with_a_small_batch(median_s: float, **counted: float) -> Snapshot:
    """Return a run with a loop in its forward passes, of which the last is a tenth of the others."""
    run = with_loop(0.5, LONG._replace(**{"operators": 80, "operators_s": 0.0035} | counted))
    forward = replace(run.sections["forward_pass"], min_s=0.004, p50_s=median_s)
    return replace(run, sections={**run.sections, "forward_pass": forward})


def varied(run: Snapshot, **figures: float) -> Snapshot:
    return replace(run, sections={**run.sections, "forward_pass": replace(run.sections["forward_pass"], **figures)})


def forward_of(optimizer: OptimizerFacts | None = ADAM, **figures: float) -> ProgramFacts:
    return ProgramFacts(optimizer, forward=LONG._replace(**figures))


COUNTED = run_with(forward_of())


def with_ranks(parent: str) -> Snapshot:
    """Return a run that waits for other ranks for as long as nine tenths of its forward passes."""
    forward = COUNTED.sections["forward_pass"]
    forward = replace(forward, step_self_s=0.1 * forward.step_total_s)
    waits = replace(forward, name="synchronization", parent=parent, step_total_s=0.9 * forward.step_total_s)
    return replace(COUNTED, sections={**COUNTED.sections, "forward_pass": forward, "synchronization": waits})


SAYS = {
    "small-operators": {
        "computing nothing": MANY,
        "shorter than the shortest that was measured": replace(
            MANY, program=MANY.program._replace(cpu=CPU._replace(operator_s=8e-6))
        ),
        "half of them wait for a CPU": replace(FEWER, machine=HALF_BUSY),
        "of a layer of torch": run_with(ProgramFacts(ADAM, operators=12_000, forward=IN_LAYER)),
        "of an LSTM": run_with(ProgramFacts(ADAM, operators=12_000, forward=IN_LAYER._replace(layer="LSTM"))),
        "the CPU was not measured": run_with(ProgramFacts(ADAM, operators=12_000)),
        "of a loop in the loss": of_loss(0.5, 0.39, called={"F.cross_entropy": 0.3}),
        "other time of a loop in the loss is not saved": of_loss(0.3, 0.59),
        "of an autograd function of the program": of_own_function(0.4),
        "of an autograd function of the program, below half": of_own_function(0.2),
        "the loop in Python is named": with_lines_of(("Block.forward", 0.4, 0.0), ("mask", 0.3, 0.25)),
        "the loop in Python takes little": with_lines_of(("Block.forward", 0.6, 0.0), ("mask", 0.1, 0.1)),
        "constants have no backward pass": run_with(ProgramFacts(ADAM, cpu=CPU, operators=12_090, forward=MASK)),
        "62 of 90 ms are in operators that compute": with_long(
            ProgramFacts(ADAM, None, "", 0, CPU, 12_100, forward=IN_LOOP),
            LineStats("model.py", 11, "forward", 0.3, 300),
            LineStats("model.py", 10, "forward", 0.1, 100),
            forward=LongOperators(30, 0.022),
            backward=LongOperators(70, 0.04),
        ),
        # All took twice as long in the step in which they were timed: 124 of 180 ms.
        "62 of 90 ms, timed in a slow step": with_long(
            ProgramFacts(ADAM, cpu=CPU, operators=12_100),
            forward=LongOperators(40, 0.055, 0.08),
            backward=LongOperators(60, 0.069, 0.1),
        ),
        "compiled": run_with(MANY.program._replace(compiled=CompileFacts(1, 2.0))),
        "no recurrent layer": with_facts(recurrent=None),
        "an input depends on outputs": with_facts(recurrent=GRU._replace(is_known=False)),
    },
    "double-precision": {"float64": run_with(ProgramFacts(ADAM), dtype="float64")},
    "repeated-backward": {
        "through one graph": TWO_OF_ONE,
        "an update each": changed(TWO_OF_ONE, "optimizer_step", count=200),
        "kept past an update": with_backwards(count=300, kept=100, past_updates=100),
        "the last keeps it too": with_backwards(count=200, kept=200, past_updates=100),
    },
    "healthy": {
        "22 % of its CPU": run_with(ProgramFacts(ADAM, cpu=CPU)),
        "unknown on a busy machine": beside_others(0.11),
    },
    COMPUTES_SLOWLY: {"2 % of its CPU": beside_others(0.09)},
    "optimizer-heavy": {
        **{name: optimizing(facts) for name, facts in OPTIMIZERS.items()},
        # LBFGS after Adam: one update with a closure takes most of the time, but is not a span of its own.
        "outside of updates": changed(optimizing(ADAM), "optimizer_step", avg_s=0.006),
    },
    "forward-dominates": {
        "on the CPU": computing(ProgramFacts(ADAM)),
        "on CUDA": computing(ProgramFacts(ON_CUDA)),
        "on CUDA with autocast": computing(ProgramFacts(ON_CUDA, autocast="bfloat16")),
        "compiled": computing(ProgramFacts(ADAM, compiled=CompileFacts(1, 1.0))),
    },
    "repeated-forward": {
        "twice": repeating(),
        "with dropout": repeating(random=25),
        "for metrics": repeating(
            {"forward_pass": 0.3, "backward_pass": 0.4, "optimizer_step": 0.1, "validation_epoch": 0.2},
            without_grad=25,
            after_update=25,
        ),
        "beside a validation": repeating(
            {"forward_pass": 0.2, "forward_without_grad": 0.2, "backward_pass": 0.4, "validation_epoch": 0.2},
            without_grad=25,
        ),
        "ten in every tenth step": repeating(calls=30, seconds=30 * 0.020, steps_with=3),
    },
    "kept-graphs": {"of 16 steps": keeping(16, 16, 8, "train.py:9", "train.py:8")},
    "tiny-batches": {
        "one sample": with_batches(ONE),  # 90 us an operator
        "slices of a batch": with_batches(WHOLE, slices=SLICES),
    },
    "computed-weights": {
        "one weight": with_facts(weights=WEIGHTS),
        "several weights": with_facts(weights=WEIGHTS._replace(weights=3)),
    },
    "computed-constants": {
        "a function": with_constants(*CONSTANTS),
        "a comprehension in it": with_constants(*CONSTANTS, function="mask.<locals>.<listcomp>"),
        "a part of a line": with_constants(CONSTANTS[0]._replace(line=11, is_whole=False, part=0.6)),
        "a line outside of modules": with_constants(TABLE, section=OTHER, file="train.py", line=31, function="main"),
    },
    "time-step-loop": {
        "a layer": with_facts(recurrent=GRU),
        "a cell": with_facts(recurrent=GRU._replace(kind="LSTMCell", work=LITTLE)),
    },
    "padding": {
        "to the longest of the data set": padded(),
        "of a trainer": padded("trainer"),
        "to the longest of the batch": padded(facts=GROUPED),
        "to the longest of the batch, of a trainer": padded("trainer", GROUPED),
        "to more than the longest of the batch": padded(facts=GROUPED._replace(to_longest=0.1)),
        "to more than the longest of the batch, of a trainer": padded("trainer", GROUPED._replace(to_longest=0.1)),
        "many small operators": padded(operators=12_000),
        "images": padded(facts=OF_IMAGES),
        "images, some of them large": padded(facts=OF_IMAGES._replace(to_longest=0.2)),
    },
    "calls-in-forward": {
        "one-hot vectors": with_calls(0.6),
        "one-hot vectors and what multiplies them": with_vectors("Net.forward"),
        "one-hot vectors that another function may use": with_vectors("encode"),
        "a file": with_calls(0.5, called="open"),
    },
    "python-in-forward": {
        "80% is outside of operators": run_with(ProgramFacts(ADAM, cpu=CPU, operators=300, forward=LONG)),
        # On a busy machine the mean is longer than the shortest forward pass; the part is not smaller there.
        "ranks are waited for elsewhere": with_ranks("backward_pass"),
        "the shortest pass shows it": varied(COUNTED, min_s=0.030),
        "a loop among many operators": with_loop(0.5, OF_800),
        "too many to be counted": with_too_many(15_000),
        "as long as the counted pass": with_a_small_batch(median_s=0.05),
        "operators took longer in the counted step": with_a_small_batch(median_s=0.0075, operators_s=0.006),
        **{
            f"in {called}()": with_loop(0.5, OF_800, called=called)
            for called in ("random.sample", "np.random.choice", "torch.tensor", "re.findall")
        },
    },
}
SILENT = {
    "small-operators": {
        "22.5 us each": FEWER,
        "long ones": with_long(MANY.program, forward=LongOperators(400, 0.035), backward=LongOperators(400, 0.045)),
        "with anomaly detection": run_with(MANY.program._replace(finds_anomalies=True)),
        "few, each of them long": run_with(MANY.program._replace(operators=200)),
        "18 us each": run_with(MANY.program._replace(operators=5_000)),
        "on CUDA": run_with(ProgramFacts(ON_CUDA, operators=12_000)),
        "12.9 us each, and what starting one takes is unknown": run_with(ProgramFacts(ADAM, operators=7_000)),
        "no optimizer of torch": run_with(MANY.program._replace(optimizer=None)),
        "as many as layers need": run_with(MANY.program._replace(optimizer=ADAM._replace(tensors=1_500))),
        "a loop over steps": with_facts(recurrent=GRU),
        "a cell that no layer computes faster": with_facts(recurrent=CELL),
        "operators of weights that are computed again": with_facts(weights=WEIGHTS),
        "operators of a mask that is made again": with_constants(*CONSTANTS),
        "operators of hooks": replace(MANY, phases={"forward hook": 0.3}),
    },
    "double-precision": {dtype: run_with(ProgramFacts(ADAM), dtype=dtype) for dtype in ("float32", "bfloat16", "")},
    "repeated-backward": {
        "accumulation over batches": with_backwards(200, 0),
        "truncated in time": with_backwards(100, 100),
        "now and then": with_backwards(200, 10),
    },
    "repeated-forward": {
        "by chance": repeating(steps_with=2),
        "too few to know": repeating(steps=9, calls=9, steps_with=9),
        "short": repeating(seconds=25 * 0.002),
    },
    "kept-graphs": {"most": keeping(16, 13, 8), "few steps": keeping(9, 9, 8), "none": keeping(16, 0, 8)},
    "tiny-batches": {
        "each operator computes, as for one long sequence": with_batches(ONE, operator_s=10e-6),
        "16 samples": with_batches(replace(ONE, samples=1600)),
        "unknown samples": with_batches(replace(ONE, samples=None)),
        "few batches": with_batches(replace(ONE, batches=5, samples=5)),
        "parts that fit in memory": with_batches(WHOLE, slices=SLICES._replace(slices=24 * 2)),
        "few steps with slices": with_batches(WHOLE, slices=SLICES._replace(steps=3, slices=3 * 32)),
        "each operator of slices computes": with_batches(WHOLE, operator_s=10e-6, slices=SLICES),
        "one batch is shorter": changed(
            changed(with_batches(ONE), "forward_pass", min_s=0.0008), "backward_pass", min_s=0.001
        ),
    },
    "computed-weights": {
        "none": with_facts(weights=None),
        "it takes no time": with_facts(weights=WEIGHTS._replace(part=0.03, part_of_backward=0.02)),
    },
    "computed-constants": {
        "none": with_constants(),
        "another line of a function": with_constants(CONSTANTS[0]._replace(is_whole=False)),
        "a small part of a line": with_constants(CONSTANTS[0]._replace(line=11, is_whole=False, part=0.2)),
        "few samples": with_constants(*CONSTANTS, samples=9),
        "a library calls the loop": with_constants(*CONSTANTS, inside="lib/fit.py:9 fit"),
    },
    "time-step-loop": {
        "an input depends on outputs": with_facts(recurrent=GRU._replace(is_known=False)),
        "a cell that no layer computes faster": with_facts(recurrent=CELL),
        "on CUDA": with_facts(recurrent=GRU, optimizer=ADAM._replace(devices=("cuda",))),
        "compiled": with_facts(recurrent=GRU, compiled=CompileFacts(1, 1.0)),
    },
    "padding": {
        "nothing is known": run_with(FACTS._replace(padding=None)),
        "few positions": padded(facts=PADDED._replace(padding=0.08, to_longest=0.06, grouped=0.08)),
        "hardly any operation has all positions": padded(facts=PADDED._replace(part=0.05)),
        "only starting operators takes time": padded(operators=28_000),
        "what is left cannot go": padded(facts=PADDED._replace(to_longest=0.0, grouped=0.0)),
        "compiled": padded(facts=None, compiled=CompileFacts(1, 1.0)),
    },
    "calls-in-forward": {
        "a quarter of the forward pass": with_calls(0.25),
        "a layer": with_calls(0.9, called="self.attn"),
        "a copy, which may be meant": with_calls(0.9, called="x.clone"),
        "few samples": with_calls(0.9, samples=39),
    },
    "python-in-forward": {
        "not counted": run_with(ProgramFacts(ADAM)),
        "ranks are waited for in it": with_ranks("forward_pass"),
        "in operators": run_with(forward_of(operators_s=0.03)),
        "many operators, which is another finding": run_with(forward_of(operators=800)),
        "operators between modules take the rest": run_with(forward_of(calls_s=0.01)),
        "compiled": run_with(forward_of()._replace(compiled=CompileFacts(1, 2.0))),
        "a device that may be busy instead": run_with(forward_of(ADAM._replace(devices=("cuda",)))),
        "no optimizer": run_with(forward_of(None)),
        "a delay in the counted step": varied(COUNTED, min_s=0.012),
        "only loops of too many are known": with_too_many(0),
        "too many, in a layer": with_too_many(15_000, called="self.attn"),
        "a delayed step is not usual": with_a_small_batch(median_s=0.02),
        "they took as long as usual": with_a_small_batch(median_s=0.0075, operators_s=0.006, calls_s=0.0107),
        "others delayed the counted step": with_a_small_batch(median_s=0.0075, operators_s=0.024),
        "a fifth of the time": with_loop(0.2, OF_800),
        "a function of torch": with_loop(0.9, OF_800, called="torch.roll"),
        "a function of the program": with_loop(0.9, OF_800, called="random_mask"),
        "no time outside of operators": with_loop(0.9, OF_800._replace(operators_s=0.035), called="np.dot"),
        "few samples": with_loop(0.5, OF_800, samples=20),
        "a loop of operators": with_loop(0.9, OF_800._replace(operators_s=0.035)),
    },
}
