"""What each change that the advice names does to the losses: one table for fixes, trials and the guide."""

from enum import Enum
from typing import Final, NamedTuple


class Losses(Enum):
    """What to expect of the losses after a change."""

    EXACT = "same bit for bit"
    EXACT_IF = "same bit for bit, under a condition"
    CLOSE = "differ by rounding"
    CHANGES = "differ"


class Price(NamedTuple):
    """A row of the table."""

    change: str  # how code and advice write it: "fused=True"
    losses: Losses
    condition: str = ""  # under which they stay the same, or how they differ

    @property
    def text(self) -> str:
        """What happens to the losses, such as "same bit for bit, if samples draw no random numbers"."""
        known = Losses.EXACT if self.losses is Losses.EXACT_IF else self.losses
        return f"{known.value}, {self.condition}" if self.condition else known.value


NO_RANDOM: Final = "if samples draw no random numbers"
DROPOUT: Final = "and dropout draws other numbers"
PRICES: Final = (
    Price("num_workers", Losses.EXACT_IF, NO_RANDOM),
    Price(
        "persistent_workers",
        Losses.EXACT_IF,
        "if the program draws the number that starting workers drew, and samples draw none",
    ),
    Price("prefetch_factor", Losses.EXACT),
    Price("pin_memory", Losses.EXACT),
    Price("non_blocking", Losses.EXACT),
    Price("BatchSampler", Losses.EXACT),
    Price("set_num_threads", Losses.CLOSE),
    Price("foreach", Losses.EXACT_IF, "on the CPU"),
    Price("fused", Losses.CLOSE),
    Price("set_to_none", Losses.EXACT_IF, "if the program does not read gradients that are zero"),
    Price("channels_last", Losses.CLOSE, DROPOUT),
    Price("torch.compile", Losses.CLOSE, DROPOUT),
    Price("set_float32_matmul_precision", Losses.CHANGES, "about three digits of products"),
    Price("cudnn.benchmark", Losses.CLOSE, "and may differ from run to run"),
    Price("autocast", Losses.CHANGES, "bfloat16 has about two digits"),
    Price("gc.freeze", Losses.EXACT),
    Price("LD_PRELOAD", Losses.EXACT),
    Price("gradient_as_bucket_view", Losses.EXACT),
    Price("static_graph", Losses.EXACT_IF, "if each step uses the same parameters"),
    Price("bucket_cap_mb", Losses.CLOSE),
)
PRICE_OF: Final = {price.change: price for price in PRICES}
