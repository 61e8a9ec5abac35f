"""Runs all benchmarks, the shortest first, and ends with every figure in one table; the exit status is 0."""

from benchmarks import import_off, memory, section_cost, training_ratio
from benchmarks.figures import Figure, print_figures


def main() -> None:
    figures: list[Figure] = []
    for benchmark in (import_off, memory, section_cost, training_ratio):
        print(f"== {benchmark.__name__}\n", flush=True)
        figures += benchmark.run()
    print("== all figures\n")
    print_figures(figures)


if __name__ == "__main__":
    main()
