"""Rules about how step time varies, and about steps that take longer from one of them on."""

from dataclasses import replace

from tests.diagnosis.test_machine_rules import level, machine
from tests.support.recording import section_stats, snapshot_of, step_stats
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.change import cause_of, slower_since
from training_profiler.model.machine import Level
from training_profiler.model.program import (
    GRAPH,
    HOOKS,
    SIZE,
    SUBNORMAL,
    UPDATED,
    Grown,
    OptimizerFacts,
    ProgramFacts,
)
from training_profiler.model.ranks import RankId, RankStats
from training_profiler.model.snapshot import (
    AllRanksStats,
    EpochStats,
    GpuStats,
    LineChange,
    LineStats,
    LoaderStats,
    MachineStats,
    SectionStats,
    Snapshot,
    StepChange,
)

SECTIONS = {"forward_pass": (0.05, 0.05), "data_loading": (0.01, 0.05), "other": (0.02, 0.02)}


def change(**others):
    figures = {
        "step": 401,
        "first_step": 396,
        "last_step": 409,
        "before_s": 0.08,
        "after_s": 0.12,
        "is_abrupt": True,
        "sections": SECTIONS,
    }
    return StepChange(**{**figures, **others})


def run_of(steps=1000, lost=None, **others):
    run = snapshot_of(
        {"forward_pass": 0.6, "data_loading": 0.05},
        steps=steps,
        std_s=0.02,
        median_s=0.08,
        rise=0.6,
        rise_p_value=0.0,
        change=change(**others),
    )
    return run if lost is None else replace(run, machine=lost)


def shaped(before, after):
    run = run_of(input_elements=(1000.0, 1500.0))
    shapes = tuple((update, before if update < 400 else after) for update in range(0, 1000, 16))
    return replace(run, program=ProgramFacts(shapes=shapes))


def test_levels_that_are_the_same_have_no_cause():
    halves = change(after_s=0.08, sections=dict.fromkeys(SECTIONS, (0.05, 0.05)))
    step = replace(run_of().step, change=None, halves=halves)
    assert "slowing-down" in [each.code for each in diagnose(replace(run_of(), step=step))]
    assert cause_of(halves) == ("", "")


def test_jump_is_one_finding_and_its_seconds_are_claimed_once():
    run = run_of()
    claimed_s = sum(
        each.potential_saving_s for each in diagnose(run) if each.code in ("slower-since", "step-time-varies")
    )
    assert claimed_s <= 24.0 + 1e-9


def device(clock, busy=0.95, samples=9):
    gpu = GpuStats(0, clock_mhz=level(clock), utilization=level(busy), temperature_c=level(87.0))
    return MachineStats(samples, gpus=(gpu,))


def lines(after_s, samples, before_s=0.005):
    return {"data_loading": (LineChange("load.py:9 decode", before_s, after_s, samples),)}


def test_a_jump_from_no_time_is_none():
    assert slower_since(run_of(before_s=0.0)) is None


ALIKE = {"forward_pass": (0.04, 0.06), "backward_pass": (0.03, 0.043), "optimizer_step": (0.005, 0.007)}
ALL_ALIKE = {**ALIKE, "other": (0.004, 0.006), "data_loading": (0.001, 0.001)}
SCATTERED = {  # as measured of one training on a machine whose speed changed
    "forward_pass": (0.0102, 0.0112),
    "backward_pass": (0.0150, 0.0152),
    "data_loading": (0.0016, 0.0019),
    "other": (0.0005, 0.0008),
    "optimizer_step": (0.0029, 0.0030),
}
QUIET, BUSY = machine(wait=0.0), machine(wait=0.3)


def trend(sections: dict[str, tuple[float, float]], rise: float, after_s: float = 0.0357) -> Snapshot:
    run = run_of(is_abrupt=False, before_s=0.0306, after_s=after_s, sections=sections)
    return replace(run, step=replace(run.step, rise=rise))


def calling(called: str) -> Snapshot:
    (line,) = lines(0.045, 400)["data_loading"]
    return run_of(lines={"data_loading": (replace(line, called=called),)})


