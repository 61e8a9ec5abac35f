"""Data loaders in the final summary: the cost of their batches, which one is slow, and how they mix."""

from collections.abc import Mapping
from typing import Final

from training_profiler.base.units import MS_PER_S, bytes_text, counted, duration_text, ms_text
from training_profiler.diagnosis.loaders import loader_mix, loader_slow
from training_profiler.model.loader_workers import IDLE
from training_profiler.reports.layout import Layout, column_width, shortened, table
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot, WorkerStats

TRAIN: Final = "train"
MIN_NAME_WIDTH: Final = 8
WORKER_LINES: Final = 5  # shown of each loader
UNSEEN_FROM: Final = 0.01  # of the run
LIKE_TIMED: Final = 0.05  # of the workers' time
SEEN_FROM: Final = 30  # batches; the workers of a shorter run may not have been seen yet
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
_IN_TABLES: Final = {
    "data": "data\n(ms)",
    "forward": "fwd\n(ms)",
    "backward": "bwd\n(ms)",
    "optimizer": "opt\n(ms)",
    "between": "between\n(ms)",
}


def loader_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return a line for a single training loader; for several a table, or a line each, and what stands out."""
    loaders = snapshot.loaders
    in_workers = [line for loader in loaders for line in _worker_lines(loader, layout)]
    in_workers += [*_making(snapshot, layout), *_unseen(snapshot, layout)]
    if len([loader for loader in loaders if loader.phase == TRAIN]) < 2:
        return [*(line for loader in loaders for line in layout.wrap(_sentence(loader))), *in_workers]
    rows = [_HEADERS, *(_cells(loader) for loader in loaders)]
    kept = [column for column in range(len(_HEADERS)) if column < 2 or any(row[column] for row in rows[1:])]
    rows = [tuple(row[column] for column in kept) for row in rows]
    lines = _greppable(rows) if layout.is_lines else _table(rows, layout)
    return [
        *layout.wrap("DataLoaders (per batch; opt: per update; between: since the previous batch):"),
        *lines,
        *(line for sentence in _findings(snapshot) for line in layout.wrap(sentence)),
        *in_workers,
    ]


def _sentence(loader: LoaderStats) -> str:
    batches = "1 batch" if loader.batches == 1 else f"{loader.batches} batches"
    samples = f", {counted(loader.samples, 'sample')}" if loader.samples else ""
    return f"DataLoader {loader_name(loader)}: {batches}{samples}, {duration_text(loader.wait_s)} waiting"


def _worker_lines(loader: LoaderStats, layout: Layout) -> list[str]:
    """Return what the workers of a loader did: how busy they were, the phases, and the lines with most of the work."""
    workers = loader.workers
    if workers is None:
        seen = f"Workers of loader {loader_name(loader)}: no figures of what they do"
        # Detected loaders have numbers; loaders with names are of a program that marks them: no worker is looked at.
        is_known = loader.num_workers and loader.name.isdecimal()
        is_worth_a_line = is_known and loader.phase == TRAIN and loader.batches >= SEEN_FROM
        return layout.wrap(seen) if is_worth_a_line else []
    queued = f", {ms_text(workers.queued_avg_s)} of it waiting for a CPU" if workers.queued_avg_s else ""
    sentences = [
        f"Workers of loader {loader_name(loader)}: busy {workers.busy:.0%} of their time; a batch takes "
        f"{ms_text(workers.batch_avg_s)}{queued} ({ms_text(workers.cpu_avg_s)} of CPU time, longest "
        f"{ms_text(workers.batch_max_s)})"
    ]
    if workers.phases and _agree(workers):
        sentences.append(f"Their time: {_shares(workers.phases)}")
    if workers.held:
        sentences.append(f"In {workers.held:.0%} of the waiting for a batch, later batches were ready")
    if workers.pinning:
        sentences.append(f"In {workers.pinning:.0%} of the waiting for a batch, the pin-memory thread copied one")
    if workers.memory_bytes is not None:
        growth = workers.memory_growth_bytes or 0
        grown = f", {bytes_text(growth)} more than at first" if growth > 0 else ""
        sentences.append(f"Memory of the largest worker: {bytes_text(workers.memory_bytes)}{grown}")
    lines = [line for sentence in sentences for line in layout.wrap(sentence)]
    for line in workers.lines[:WORKER_LINES]:
        text = f"{line.place}  {line.what}"
        end = f"  {line.phase:<9} {line.share:6.1%}"
        lines.append(f"  {shortened(text, layout.width - len(end) - 2):<{layout.width - len(end) - 2}}{end}")
    return lines


def _agree(workers: WorkerStats) -> bool:
    """Return whether samples show about as much work as was timed. Of workers that live shortly, they show little.

    Their sampling begins with the first batches, and may be rarer then: chance is two standard errors.
    """
    at_work = 1 - workers.phases.get(IDLE, 0.0)
    chance = 2 * (workers.busy * (1 - workers.busy) / workers.samples) ** 0.5 if workers.samples else 1.0
    return abs(at_work - workers.busy) <= max(chance, LIKE_TIMED)


def _making(snapshot: Snapshot, layout: Layout) -> list[str]:
    if not snapshot.making:
        return []
    return layout.wrap(f"Making batches in the training itself: {_shares(snapshot.making)}")


def _unseen(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return a line for each work elsewhere that the training waits for: its lines are not sampled.

    A queue in front of a data loader of torch is not named, because the loader's workers are observed.
    """
    has_loader = any(loader.num_workers is not None for loader in snapshot.loaders)
    return [
        line
        for wait in snapshot.unseen
        if wait.share >= UNSEEN_FROM and (wait.in_loader or not has_loader)
        for line in layout.wrap(
            f"Not sampled: the training spends {wait.share:.1%} of the run in {wait.what}, at {wait.line}; what runs "
            "behind it has no lines here"
        )
    ]


