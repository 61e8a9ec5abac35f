"""The phases of forward and backward passes that rules are about, beside those of trainers."""

from typing import Final

ANOMALIES: Final = "anomaly detection"  # a forward pass keeps its stack for each operation
BACKWARD_HOOK: Final = "backward hook"
FORWARD_HOOK: Final = "forward hook"
RECOMPUTATION: Final = "recomputation"  # a forward pass that activation checkpointing repeats in the backward pass
CUSTOM_BACKWARD: Final = "custom backward"  # written in Python
OF_PASSES: Final = (ANOMALIES, BACKWARD_HOOK, FORWARD_HOOK, RECOMPUTATION, CUSTOM_BACKWARD)
