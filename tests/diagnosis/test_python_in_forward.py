"""The rule about forward passes that run Python instead of operators of torch."""

from dataclasses import replace

from tests.diagnosis.test_program_rules import ADAM, CPU, LONG, run_with
from training_profiler.model.program import CompileFacts, ForwardFacts, OptimizerFacts, ProgramFacts
from training_profiler.model.snapshot import LineStats, Snapshot

MANY = LONG._replace(operators=800)  # what is between them may take all of the rest


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


def with_a_small_batch(median_s: float) -> Snapshot:
    """Return a run with a loop in its forward passes, of which the last is a tenth of the others."""
    run = with_loop(0.5, LONG._replace(operators=80, operators_s=0.0035))
    forward = replace(run.sections["forward_pass"], min_s=0.004, p50_s=median_s)
    return replace(run, sections={**run.sections, "forward_pass": forward})


def changed(run: Snapshot, **figures: float) -> Snapshot:
    return replace(run, sections={**run.sections, "forward_pass": replace(run.sections["forward_pass"], **figures)})


def forward_of(optimizer: OptimizerFacts | None = ADAM, **figures: float) -> ProgramFacts:
    return ProgramFacts(optimizer, forward=LONG._replace(**figures))


COUNTED = run_with(forward_of())
SAYS = {
    "python-in-forward": {
        "80% is outside of operators": run_with(ProgramFacts(ADAM, cpu=CPU, operators=300, forward=LONG)),
        # On a busy machine the mean is longer than the shortest forward pass; the part is not smaller there.
        "the shortest pass shows it": changed(COUNTED, min_s=0.030),
        "a loop among many operators": with_loop(0.5, MANY),
        "too many to be counted": with_too_many(15_000),
        "as long as the counted pass": with_a_small_batch(median_s=0.05),
        **{
            f"in {called}()": with_loop(0.5, MANY, called=called)
            for called in ("random.sample", "np.random.choice", "torch.tensor", "re.findall")
        },
    }
}
SILENT = {
    "python-in-forward": {
        "not counted": run_with(ProgramFacts(ADAM)),
        "in operators": run_with(forward_of(operators_s=0.03)),
        "many operators, which is another finding": run_with(forward_of(operators=800)),
        "operators between modules take the rest": run_with(forward_of(calls_s=0.01)),
        "compiled": run_with(forward_of()._replace(compiled=CompileFacts(1, 2.0))),
        "a device that may be busy instead": run_with(forward_of(ADAM._replace(devices=("cuda",)))),
        "no optimizer": run_with(forward_of(None)),
        "a delay in the counted step": changed(COUNTED, min_s=0.012),
        "only loops of too many are known": with_too_many(0),
        "too many, in a layer": with_too_many(15_000, called="self.attn"),
        "a delayed step is not usual": with_a_small_batch(median_s=0.02),
        "a fifth of the time": with_loop(0.2, MANY),
        "a function of torch": with_loop(0.9, MANY, called="torch.roll"),
        "a function of the program": with_loop(0.9, MANY, called="random_mask"),
        "no time outside of operators": with_loop(0.9, MANY._replace(operators_s=0.035), called="np.dot"),
        "few samples": with_loop(0.5, MANY, samples=20),
        "a loop of operators": with_loop(0.9, MANY._replace(operators_s=0.035)),
    }
}