def _shares(phases: Mapping[str, float]) -> str:
    return ", ".join(f"{phase} {share:.1%}" for phase, share in phases.items())


def loader_name(loader: LoaderStats) -> str:
    """Return a loader's name, and whether it is one of validation."""
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
        loader_name(loader),
        str(loader.batches),
        "" if loader.samples is None else str(loader.samples),
        *("" if seconds is None else _ms(seconds) for seconds in means),
        "" if loader.proportion in (None, 1) else f"{loader.proportion:.1%}",
        "" if loader.asked_proportion is None else f"{loader.asked_proportion:.1%}",
    )


def _ms(seconds: float) -> str:
    ms = seconds * MS_PER_S
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.3f}"


def _table(rows: list[tuple[str, ...]], layout: Layout) -> list[str]:
    headers, *cells = rows
    headers = tuple(_IN_TABLES.get(header, header) for header in headers)
    columns = list(zip(*cells, strict=True))
    fixed = sum(column_width(header, column) for header, column in zip(headers[1:], columns[1:], strict=True))
    room = max(MIN_NAME_WIDTH, layout.width - fixed)
    return table(headers, [(shortened(name, room), *rest) for name, *rest in cells])


def _greppable(rows: list[tuple[str, ...]]) -> list[str]:
    return [
        f"loader {row[0]}: "
        + ", ".join(f"{header}={cell}" for header, cell in zip(rows[0][1:], row[1:], strict=True) if cell)
        for row in rows[1:]
    ]


def _findings(snapshot: Snapshot) -> list[str]:
    """Return a sentence on the slow loader, and one on whether the mix is the requested one."""
    slow, mix = (rule(snapshot, snapshot.thresholds) for rule in (loader_slow, loader_mix))
    lines = [_capitalized(finding.message) for finding in (slow, mix) if finding is not None]
    asked = [loader for loader in snapshot.loaders if loader.phase == TRAIN and loader.asked_proportion is not None]
    if asked and mix is None:
        lines.append(f"The mix is {', '.join(f'{loader.name} {loader.proportion:.1%}' for loader in asked)}, as asked")
    return lines


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
