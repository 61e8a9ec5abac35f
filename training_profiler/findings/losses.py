"""What a change does to the losses of a training."""

from enum import Enum


class Losses(Enum):
    """What to expect of the losses after a change; a trial compares them step by step."""

    EXACT = "the losses stay the same, bit for bit"
    EXACT_IF = "the losses stay the same, bit for bit, under a condition"
    CLOSE = "the losses change by rounding"
    CHANGES = "the losses change"
