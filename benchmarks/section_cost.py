"""CPU time of an empty section with profiling off and on, beside other profilers.

``python -m benchmarks.section_cost [--log-every N]``. On, the figure is all in: the loop runs in a real
session, so it pays for draining, statistics and journal. Periodic reports are not part of a section and
are left out unless ``--log-every`` (steps of 1000 sections) asks for them.
"""

import argparse
from statistics import median
from typing import Any

from benchmarks.children import result_of
from benchmarks.figures import Figure, print_figures, print_table, spread
from benchmarks.section_rounds import REFERENCE, ROUNDS, SECTIONS_A_STEP, STEPS_A_ROUND

OFF_TARGET_NS = 150
OFF_TARGET_RATIO = 1.0
ON_TARGET_NS = 500


def run(log_every: int = 1_000_000) -> list[Figure]:
    """Measure, print and return the figures of an empty section; takes about a minute."""
    off = result_of("benchmarks.section_rounds", "off", is_on=False)["ns"]
    _print_rounds("off", off)
    on = result_of("benchmarks.section_rounds", "on", str(log_every), is_on=True)
    _print_rounds("on", on["ns"])
    for name in on["missing"]:
        print(f"{name} is not installed and was left out; `make bench` installs it\n")
    off_ns = off["training_profiler, off"]
    stats = [
        Figure("empty section, off", median(off_ns), OFF_TARGET_NS, "ns", 1),
        Figure("empty section, off / nullcontext", median(_ratios(off_ns, off[REFERENCE])), OFF_TARGET_RATIO, "", 3),
        Figure("empty section, on, all in", median(on["ns"]["training_profiler"]), ON_TARGET_NS, "ns", 1),
    ]
    print_figures(stats)
    return stats


def _ratios(sections_ns: list[float], references_ns: list[float]) -> list[float]:
    return [section / reference for section, reference in zip(sections_ns, references_ns, strict=True)]


def _print_rounds(state: str, sections_ns: dict[str, list[float]]) -> None:
    spans = STEPS_A_ROUND[state] * SECTIONS_A_STEP
    print(f"Empty section, profiling {state}: CPU ns net of the loop, {ROUNDS[state]} rounds of {spans} spans")
    rows: list[list[Any]] = []
    for name, values_ns in sections_ns.items():
        lower, middle, upper = spread(_ratios(values_ns, sections_ns[REFERENCE]))
        ns = [f"{min(values_ns):.1f}", f"{median(values_ns):.1f}"]
        rows.append([name, *ns, f"{middle:.3f}", f"{lower:.3f} - {upper:.3f}"])
    print_table(["section", "best ns", "median ns", "x nullcontext", "quartiles"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log-every", type=int, default=1_000_000, help="steps between periodic reports")
    run(parser.parse_args().log_every)
