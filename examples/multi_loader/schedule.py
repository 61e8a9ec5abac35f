"""Which loader the next batch comes from."""

import random
from collections.abc import Iterator, Sequence


def order(kind: str, lengths: Sequence[int], weights: Sequence[float], seed: int) -> Iterator[int]:
    """Yield the loaders of one epoch, as many batches as all loaders have together.

    Args:
        kind: ``round_robin`` takes them in turn, ``weighted`` draws one for each batch, ``sequential`` empties one
            after the other.
        lengths: how many batches each loader has.
        weights: of the draw, one a loader.
        seed: fixes the draw.
    """
    loaders, batches = range(len(lengths)), sum(lengths)
    if kind == "sequential":
        for loader in loaders:
            yield from [loader] * lengths[loader]
    elif kind == "weighted":
        yield from random.Random(seed).choices(loaders, weights, k=batches)
    else:
        yield from (at % len(lengths) for at in range(batches))


def proportions(kind: str, lengths: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Return the share of the batches that is to come from each loader."""
    parts: Sequence[float] = {"sequential": lengths, "weighted": weights}.get(kind, [1] * len(lengths))
    return [part / sum(parts) for part in parts]
