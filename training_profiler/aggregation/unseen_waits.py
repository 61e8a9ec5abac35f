"""Waits of the training for work elsewhere that is not sampled, from samples of lines."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from training_profiler.sampling.location import Location
from training_profiler.snapshot.loader_workers import UnseenWait
from training_profiler.snapshot.snapshot import SectionStats

SAMPLES_NEEDED: Final = 10  # of a wait; a share of fewer means little
MOST_WAITS: Final = 5


def unseen_waits(
    counts: Mapping[str, Counter[Location | None]], sections: Mapping[str, SectionStats]
) -> tuple[UnseenWait, ...]:
    """Return the waits for each such work with the line that waits longest, the longest wait first."""
    seen: dict[str, Counter[str]] = {}
    shares: dict[str, float] = {}
    of_loaders: Counter[str] = Counter()
    for name, samples in counts.items():
        if name not in sections or not samples:
            continue
        of_a_sample = sections[name].share / samples.total()
        for location, count in samples.items():
            if location is not None and location.waits_for:
                line = f"{location.file}:{location.line} {location.function}"
                seen.setdefault(location.waits_for, Counter())[line] += count
                shares[location.waits_for] = shares.get(location.waits_for, 0.0) + count * of_a_sample
                of_loaders[location.waits_for] += count if location.making else 0
    waits = [
        UnseenWait(what, lines.most_common(1)[0][0], shares[what], lines.total(), 2 * of_loaders[what] > lines.total())
        for what, lines in seen.items()
        if lines.total() >= SAMPLES_NEEDED
    ]
    return tuple(sorted(waits, key=lambda wait: (-wait.share, wait.what))[:MOST_WAITS])