def in_a_library() -> Snapshot:
    """Return a run whose rise is in a line of a library, which the user cannot edit."""
    place = "lib/loop.py:3 advance"
    line = LineStats("train.py", 16, "main", share=0.04, samples=400, inside=place)
    rose = replace(lines(0.045, 400)["data_loading"][0], line=f"{line.place} {line.what}")
    return replace(run_of(lines={"data_loading": (rose,)}), lines={"data_loading": (line,)})


def of_ranks(*since: int | None) -> Snapshot:
    rows = [RankStats(RankId(rank, len(since)), 1000, slower_since_step=step) for rank, step in enumerate(since)]
    return replace(run_of(), ranks=AllRanksStats(len(since), tuple(rows)))


def growing(*grown: Grown, steps: int = 1000, **others) -> Snapshot:
    run = run_of(steps=steps, **{"is_abrupt": False, "step": 501, "first_step": 501, "last_step": 501, **others})
    sections = snapshot_of({"forward_pass": 0.5, "data_loading": 0.3}, steps=steps).sections
    return replace(run, program=ProgramFacts(grown=grown), sections=sections)


def evenly(kind: str, last: float = 1000.0, name: str = "history", **others) -> Grown:
    return Grown(kind, name, ((4, last / 250), (250, last / 4), (500, last / 2), (1000, last)), 1000, **others)


HELD = evenly(SIZE, path="/home/me/load.py", lines=((8, 9),))
DECODE = lines(0.045, 400)
BOTH = (LineChange("load.py:9 decode", 0.01, 0.035, 400), LineChange("load.py:8 decode", 0.005, 0.01, 100))
COPIED_AND_READ = (replace(BOTH[0], called="torch.cat"), BOTH[1])
FORWARD = {"forward_pass": (0.02, 0.06), "other": (0.02, 0.02)}
RISING = (LineChange("load.py:9 decode", 0.008, 0.018, 400),)  # in the forward pass
WITH_GRADIENTS = {"forward_pass": (0.01, 0.02), "backward_pass": (0.02, 0.05), "other": (0.02, 0.02)}
AT_401 = {"is_abrupt": True, "step": 401, "first_step": 396, "last_step": 409}
GRAPH_OF = evenly(GRAPH, 12_000, name="state", place="train.py:31", own=100)
AT_ONCE = Grown(SIZE, "history", ((4, 10.0), (390, 10.0), (410, 900.0), (1000, 900.0)), 1000, *HELD[4:6])


def updating(*grown: Grown, section: str = "optimizer_step", **others) -> Snapshot:
    """Return a run in which a section that optimizers have part in takes longer and longer."""
    run = growing(*grown, sections={section: (0.02, 0.06), "other": (0.02, 0.02)}, **others)
    return replace(run, sections=snapshot_of({section: 0.5}, steps=1000).sections)


AVERAGES = evenly(SUBNORMAL[0], 80.0, name="exp_avg_sq of Adam")
BETWEEN_LOOKS = AVERAGES._replace(points=((4, 0.0), (330, 1.0), (460, 75.0), (1000, 80.0)))
WEIGHTS = AVERAGES._replace(kind=SUBNORMAL[1], name="the parameters of SGD")


def with_graph(grown: Grown, steps: int = 50) -> Snapshot:
    run = snapshot_of({"forward_pass": 0.1, "backward_pass": 0.9}, steps=steps)
    return replace(run, program=ProgramFacts(grown=(grown,)))


def beside_graph(section: str) -> Snapshot:
    """Return a run in which a section takes longer from one step on, while the graph of each step grows."""
    run, graph = run_of(sections={section: (0.02, 0.06)}), with_graph(GRAPH_OF, steps=1000)
    return replace(run, sections={**run.sections, **graph.sections}, program=graph.program)


def stepping(**step) -> Snapshot:
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
    run = stepping(std_s=0.05, median_s=0.05, explained={"backward_pass": 1.02})
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
    return replace(stepping(**WIDE), machine=MachineStats(samples=20, gpus=(gpu,)), wall_s=10.0)


def with_starts(run: Snapshot, **sections: SectionStats) -> Snapshot:
    return replace(run, sections={**run.sections, **sections})


