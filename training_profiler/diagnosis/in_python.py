"""Which lines of forward and backward passes run Python or other libraries, instead of operators of torch."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.called_functions import MAKING_TENSORS
from training_profiler.snapshot.snapshot import PYTHON, LineStats

# By the names under which programs import them.
OTHER_LIBRARIES: Final = frozenset(
    (
        *("random", "np", "numpy", "re", "json", "itertools", "copy", "bisect", "heapq", "collections", "string"),
        *("nx", "networkx", "sp", "scipy", "sklearn", "pd", "pandas", "cv2", "Image", "PIL", "nltk", "tokenizer"),
    )
)
ARRAYS: Final = ("np", "numpy", "scipy", "sp")
RANDOM: Final = "random"  # np.random takes no arrays: what is between its calls may be torch's
OF_EITHER: Final = ("numpy", "from_numpy", "detach", "cpu")  # between tensors and arrays
MOSTLY_ARRAYS: Final = 0.8  # of the time in calls of a function
LEAST_OF_ARRAYS: Final = 3  # samples of its calls; fewer may be chance


def runs_python(name: str) -> bool:
    """Return whether a called function is Python, of a library that does not use torch, or makes tensors of lists."""
    return name == PYTHON or name.split(".")[0] in OTHER_LIBRARIES or MAKING_TENSORS.matches(name)


def in_python(lines: Sequence[LineStats]) -> list[LineStats]:
    """Return the lines that run Python or other libraries, with the time in these.

    In ``a ** 3`` no function is called, and ``a`` may be a tensor. It counts beside a call of NumPy in its line, in
    a function that hardly calls anything else.
    """
    of_arrays = _functions_of_arrays(lines)
    found = []
    for line in lines:
        share = sum(its_share for name, its_share in line.called.items() if runs_python(name))
        if (line.file, line.function) in of_arrays and not line.inside and any(map(_takes_arrays, line.called)):
            share += max(0.0, line.share - sum(line.called.values()))
        if share:
            found.append(replace(line, share=min(line.share, share)))
    return found


def _takes_arrays(name: str) -> bool:
    library, *path = name.split(".")
    return library in ARRAYS and RANDOM not in path


def _functions_of_arrays(lines: Sequence[LineStats]) -> set[tuple[str, str]]:
    """Return the functions, by file and name, that call NumPy and hardly anything else."""
    arrays: defaultdict[tuple[str, str], float] = defaultdict(float)
    others: defaultdict[tuple[str, str], float] = defaultdict(float)
    samples: defaultdict[tuple[str, str], float] = defaultdict(float)
    for line in lines:
        function = line.file, line.function
        for name, share in line.called.items():
            if _takes_arrays(name):
                arrays[function] += share
                samples[function] += line.samples * share / line.share if line.share else 0.0
            elif not runs_python(name) and name.rpartition(".")[2] not in OF_EITHER:
                others[function] += share
    return {
        function
        for function, share in arrays.items()
        if share >= MOSTLY_ARRAYS * (share + others[function]) and samples[function] >= LEAST_OF_ARRAYS
    }
