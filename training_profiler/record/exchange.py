"""What DistributedDataParallel says of its exchange of gradients."""

from typing import NamedTuple


class Exchanged(NamedTuple):
    """Exchanges of gradients since they were asked for last; ns."""

    exchanges: int = 0
    sampled: int = 0  # of how many DDP took the times; the others are taken to be like these
    total_ns: int = 0  # of all of them: from the first bucket's begin to the last one's end
    hidden_ns: int = 0  # of that, while gradients were still computed
    is_on_host: bool = True  # the backward pass waits for it on the host, so the rest is part of that

    @property
    def exposed_ns(self) -> int:
        """The time by which exchange makes the backward pass longer."""
        return max(0, self.total_ns - self.hidden_ns)
