"""The recorder in C beside the one in Python, in turns within one process: ``python -m benchmarks.recorders``.

CPU time of an empty section inside of another, with everything that is added up from it, over two reads of the clock
and over a prebuilt ``codetiming.Timer``; that of adding up alone, by the number of sections. Then threads record at
once, and what was handed out is counted.
"""

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from benchmarks.figures import Figure, print_figures, print_table, spread
from benchmarks.memory import resident_now_bytes
from benchmarks.section_rounds import LOOP, STEP, Contender, rounds_of
from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.base.sections import SectionNames
from training_profiler.recording.event_codes import STEP_END
from training_profiler.recording.implementation import Implementation, native_implementation, python_implementation
from training_profiler.recording.recorder import Batch, Recorder, ThreadEvents

ROUNDS: Final = 40
STEPS_A_ROUND: Final = 100
CLOCK: Final = "two reads of the clock"
TIMER: Final = "codetiming.Timer, prebuilt"
BLOCKS: Final = (10, 100, 1000, 4096, 8192)  # sections added up at once
BLOCKS_A_ROUND: Final = 40
BLOCK_ROUNDS: Final = 5
STEP_SECTIONS: Final = 10  # of a step, one of them around the others
THREADS: Final = 4
SPANS: Final = 10_000_000
GROWTH_TARGET_MB: Final = 1.0
TARGETS: Final = {"Python": (4.5, 1.1), "C": (2.0, 0.4)}  # over two reads of the clock, and over the timer


def run(spans: int = SPANS) -> list[Figure]:
    """Measure, print and return the figures of all recorders; takes some minutes."""
    implementations = {"Python": python_implementation("a benchmark asks for it")}
    try:
        implementations["C"] = native_implementation()
    except ImportError as error:
        print(f"the recorder in C is left out: {error}\n")
    stats = _sections(implementations)
    _adding_up(implementations)
    for name, implementation in implementations.items():
        stats += _threads(name, implementation, spans)
    print_figures(stats)
    return stats


def _sections(implementations: dict[str, Implementation]) -> list[Figure]:
    contenders = {CLOCK: Contender(LOOP.format("clock(); clock(); "), {"clock": time.perf_counter_ns})}
    contenders |= {name: _contender(implementation) for name, implementation in implementations.items()}
    try:
        from codetiming import Timer

        timers = {"section": {name: Timer(name, logger=None) for name in ("empty", "step")}.__getitem__}
        loop = STEP.format("").replace("section('empty')", "timer")
        contenders[TIMER] = Contender(loop, timers | {"timer": timers["section"]("empty")}, Timer.timers.clear)
    except ImportError:
        print("codetiming is not installed and was left out; `make bench` installs it\n")
    ns = rounds_of(contenders, ROUNDS, STEPS_A_ROUND)
    rows: list[list[Any]] = []
    for name, each_ns in ns.items():
        ratios = [_cells(each_ns, ns[other]) if other in ns else "" for other in (CLOCK, TIMER)]
        rows.append([name, f"{min(each_ns):.1f}", f"{median(each_ns):.1f}", *ratios])
    print(f"Empty nested section, CPU ns net of the loop, {ROUNDS} rounds in turns")
    print_table(["", "best ns", "median ns", f"x {CLOCK}", f"x {TIMER}"], rows)
    return [
        Figure(f"section by the recorder in {name} / {other}", median(_ratios(ns[name], ns[other])), target, "", 2)
        for name in implementations
        for other, target in zip((CLOCK, TIMER), TARGETS[name], strict=True)
        if other in ns
    ]


def _adding_up(implementations: dict[str, Implementation]) -> None:
    rows = []
    for spans in BLOCKS:
        each_us: dict[str, list[float]] = {name: [] for name in implementations}
        for _ in range(BLOCK_ROUNDS):
            for name, implementation in implementations.items():
                each_us[name].append(_adding_up_us(implementation, spans))
        ends = [cell for us in each_us.values() for cell in (f"{median(us):.0f}", f"{1e3 * median(us) / spans:.0f}")]
        rows.append([str(spans), *ends])
    print(f"Adding up a block of steps with {STEP_SECTIONS} sections each, CPU time, {BLOCK_ROUNDS} rounds in turns")
    print_table(["sections", *(f"{name}, {unit}" for name in implementations for unit in ("us", "ns each"))], rows)


