"""Places in the user's code as findings name them, and which lines run Python instead of operators of torch."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from training_profiler.base.sections import FORWARD_PASS
from training_profiler.diagnosis.called_functions import MAKING_TENSORS, named
from training_profiler.model.lines import hottest_functions, hottest_places
from training_profiler.model.snapshot import CHECKS, HOT_PLACES, HOT_SHARE, PYTHON, LineStats, Snapshot

NAMED_FROM: Final = 0.25  # of a section, for a function to be named as its cause
LINES_A_FUNCTION: Final = 3  # named, of a function whose time is spread over many
SAY_NOTHING: Final = (CHECKS, PYTHON, "step", "backward")  # no call of the line, and calls that are a section
# By the names under which programs import them.
OTHER_LIBRARIES: Final = named(
    "random np numpy re json itertools copy bisect heapq collections string nx networkx sp scipy sklearn pd pandas cv2 "
    "Image PIL nltk tokenizer"
)
OF_EITHER: Final = ("numpy", "from_numpy", "detach", "cpu")  # between tensors and arrays
LOOPS: Final = 0.15  # of a function's time between calls, at the turns of its loops
SAMPLES_NEEDED: Final = 40  # of lines in the forward pass; the error of a part of 0.3 is then below 0.08


def places_named(lines: Sequence[LineStats], of: float) -> list[LineStats]:
    """Return every function with a quarter of the share ``of``, then the largest others, 3 in all, or where these call.

    Functions that have less than half of what the loops and functions that call them have are not named.
    """
    functions, coarser = hottest_functions(lines), hottest_places(lines)
    many = max(len([each for each in functions if each.share >= NAMED_FROM * of]), HOT_PLACES)
    functions = [each for each in functions[:many] if each.share >= HOT_SHARE]
    is_spread = 2 * sum(each.share for each in functions) < sum(each.share for each in coarser)
    return coarser if is_spread else functions


def places_text(places: Sequence[LineStats], share: float) -> str:
    """Return the places with their parts of the time that is ``share`` of the run; "" for none."""
    if not share:
        return ""
    texts = [f"{place.place} {place.what} ({of_it(place, share)})" for place in places]
    callers = list(dict.fromkeys(place.caller for place in places if place.caller))
    return ", ".join(texts) + (f"; called at {', '.join(callers)}" if callers else "")


def of_it(place: LineStats, of: float) -> str:
    """Return a place's part of the share ``of``, with the function that a line calls, or the hottest lines of one."""
    text = f"{min(1.0, place.share / of):.0%} of it"
    name, called = max(place.called.items(), key=lambda item: item[1], default=("", 0.0))
    is_named = called >= 0.5 * place.share and name.rpartition(".")[2] not in SAY_NOTHING
    if called and is_named and not place.inside:
        mostly = "" if called >= 0.9 * place.share else "mostly "
        text += f", {mostly}in {name}()"
    if place.lines > 1 and not place.inside:
        parts = sorted(place.parts, key=lambda part: -part[1])[:LINES_A_FUNCTION]
        text += ": " + ", ".join(f"line {line} {min(1.0, share / of):.0%}" for line, share in parts)
    return text


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
    return library in ("np", "numpy", "scipy", "sp") and "random" not in path  # np.random takes no arrays


def _functions_of_arrays(lines: Sequence[LineStats]) -> set[tuple[str, str]]:
    """Return the functions, by file and name, that call NumPy and hardly anything else."""
    arrays, others, samples = (defaultdict[tuple[str, str], float](float) for _ in range(3))
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
        if share >= 0.8 * (share + others[function]) and samples[function] >= 3  # fewer may be chance
    }


def loops(snapshot: Snapshot) -> list[LineStats]:
    """Return the lines of forward passes in functions that loop in Python: without calls, with operators in between."""
    lines = [line for line in snapshot.lines_of_steps(FORWARD_PASS) if not line.inside]
    whole, turns = (defaultdict[tuple[str, str], float](float) for _ in range(2))
    for line in lines:
        whole[line.file, line.function] += _without_calls(line)
        turns[line.file, line.function] += line.called.get(PYTHON, 0.0)
    return [
        replace(line, share=_without_calls(line))
        for line in lines
        if _without_calls(line) and turns[line.file, line.function] >= LOOPS * whole[line.file, line.function]
    ]


def _without_calls(line: LineStats) -> float:
    """Return the share of a line without the functions that it calls: ``mask[i, j] = 0`` calls none."""
    return max(0.0, line.share - sum(share for name, share in line.called.items() if name != PYTHON))


def place_of_most(lines: Sequence[LineStats], snapshot: Snapshot) -> dict[str, str]:
    """Return the place with most of these lines' time, as evidence; empty where they have little time."""
    section = snapshot.sections.get(FORWARD_PASS)
    samples = sum(line.samples for line in snapshot.lines_of_steps(FORWARD_PASS))
    if section is None or samples < SAMPLES_NEEDED or sum(line.share for line in lines) < 0.2 * section.share:
        return {}
    places = [f"{place.place} {place.what}" for place in hottest_places(sorted(lines, key=lambda line: -line.share))]
    return {"lines": places[0]} if places else {}