VALIDATED = in_steps("worker_start", 40, 0.06, in_steps=0)
HALF_VALIDATED = {
    "first_fetch": in_steps("first_fetch", 8, 0.07, 0.5),
    "worker_start": in_steps("worker_start", 8, 0.06, 0.5),
}


SAYS = {
    "growing-graph": {
        "a state": with_graph(GRAPH_OF),
        "an unknown variable": with_graph(GRAPH_OF._replace(name="")),
        "at an unknown line": with_graph(GRAPH_OF._replace(place="")),
    },
    "growing-work": {
        "a list": growing(HELD, lines=DECODE),
        "a list, compared at a quarter": growing(HELD, lines=DECODE, step=251, first_step=251, last_step=251),
        "a list that two lines work through": growing(HELD, lines={"data_loading": BOTH}),
        "a tensor that is copied": growing(HELD, lines=calling("torch.cat").step.change.lines),
        "a tensor that is copied, and that another line reads": growing(HELD, lines={"data_loading": COPIED_AND_READ}),
        "a list that grew at once": growing(AT_ONCE, lines=DECODE, **AT_401),
        "the first of two": growing(HELD._replace(lines=((90, 99),)), HELD, lines=DECODE),
        "hooks": growing(evenly(HOOKS, name="a module of net", place="train.py:9"), sections=FORWARD),
        "a tensor in the loss": growing(HELD, lines={"forward_pass": RISING}, sections=WITH_GRADIENTS),
        "a list that is written to a file": growing(HELD, lines=calling("json.dump").step.change.lines),
        "parameters": updating(evenly(UPDATED, name="SGD")),
        "parameters, by lines": updating(evenly(UPDATED, name="SGD", place="train.py:9")),
        "subnormal averages": updating(AVERAGES),
        "subnormal averages, at once between looks": updating(BETWEEN_LOOKS, **AT_401),
        "subnormal averages that are soon as many as ever": updating(BETWEEN_LOOKS),
        "subnormal weights": updating(WEIGHTS, section="backward_pass"),
    },
    "slower-since": {
        "a graph that grows, and another section": beside_graph("other"),
        "a section": run_of(),
        "all parts alike": run_of(sections=ALL_ALIKE),
        "three parts alike, as with larger batches": run_of(sections=ALIKE),
        "one part rises less": run_of(sections={**ALIKE, "other": (0.004, 0.0045)}),
        "no section": run_of(sections={}),
        "a little more work": run_of(input_elements=(1000.0, 1060.0)),
        "hardly more work": run_of(input_elements=(1000.0, 1001.0)),
        "a neighbour": run_of(machine=(machine(wait=0.0, host=0.5), BUSY)),
        "a neighbour that has the seconds": run_of(machine=(machine(wait=0.0, host=0.5), BUSY), lost=machine(wait=0.2)),
        "a quota": run_of(machine=(QUIET, machine(wait=0.3, cpu_throttled=level(0.5)))),
        "a neighbour that was there": run_of(machine=(BUSY, BUSY)),
        "the device's clock": run_of(machine=(device(1980.0), device(1410.0))),
        "a clock that falls for lack of work": run_of(machine=(device(1980.0), device(1410.0, busy=0.5))),
        "a clock that falls a little": run_of(machine=(device(1980.0), device(1900.0))),
        "a clock that rises": run_of(machine=(device(1410.0), device(1980.0))),
        "a clock of few samples": run_of(machine=(device(1980.0), device(1410.0, samples=2))),
        "a clock that is lost": run_of(machine=(device(1980.0), MachineStats(9))),
        "no clock": run_of(machine=(device(0.0), device(0.0))),
        "a line": run_of(lines=lines(0.045, 400)),
        "a line of a library": in_a_library(),
        "a line that copies what grows": calling("torch.cat"),
        "a line that appends": calling("losses.append"),
        "a line that adds": calling("sum"),
        "a line of few samples": run_of(lines=lines(0.045, 9)),
        "a line with a small part": run_of(lines=lines(0.02, 400)),
        "a line by chance": run_of(lines=lines(0.045, 12, 0.02)),
        "one rank": of_ranks(None, 405),
        "three ranks": of_ranks(300, 405, 390, None),
        "no rank": of_ranks(None, None),
        "ranks at other times": of_ranks(900, 20),
    },
    "slowing-down": {
        "a growing list": run_of(is_abrupt=False),
        "too much for a machine": trend(SCATTERED, 0.6, after_s=0.0332),
        "a part that carries it": trend({**SCATTERED, "other": (0.0005, 0.0033)}, 0.19),
        "unknown parts": trend({}, 0.19),
        "a neighbour": run_of(is_abrupt=False, machine=(QUIET, BUSY)),
        "all parts alike": run_of(is_abrupt=False, sections=ALL_ALIKE),
        "by a half": stepping(**RISES),
        "more passes, each slower": stepping(**GROWING | {"rise": 11.0}, unit_rise=2.0, unit_rise_p_value=1e-6),
        "more than the square of inputs": stepping(**LARGER_INPUTS, unit_rise=3.2),
    },
    "steps-do-more": {
        "inputs from a step on": run_of(input_elements=(1000.0, 1500.0)),
        "longer sequences from a step on": shaped((8, 16), (8, 40)),
        "more samples of them": shaped((8, 16), (32, 24)),
        "larger images": shaped((8, 3, 32, 32), (8, 3, 64, 64)),
        "inputs of other kinds": shaped((8, 16), (8, 16, 4)),
        "inputs that are hardly larger": shaped((100, 16), (109, 16)),
        "passes from a step on": run_of(forward_passes=(2.0, 3.0)),
        "attention": run_of(input_elements=(1000.0, 1250.0)),
        "passes": stepping(**GROWING, **LONG),
        "the square of inputs": stepping(**LARGER_INPUTS, unit_rise=2.9),
    },
    "step-time-varies": {
        "20 steps": stepping(**WIDE, settled_count=20),
        "half of them are slowed by captures": stepping(**WIDE, disturbed_count=50),
        "at a hundredth of their time": stepping(std_s=0.03, median_s=0.0989, max_s=0.4, max_step=40),
        "a little with calls": stepping(**WIDE, explained_by_calls=0.49),
        "a little with inputs": stepping(**WIDE, explained_by_inputs=0.49),
        "in no section": stepping(**LONG, explained={"other": 0.7}),
        "in a section of the user's that is called other": stepping(**LONG, explained={"user:other": 0.7}),
        "in a section of the user's": stepping(**LONG, explained={"augment": 0.9}),
        "in data loading": stepping(**LONG, explained={"forward_pass": 0.2, "data_loading": 0.7}),
        "hardly in data loading": stepping(**LONG, explained={"data_loading": 0.29}),
        "waits in each step": waiting_for_a_device(waits=0.7, median_s=0.09),
        "less than half of it waits": waiting_for_a_device(waits=0.3, median_s=0.02),
        "no lines that wait": replace(AHEAD, lines={}),
        "on the CPU": replace(waiting_for_a_device(0.7, 0.02, call="tolist"), program=ON_CPU),
        "at most the idle time": beside_a_device(0.8),
        "beside an idle device": beside_a_device(0.1),
        "a backward pass that waits for ranks": waiting_run(waits_s=5.0),
        "a backward pass that waits less": waiting_run(waits_s=4.9),
        "the model does not act": stepping(**ACTS_AT_TIMES, explained={"other": 0.9}),
    },
    "healthy": {"host waits in some steps": AHEAD},
    "warm-up": {
        "two steps": stepping(**WARM),
        "later steps mostly queue work": stepping(**WARM, median_s=0.006),
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
    "growing-graph": {
        "mostly its own": with_graph(GRAPH_OF._replace(own=13_000)),
        "few steps": with_graph(GRAPH_OF, steps=9),
        "another kind": with_graph(HELD),
    },
    "growing-work": {
        "another line": growing(HELD._replace(lines=((10, 12),)), lines=DECODE),
        "another file": growing(HELD._replace(path="/home/me/reload.py"), lines=DECODE),
        "no line": growing(HELD),
        "no line in the loss": growing(HELD, lines=DECODE, sections=WITH_GRADIENTS),
        "another line in the loss": growing(
            HELD, lines={"forward_pass": (replace(RISING[0], line="load.py:12 decode"),)}, sections=WITH_GRADIENTS
        ),
        "gradients that grow far more": growing(
            HELD._replace(points=((4, 100.0), (500, 150.0), (1000, 200.0))),
            lines={"forward_pass": RISING},
            sections={**WITH_GRADIENTS, "backward_pass": (0.02, 0.09)},
        ),
        "grows less than the time": growing(
            HELD._replace(points=((4, 800.0), (500, 1000.0), (1000, 1300.0))), lines=DECODE
        ),
        "grows evenly, the time at once": growing(HELD, lines=DECODE, **AT_401),
        "hooks, and another section": growing(evenly(HOOKS)),
        "parameters, and another section": updating(evenly(UPDATED, name="SGD"), section="backward_pass"),
        "subnormal averages, and another section": updating(AVERAGES, section="forward_pass"),
        "subnormal averages evenly, the time at once": updating(AVERAGES, **AT_401),
        "99 steps": growing(HELD, lines=DECODE, steps=99),
        "larger inputs": growing(HELD, lines=DECODE, input_elements=(1000.0, 1500.0)),
        "nothing": growing(lines=DECODE),
    },
    "slower-since": {
        "a graph that grows": beside_graph("backward_pass"),
        "at the threshold": run_of(after_s=0.0839),
        "faster": run_of(after_s=0.04),
        "a trend": run_of(is_abrupt=False),
        "99 steps": run_of(steps=99),
        "no change": snapshot_of({"forward_pass": 1.0}),
        "a busy machine may explain it": run_of(lost=machine(wait=0.5)),
        "a machine as busy throughout": run_of(machine=(BUSY, BUSY), lost=BUSY),
    },
    "slowing-down": {
        "a machine": trend(SCATTERED, 0.19, after_s=0.0332),
        "a jump": run_of(),
        "at the threshold": stepping(rise=0.05, rise_p_value=0.0),
        "falling": stepping(rise=-0.5, rise_p_value=0.0),
        "by chance": stepping(rise=0.5, rise_p_value=0.002),
        "unknown": stepping(rise=None, rise_p_value=None),
        "99 steps": stepping(rise=0.5, rise_p_value=0.0, settled_count=99),
        "more work": stepping(**GROWING, **LONG),
        "the square of inputs": stepping(**LARGER_INPUTS, unit_rise=2.9),
    },
    "step-time-varies": {
        "no time": replace(stepping(), step=step_stats(avg_s=0.0)),
        "a tenth": stepping(std_s=0.01, median_s=0.05),
        "19 steps": stepping(**WIDE, settled_count=19),
        "19 beside those of a capture": stepping(**WIDE, settled_count=25, disturbed_count=6),
        "most are slowed by captures": stepping(**WIDE, disturbed_count=51),
        "below a hundredth of their time": stepping(std_s=0.03, median_s=0.0991, max_s=0.4, max_step=40),
        "no cost": stepping(std_s=0.1, median_s=0.1),
        "as calls do": stepping(**WIDE, explained_by_calls=0.5),
        "as inputs do": stepping(**WIDE, explained_by_inputs=0.5),
        "a busy device": beside_a_device(1.0),
        "more and more work": stepping(**GROWING, **LONG),
        "rollouts": stepping(**ACTS_AT_TIMES, explained={"rollout": 0.06, "other": 0.9}),
        "acting": stepping(**ACTS_AT_TIMES, explained={"forward_without_grad": 0.06, "other": 0.9}),
    },
    "steps-do-more": {
        "more passes, each slower": stepping(**GROWING | {"rise": 11.0}, unit_rise=2.0, unit_rise_p_value=1e-6),
        "more than the square of inputs": stepping(**LARGER_INPUTS, unit_rise=3.2),
    },
    "warm-up": {
        "none": stepping(warmup_count=0),
        "three medians": stepping(warmup_count=2, warmup_s=0.6),
        "three means": stepping(warmup_count=2, warmup_s=0.6, settled_count=98, median_s=0.006),
        "nothing else": stepping(warmup_count=100, warmup_s=50.0, settled_count=0),
    },
    "first-batch-slow": {
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
SAYS["slower-since"] |= {f"copies by {name}": calling(name) for name in ("np.concatenate", "pd.concat", "torch.stack")}
