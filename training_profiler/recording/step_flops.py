"""What a training step computes, as counted in one of them."""

from typing import NamedTuple


class StepFlops(NamedTuple):
    """The floating-point operations of one step."""

    flops: int  # as executed: what checkpointing computes again counts again
    dtype: str  # of most of them: float32, bfloat16, ..., or tf32
    device: str  # name of the accelerator that did most of them; "" where it was none, or several
    attention: str = ""  # torch's kernel that did most attention; "" where none was seen
