"""Steps that take longer from one of them on, and what changed there."""

from dataclasses import replace

from tests.diagnosis.test_machine_rules import level, machine
from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.change import slower_since
from training_profiler.model.program import GRAPH, HOOKS, SIZE, Grown, ProgramFacts
from training_profiler.model.ranks import RankId, RankStats
from training_profiler.model.snapshot import AllRanksStats, GpuStats, LineChange, MachineStats, Snapshot, StepChange

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
FORWARD = {"forward_pass": (0.02, 0.06), "other": (0.02, 0.02)}
AT_401 = {"is_abrupt": True, "step": 401, "first_step": 396, "last_step": 409}
GRAPH_OF = evenly(GRAPH, 12_000, name="state", place="train.py:31", own=100)
AT_ONCE = Grown(SIZE, "history", ((4, 10.0), (390, 10.0), (410, 900.0), (1000, 900.0)), 1000, *HELD[4:6])


def with_graph(grown: Grown, steps: int = 50) -> Snapshot:
    run = snapshot_of({"forward_pass": 0.1, "backward_pass": 0.9}, steps=steps)
    return replace(run, program=ProgramFacts(grown=(grown,)))


def beside_graph(section: str) -> Snapshot:
    """Return a run in which a section takes longer from one step on, while the graph of each step grows."""
    run, graph = run_of(sections={section: (0.02, 0.06)}), with_graph(GRAPH_OF, steps=1000)
    return replace(run, sections={**run.sections, **graph.sections}, program=graph.program)


SAYS = {
    "growing-graph": {
        "a state": with_graph(GRAPH_OF),
        "an unknown variable": with_graph(GRAPH_OF._replace(name="")),
        "at an unknown line": with_graph(GRAPH_OF._replace(place="")),
    },
    "growing-work": {
        "a list": growing(HELD, lines=DECODE),
        "a tensor that is copied": growing(HELD, lines=calling("torch.cat").step.change.lines),
        "a list that grew at once": growing(AT_ONCE, lines=DECODE, **AT_401),
        "the first of two": growing(HELD._replace(lines=((90, 99),)), HELD, lines=DECODE),
        "hooks": growing(evenly(HOOKS, name="a module of net", place="train.py:9"), sections=FORWARD),
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
    },
    "steps-do-more": {
        "inputs from a step on": run_of(input_elements=(1000.0, 1500.0)),
        "passes from a step on": run_of(forward_passes=(2.0, 3.0)),
        "attention": run_of(input_elements=(1000.0, 1250.0)),
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
        "grows less than the time": growing(
            HELD._replace(points=((4, 800.0), (500, 1000.0), (1000, 1300.0))), lines=DECODE
        ),
        "grows evenly, the time at once": growing(HELD, lines=DECODE, **AT_401),
        "hooks, and another section": growing(evenly(HOOKS)),
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
    "slowing-down": {"a machine": trend(SCATTERED, 0.19, after_s=0.0332), "a jump": run_of()},
}
SAYS["slower-since"] |= {f"copies by {name}": calling(name) for name in ("np.concatenate", "pd.concat", "torch.stack")}
