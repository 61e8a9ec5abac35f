"""Diagnosis: rules that read a snapshot and return findings: what is wrong, what it costs, how to fix it."""

from training_profiler.diagnosis.rules import THRESHOLDS, diagnose, epoch_warnings
from training_profiler.findings.finding import Finding

__all__ = ["THRESHOLDS", "Finding", "diagnose", "epoch_warnings"]
