"""What the final summary says of data loaders: what each of their batches costs, which is slow, how they mix."""

from typing import Final

from training_profiler.diagnosis.loaders import loader_mix, loader_slow
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot

TRAIN: Final = "train"
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
        *_findings(snapshot),
    ]


def _sentence(loader: LoaderStats) -> str:
    samples = f", {loader.samples} samples" if loader.samples else ""
    return f"Loader {_name(loader)}: {loader.batches} batches{samples}, {loader.wait_s:.2f}s of waiting"


def _name(loader: LoaderStats) -> str:
    return loader.name if loader.phase == TRAIN else f"{loader.name} (validation)"


def _cells(loader: LoaderStats) -> tuple[str, ...]:
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


def _findings(snapshot: Snapshot) -> list[str]:
    """Return a sentence on the loader that is slow, and one on whether the mix is the one asked for."""
    slow, mix = (rule(snapshot, snapshot.thresholds) for rule in (loader_slow, loader_mix))
    lines = [_capitalized(found.message) for found in (slow, mix) if found is not None]
    asked = [one for one in snapshot.loaders if one.phase == TRAIN and one.asked_proportion is not None]
    if asked and mix is None:
        lines.append(f"The mix is {', '.join(f'{one.name} {one.proportion:.1%}' for one in asked)}, as asked")
    return lines


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
