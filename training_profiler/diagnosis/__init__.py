"""Diagnosis: rules that read a snapshot and say what to change, and what that is worth."""

from training_profiler.diagnosis.rules import THRESHOLDS, diagnose, epoch_warnings
from training_profiler.findings.insight import Insight

__all__ = ["THRESHOLDS", "Insight", "diagnose", "epoch_warnings"]