def _adding_up_us(implementation: Implementation, spans: int) -> float:
    """Return the median of some blocks that follow one another in a run, without the first."""
    names = SectionNames()
    outer, *inner = (
        names.id_of(name) for name in ("step", "forward_pass", "backward_pass", "optimizer_step", "a", "b")
    )
    accumulator = Accumulator(names, 0)
    now_ns, each_ns = 0, []
    for _ in range(BLOCKS_A_ROUND):
        events, marks = implementation.new_events(), implementation.new_events()
        for first in range(0, spans, STEP_SECTIONS):
            begin_ns = now_ns
            within = []
            for at in range(1, min(STEP_SECTIONS, spans - first)):
                section = inner[at % len(inner)]
                within += [now_ns + 5_000, section, now_ns + 25_000 + at, -section]
                now_ns += 30_000
            now_ns += 10_000
            events.extend([begin_ns, outer, *within, now_ns, -outer])
            marks.extend((now_ns, STEP_END))
        batch = Batch(now_ns, [ThreadEvents(1, "", True, events[:])], marks[:])
        begun_ns = time.thread_time_ns()
        accumulator.add(batch, 1)
        each_ns.append(time.thread_time_ns() - begun_ns)
    return median(each_ns[BLOCKS_A_ROUND // 4 :]) / 1e3


def _contender(implementation: Implementation) -> Contender:
    recorder = Recorder(implementation=implementation)
    recorder.ask_dynamo(False)  # as in a program that has an optimizer, which imports dynamo, and compiles nothing
    accumulator = Accumulator(recorder.names, recorder.clock())
    thread = recorder.thread_id()

    def drain() -> None:
        accumulator.add(recorder.drain(), thread)

    recorder.listen(drain)
    end_step = "recorder.mark(STEP_END)\nif recorder.is_backed_up(): drain()"
    names = {"section": recorder.section, "recorder": recorder, "STEP_END": STEP_END, "drain": drain}
    return Contender(STEP.format(end_step), names, drain)


def _ratios(each_ns: list[float], other_ns: list[float]) -> list[float]:
    return [each / other for each, other in zip(each_ns, other_ns, strict=True)]


def _cells(each_ns: list[float], other_ns: list[float]) -> str:
    lower, middle, upper = spread(_ratios(each_ns, other_ns))
    return f"{middle:.2f} ({lower:.2f} - {upper:.2f})"


def _threads(name: str, implementation: Implementation, spans: int) -> list[Figure]:
    recorder, handed_out, draining = Recorder(implementation=implementation), Counter[int](), threading.Lock()

    def drain() -> None:
        with draining:
            handed_out.update(_codes(recorder.drain()))

    def work(spans: int) -> None:
        section = recorder.section
        for _ in range(spans // 2):
            with section("outer"), section("inner"):
                pass

    recorder.listen(drain)
    _together(work, spans // 10)  # until memory is as large as it gets
    drain()
    handed_out.clear()
    before_bytes = resident_now_bytes()
    _together(work, spans)
    drain()
    missing = sum(abs(spans // 2 - handed_out[code]) for code in (1, -1, 2, -2))
    growth_mb = (resident_now_bytes() - before_bytes) / 1e6
    what = f"{spans} sections on {THREADS} threads, recorder in {name}"
    return [
        Figure(f"{what}: events lost", missing, 0),
        Figure(f"{what}: growth of memory", growth_mb, GROWTH_TARGET_MB, "MB", 2),
    ]


def _codes(batch: Batch) -> Counter[int]:
    codes = Counter[int]()
    for thread in batch.threads:
        codes.update(thread.events[1::2])
    return codes


def _together(work: Callable[[int], None], spans: int) -> None:
    threads = [threading.Thread(target=work, args=(spans // THREADS,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=SPANS, help="sections on threads")
    run(parser.parse_args().spans)
