"""Gradient synchronization as DistributedDataParallel reports it, and the steps that ranks compare one by one."""

from collections.abc import Iterator
from typing import Final, NamedTuple

BLOCK_STEPS: Final = 16  # steps in a row that ranks compare
MOST_BLOCKS: Final = 8


class GradientSyncTotals(NamedTuple):
    """Gradient synchronization since the last drain; ns."""

    exchanges: int = 0
    sampled: int = 0  # how many of them DDP timed; the others are assumed to be alike
    total_ns: int = 0  # of all: from the begin of the first bucket to the end of the last
    hidden_ns: int = 0  # the part of that in which gradients were still being computed
    is_on_host: bool = True  # the backward pass waits for it on the host and contains the rest
    of_steps: tuple[tuple[int, int], ...] = ()  # (step counted from 0, exposed ns) of the compared steps

    @property
    def exposed_ns(self) -> int:
        """The time by which synchronization makes the backward pass longer."""
        return max(0, self.total_ns - self.hidden_ns)


def is_compared(step: int) -> bool:
    """Return whether ranks compare ``step``, counted from 0, one by one.

    Steps come in blocks of 16. At first every block is compared. Whenever there would be more than 8 blocks, every
    other one is left out, of past and future blocks. The choice depends on the step's number alone, so ranks at
    different steps keep the same blocks.
    """
    block = step // BLOCK_STEPS
    return block % block_stride(block + 1) == 0


def compared_blocks(first_step: int, end: int) -> Iterator[int]:
    """Return the first steps of the compared blocks that have a part among the steps from ``first_step`` to ``end``."""
    first = first_step // BLOCK_STEPS
    stride = block_stride(first + 1)  # later ones are as far apart at least
    blocks = range(-(-first // stride) * stride * BLOCK_STEPS, end, stride * BLOCK_STEPS)
    return filter(is_compared, blocks)


def block_stride(blocks: int) -> int:
    """Return the stride between kept blocks: the smallest power of two that leaves at most 8 of ``blocks``."""
    return 1 << max(0, (blocks - 1) // MOST_BLOCKS).bit_length()
