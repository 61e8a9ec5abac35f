"""What DistributedDataParallel says of its exchange of gradients, and of which steps ranks tell it one by one."""

from typing import Final, NamedTuple

BLOCK_STEPS: Final = 16  # steps in a row that ranks compare
MOST_BLOCKS: Final = 8


class GradientSyncTotals(NamedTuple):
    """Exchanges of gradients since they were asked for last; ns."""

    exchanges: int = 0
    sampled: int = 0  # of how many DDP took the times; the others are taken to be like these
    total_ns: int = 0  # of all of them: from the first bucket's begin to the last one's end
    hidden_ns: int = 0  # of that, while gradients were still computed
    is_on_host: bool = True  # the backward pass waits for it on the host, so the rest is part of that
    of_steps: tuple[tuple[int, int], ...] = ()  # (step counted from 0, ns exposed) of single ones

    @property
    def exposed_ns(self) -> int:
        """The time by which exchange makes the backward pass longer."""
        return max(0, self.total_ns - self.hidden_ns)


def is_compared(step: int) -> bool:
    """Return whether ``step``, counted from 0, is one that ranks compare one by one.

    Steps come in blocks of 16. At first each is compared; whenever there would be more than 8 of them, every other
    is left out, also of those to come. Which ones are left depends on the step's number alone, so that ranks that are
    at different steps hold the same.
    """
    block = step // BLOCK_STEPS
    return block % block_stride(block + 1) == 0


def block_stride(blocks: int) -> int:
    """Return the power of two whose multiples are kept of so many blocks: the smallest that leaves at most 8."""
    return 1 << max(0, (blocks - 1) // MOST_BLOCKS).bit_length()
