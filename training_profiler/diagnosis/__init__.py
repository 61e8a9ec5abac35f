"""The rules about a run. Never: read anything but a snapshot."""

from training_profiler.diagnosis.rules import THRESHOLDS, diagnose, epoch_warnings
from training_profiler.findings.finding import Finding

__all__ = ["THRESHOLDS", "Finding", "diagnose", "epoch_warnings"]
