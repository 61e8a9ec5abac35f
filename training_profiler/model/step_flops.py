"""The computation of a training step, as counted in one step."""

from typing import NamedTuple


class StepFlops(NamedTuple):
    """The floating-point operations of one step."""

    flops: int  # as executed, so recomputation by checkpointing counts too
    dtype: str  # of most of them: float32, bfloat16, ..., or tf32
    device: str  # name of the accelerator of most of them; "" for none or several
    attention: str = ""  # torch's kernel of most attention; "" for none
