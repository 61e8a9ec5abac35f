"""Runs all benchmarks, the shortest first, and ends with every figure in one table; the exit status is 0."""

from benchmarks import (
    capture,
    cost_by_part,
    device,
    import_off,
    line_sampler,
    machine_monitor,
    many_steps,
    memory,
    patches,
    ranks_merge,
    ranks_store,
    recorders,
    section_cost,
    start_up,
    switched,
    trace_analysis,
    training_ratio,
    unmodified_training,
)
from benchmarks.figures import Figure, print_figures

ALL = (
    import_off,
    memory,
    many_steps,
    ranks_merge,
    ranks_store,
    recorders,
    patches,
    section_cost,
    start_up,
    line_sampler,
    machine_monitor,
    trace_analysis,
    switched,
    cost_by_part,
    device,
    capture,
    training_ratio,
    unmodified_training,
)


def main() -> None:
    stats: list[Figure] = []
    for benchmark in ALL:
        print(f"== {benchmark.__name__}\n", flush=True)
        stats += benchmark.run()
    print("== all figures\n")
    print_figures(stats)


if __name__ == "__main__":
    main()
