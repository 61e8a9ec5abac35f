"""Diagnosis: rules that read a snapshot and say what to change, and what that is worth."""

from training_profiler.diagnosis.insight import Insight
from training_profiler.diagnosis.rules import THRESHOLDS, diagnose, epoch_warnings

__all__ = ["THRESHOLDS", "Insight", "diagnose", "epoch_warnings"]
