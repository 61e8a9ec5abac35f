"""What the final summary says of data loaders: what each of their batches costs, which is slow, how they mix."""

from collections.abc import Sequence
from typing import Final

from training_profiler.snapshot import LoaderFigures, Snapshot

TRAIN: Final = "train"
SLOW_RATIO: Final = 2.0  # times what a batch of the others takes on average
SLOW_SHARE: Final = 0.01  # of the run; less is not worth a sentence
SLOW_BATCHES: Final = 8  # of a loader before a mean is worth comparing: the first has to fill queues
MIX_POINTS: Final = 0.01  # a share may be off by one point, and
MIX_SIGMAS: Final = 3.0  # by what drawing loaders at random makes likely
_HEADERS: Final = (
    "loader",
    "batches",
    "samples",
    "data",
    "forward",
    "backward",
    "optimizer",
    "between",
    "share",
    "asked",
)


def loader_lines(snapshot: Snapshot, is_table: bool) -> list[str]:
    """Return a line for a single loader; for several a table, or a line each, and what stands out."""
    loaders = snapshot.loaders
    if len([loader for loader in loaders if loader.phase == TRAIN]) < 2:
        return [_sentence(loader) for loader in loaders]
    rows = [_HEADERS, *(_cells(loader) for loader in loaders)]
    kept = [at for at in range(len(_HEADERS)) if at < 2 or any(row[at] for row in rows[1:])]
    rows = [tuple(row[at] for at in kept) for row in rows]
    lines = _aligned(rows) if is_table else _greppable(rows)
    return [
        "Loaders (ms a batch; optimizer: an update; between: since the batch before):",
        *lines,
        *_slow(snapshot),
        *_mix(loaders),
    ]


def _sentence(loader: LoaderFigures) -> str:
    samples = f", {loader.samples} samples" if loader.samples else ""
    return f"Loader {_name(loader)}: {loader.batches} batches{samples}, {loader.wait_s:.2f}s of waiting"


def _name(loader: LoaderFigures) -> str:
    return loader.name if loader.phase == TRAIN else f"{loader.name} (validation)"


def _cells(loader: LoaderFigures) -> tuple[str, ...]:
    means = (
        loader.data_avg_s,
        loader.forward_avg_s,
        loader.backward_avg_s,
        loader.optimizer_avg_s,
        loader.batch_wait_avg_s,
    )
    return (
        _name(loader),
        str(loader.batches),
        "" if loader.samples is None else str(loader.samples),
        *("" if seconds is None else _ms(seconds) for seconds in means),
        "" if loader.proportion in (None, 1) else f"{loader.proportion:.1%}",
        "" if loader.asked_proportion is None else f"{loader.asked_proportion:.1%}",
    )


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.3f}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            f"{cell:<{width}}" if at == 0 else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _greppable(rows: list[tuple[str, ...]]) -> list[str]:
    return [
        f"loader {row[0]}: "
        + ", ".join(f"{header}={cell}" for header, cell in zip(rows[0][1:], row[1:], strict=True) if cell)
        for row in rows[1:]
    ]


def _slow(snapshot: Snapshot) -> list[str]:
    """Return a sentence on the loader that takes more than twice as long for a batch as the others do."""
    loaders = [one for one in snapshot.loaders if one.phase == TRAIN and one.data_avg_s is not None]
    waiting_s = sum(one.wait_s for one in loaders)
    for slow in sorted(loaders, key=lambda one: -one.wait_s)[:1]:
        others = [one for one in loaders if one is not slow]
        batches = sum(one.batches for one in others)
        if not batches or min(slow.batches, batches) < SLOW_BATCHES or slow.wait_s < SLOW_SHARE * snapshot.wall_s:
            return []
        others_s = sum(one.wait_s for one in others) / batches
        if slow.data_avg_s is None or slow.data_avg_s < SLOW_RATIO * others_s:
            return []
        of = others[0].name if len(others) == 1 else "the others"
        return [
            f"Loader {slow.name} is slow: {_ms(slow.data_avg_s)} ms a batch against {_ms(others_s)} ms of {of}; "
            f"it is {slow.wait_s / waiting_s:.0%} of the waiting"
        ]
    return []


def _mix(loaders: Sequence[LoaderFigures]) -> list[str]:
    """Return a sentence on whether the batches come in the proportions that were asked for."""
    asked = [one for one in loaders if one.phase == TRAIN and one.asked_proportion is not None]
    if not asked:
        return []
    batches = sum(one.batches for one in loaders if one.phase == TRAIN)
    off = [one for one in asked if _is_off(one, batches)]
    if off:
        told = ", ".join(f"{one.name} {one.proportion:.1%} instead of {one.asked_proportion:.1%}" for one in off)
        return [f"The mix differs from the one asked for: {told}"]
    return [f"The mix is {', '.join(f'{one.name} {one.proportion:.1%}' for one in asked)}, as asked"]


def _is_off(loader: LoaderFigures, batches: int) -> bool:
    if loader.proportion is None or loader.asked_proportion is None:
        return False
    share = loader.asked_proportion
    chance = MIX_SIGMAS * (share * (1 - share) / batches) ** 0.5
    is_off: bool = abs(loader.proportion - share) > max(MIX_POINTS, chance)
    return is_off
