"""Rules about how step time varies."""

from dataclasses import replace

from tests.support.recording import section_stats, snapshot_of, step_stats
from training_profiler.model.machine import GpuStats, Level, MachineStats
from training_profiler.model.program import OptimizerFacts, ProgramFacts
from training_profiler.model.snapshot import EpochStats, LineStats, LoaderStats, SectionStats, Snapshot


def run_of(**step) -> Snapshot:
    return snapshot_of({"backward_pass": 1.0}, **step)


def waiting_for_a_device(waits: float, median_s: float, call: str = "item") -> Snapshot:
    """Return a run of 10 s whose steps of 100 ms wait for this part of it, in a section that explains their spread."""
    run = snapshot_of({"forward_pass": 0.1, "backward_pass": 0.1}, std_s=0.2, median_s=median_s)
    run = replace(run, step=replace(run.step, explained={"other": 0.99}))
    line = LineStats("train.py", 16, "main", share=0.8, samples=400, waiting_share=waits, waits_in=call)
    return replace(run, lines={"other": (line,)})


def epoch(number: int, first_fetch_s: float | None, **others) -> EpochStats:
    return replace(EpochStats(number, 10.0, 100, 100, None, 0.1, {}, first_fetch_s, 0.01), **others)


def run_with(*epochs: EpochStats) -> Snapshot:
    return Snapshot(epochs=epochs, step=step_stats())


def passes(first_s: float, start_s: float, count: int = 4, median_s: float = 0.01):
    """Return a run with ``count`` passes over its loader, as the patches record them."""
    run = snapshot_of({"data_loading": 0.2, "backward_pass": 0.75})
    sections = {
        **run.sections,
        "data_loading": replace(run.sections["data_loading"], p50_s=median_s),
        "first_fetch": in_steps("first_fetch", count, first_s),
        "worker_start": in_steps("worker_start", count, start_s),
    }
    return replace(run, sections=sections)


def in_steps(name: str, count: int, avg_s: float, in_steps: float = 1.0) -> SectionStats:
    """Return a section at the begin of passes, of which a part lies in steps: those of a validation do not."""
    return section_stats(name, count=count, avg_s=avg_s, parent="data_loading", step_total_s=in_steps * count * avg_s)


def with_two_loaders(run: Snapshot) -> Snapshot:
    loaders = (LoaderStats("0", 50, None, 1.0), LoaderStats("1", 50, None, 1.0))
    return replace(run, loaders=loaders)


def waiting_run(waits_s: float) -> Snapshot:
    run = run_of(std_s=0.05, median_s=0.05, explained={"backward_pass": 1.02})
    waits = section_stats("synchronization", 0.1, count=100, avg_s=waits_s / 100, parent="backward_pass")
    return replace(run, sections={**run.sections, "synchronization": replace(waits, step_self_s=waits_s)})


LONG = {"std_s": 0.05, "median_s": 0.05}
WIDE = {"std_s": 0.1, "median_s": 0.05}
ACTS_AT_TIMES = {"std_s": 0.2, "median_s": 0.05}
RISES = {"rise": 0.5, "rise_p_value": 0.0001}
WARM = {"warmup_count": 2, "warmup_s": 3.2, "settled_count": 98}
GROWING = {"rise": 3.0, "rise_p_value": 1e-6, "work_unit": "forward passes", "work_rise": 3.0}
LARGER_INPUTS = {**GROWING, "work_unit": "input elements", "unit_rise_p_value": 1e-6}
AHEAD = waiting_for_a_device(waits=0.7, median_s=0.02)  # a number is read in every tenth step
ON_CPU = ProgramFacts(OptimizerFacts("SGD", 12, ("float32",), ("cpu",)))


def beside_a_device(busy: float) -> Snapshot:
    gpu = GpuStats(index=0, loop_utilization=Level(busy, 1.0, busy))
    return replace(run_of(**WIDE), machine=MachineStats(samples=20, gpus=(gpu,)), wall_s=10.0)


def with_starts(run: Snapshot, **sections: SectionStats) -> Snapshot:
    return replace(run, sections={**run.sections, **sections})


