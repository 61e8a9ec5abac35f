"""Rules and findings, of runs and of traces; the rules about a run. Never: read anything but a snapshot."""

from training_profiler.diagnosis.finding import Finding
from training_profiler.diagnosis.rules import THRESHOLDS, diagnose, epoch_warnings

__all__ = ["THRESHOLDS", "Finding", "diagnose", "epoch_warnings"]
