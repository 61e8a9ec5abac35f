"""Synchronization of single steps, the same ones on every rank, so that ranks can be compared step by step."""

from collections.abc import Iterable, Mapping

from training_profiler.record.exchange import BLOCK_STEPS, block_stride, is_compared
from training_profiler.statistics.histogram import Ints
from training_profiler.statistics.rank_sums import UNKNOWN_NS


class CompareBook:
    """The steps that all ranks compare, as far as this rank has made them; at most 8 blocks of 16."""

    def __init__(self) -> None:
        self._seen: dict[int, list[int | None]] = {}  # first step -> what seams saw, of steps that are complete
        self._exchanged: dict[int, dict[int, int]] = {}  # first step -> {step in the block: exposed exchange}
        self._last_exchanged = -1

    def add(self, rows: Mapping[int, Ints], sync_id: int, exchanged: Iterable[tuple[int, int]]) -> None:
        """Add exclusive times of complete steps, of which column ``sync_id`` counts, and exchange that was read.

        Exchange of a step is known a step later, and may come after the step's own times.
        """
        for step, row in rows.items():
            first = step - step % BLOCK_STEPS
            ns = int(row[sync_id]) if 0 < sync_id < len(row) else 0
            self._seen.setdefault(first, [None] * BLOCK_STEPS)[step - first] = ns
        for step, ns in exchanged:
            self._last_exchanged = max(self._last_exchanged, step)
            if is_compared(step):
                first = step - step % BLOCK_STEPS
                of_block = self._exchanged.setdefault(first, {})
                of_block[step - first] = of_block.get(step - first, 0) + ns
        blocks = 1 + max([*self._seen, *self._exchanged], default=0) // BLOCK_STEPS
        stride = BLOCK_STEPS * block_stride(blocks)
        for first in [first for first in (*self._seen, *self._exchanged) if first % stride]:
            self._seen.pop(first, None)
            self._exchanged.pop(first, None)

    def told(self) -> dict[int, list[int]]:
        """Return the whole blocks: first step -> synchronization of 16 steps, -1 where it is not known.

        Where DDP exchanges, a step without a word of that is not known to have had none.
        """
        told = {}
        for first, seen in self._seen.items():
            if None in seen:
                continue
            if self._last_exchanged < 0:
                told[first] = [ns or 0 for ns in seen]
            elif self._last_exchanged >= first + BLOCK_STEPS - 1:
                exchanged = self._exchanged.get(first, {})
                told[first] = [
                    (ns or 0) + exchanged[at] if at in exchanged else UNKNOWN_NS for at, ns in enumerate(seen)
                ]
        return told