VALIDATED = in_steps("worker_start", 40, 0.06, in_steps=0)
HALF_VALIDATED = {
    "first_fetch": in_steps("first_fetch", 8, 0.07, 0.5),
    "worker_start": in_steps("worker_start", 8, 0.06, 0.5),
}
SAYS = {
    "step-time-varies": {
        "20 steps": run_of(**WIDE, settled_count=20),
        "half of them are slowed by captures": run_of(**WIDE, disturbed_count=50),
        "at a hundredth of their time": run_of(std_s=0.03, median_s=0.0989, max_s=0.4, max_step=40),
        "a little with calls": run_of(**WIDE, explained_by_calls=0.49),
        "a little with inputs": run_of(**WIDE, explained_by_inputs=0.49),
        "in no section": run_of(**LONG, explained={"other": 0.7}),
        "in a section of the user's that is called other": run_of(**LONG, explained={"user:other": 0.7}),
        "in a section of the user's": run_of(**LONG, explained={"augment": 0.9}),
        "in data loading": run_of(**LONG, explained={"forward_pass": 0.2, "data_loading": 0.7}),
        "hardly in data loading": run_of(**LONG, explained={"data_loading": 0.29}),
        "waits in each step": waiting_for_a_device(waits=0.7, median_s=0.09),
        "less than half of it waits": waiting_for_a_device(waits=0.3, median_s=0.02),
        "no lines that wait": replace(AHEAD, lines={}),
        "on the CPU": replace(waiting_for_a_device(0.7, 0.02, call="tolist"), program=ON_CPU),
        "at most the idle time": beside_a_device(0.8),
        "beside an idle device": beside_a_device(0.1),
        "a backward pass that waits for ranks": waiting_run(waits_s=5.0),
        "a backward pass that waits less": waiting_run(waits_s=4.9),
        "the model does not act": run_of(**ACTS_AT_TIMES, explained={"other": 0.9}),
    },
    "healthy": {"host waits in some steps": AHEAD},
    "slowing-down": {
        "by a half": run_of(**RISES),
        "more passes, each slower": run_of(**GROWING | {"rise": 11.0}, unit_rise=2.0, unit_rise_p_value=1e-6),
        "more than the square of inputs": run_of(**LARGER_INPUTS, unit_rise=3.2),
    },
    "steps-do-more": {
        "passes": run_of(**GROWING, **LONG),
        "the square of inputs": run_of(**LARGER_INPUTS, unit_rise=2.9),
    },
    "warm-up": {
        "two steps": run_of(**WARM),
        "later steps mostly queue work": run_of(**WARM, median_s=0.006),
    },
    "first-batch-slow": {
        "of epochs": run_with(epoch(1, 2.01), epoch(2, 1.01)),
        "with the start of workers": passes(first_s=0.05, start_s=0.06),
        "half of them are of a validation": with_starts(passes(0.05, 0.0), **HALF_VALIDATED),
        "of one loader": passes(first_s=0.11, start_s=0.0),
        "workers of two loaders": with_two_loaders(passes(first_s=0.05, start_s=0.06, count=8)),
    },
}
SILENT = {
    "step-time-varies": {
        "no steps": Snapshot(),
        "no time": replace(run_of(), step=step_stats(avg_s=0.0)),
        "a tenth": run_of(std_s=0.01, median_s=0.05),
        "19 steps": run_of(**WIDE, settled_count=19),
        "19 beside those of a capture": run_of(**WIDE, settled_count=25, disturbed_count=6),
        "most are slowed by captures": run_of(**WIDE, disturbed_count=51),
        "below a hundredth of their time": run_of(std_s=0.03, median_s=0.0991, max_s=0.4, max_step=40),
        "no cost": run_of(std_s=0.1, median_s=0.1),
        "as calls do": run_of(**WIDE, explained_by_calls=0.5),
        "as inputs do": run_of(**WIDE, explained_by_inputs=0.5),
        "a busy device": beside_a_device(1.0),
        "more and more work": run_of(**GROWING, **LONG),
        "rollouts": run_of(**ACTS_AT_TIMES, explained={"rollout": 0.06, "other": 0.9}),
        "acting": run_of(**ACTS_AT_TIMES, explained={"forward_without_grad": 0.06, "other": 0.9}),
    },
    "slowing-down": {
        "no steps": Snapshot(),
        "at the threshold": run_of(rise=0.05, rise_p_value=0.0),
        "falling": run_of(rise=-0.5, rise_p_value=0.0),
        "by chance": run_of(rise=0.5, rise_p_value=0.002),
        "unknown": run_of(rise=None, rise_p_value=None),
        "99 steps": run_of(rise=0.5, rise_p_value=0.0, settled_count=99),
        "more work": run_of(**GROWING, **LONG),
        "the square of inputs": run_of(**LARGER_INPUTS, unit_rise=2.9),
    },
    "steps-do-more": {
        "more passes, each slower": run_of(**GROWING | {"rise": 11.0}, unit_rise=2.0, unit_rise_p_value=1e-6),
        "more than the square of inputs": run_of(**LARGER_INPUTS, unit_rise=3.2),
    },
    "warm-up": {
        "no steps": Snapshot(),
        "none": run_of(warmup_count=0),
        "three medians": run_of(warmup_count=2, warmup_s=0.6),
        "three means": run_of(warmup_count=2, warmup_s=0.6, settled_count=98, median_s=0.006),
        "nothing else": run_of(warmup_count=100, warmup_s=50.0, settled_count=0),
    },
    "first-batch-slow": {
        "no steps": Snapshot(),
        "one epoch": run_with(epoch(1, 2.0)),
        "five medians": run_with(epoch(1, 2.0), epoch(2, 0.05)),
        "a hundredth of the epoch": run_with(epoch(1, 2.0), epoch(2, 0.11)),
        "no fetch": run_with(epoch(1, 2.0), epoch(2, None)),
        "no median": run_with(epoch(1, 2.0), epoch(2, 1.0, median_fetch_s=None)),
        "not complete": run_with(epoch(1, 2.0), epoch(2, 1.0, is_complete=False)),
        "five times": passes(0.05, 0.0),
        "one pass": passes(0.05, 0.06, count=1),
        "0.9 % of step time": passes(0.012, 0.012, median_s=0.001),
        "workers of a validation": with_starts(passes(0.05, 0.0), worker_start=VALIDATED),
        "batches of two loaders": with_two_loaders(passes(first_s=0.11, start_s=0.0)),
        "two loaders start once": with_two_loaders(passes(first_s=0.05, start_s=0.06, count=2)),
    },
}
