"""Diagnosis: rules that read a snapshot and say what to change, and what that is worth."""

from training_profiler.diagnosis.rules import THRESHOLDS, diagnose, epoch_warnings
from training_profiler.findings.finding import Finding

__all__ = ["THRESHOLDS", "Finding", "diagnose", "epoch_warnings"]
