"""A rule is registered once, by the decorator, and fires by the threshold that holds."""

from training_profiler.diagnosis.finding import Finding
from training_profiler.diagnosis.registry import Registry, Rule


def above(number, threshold):
    return Finding("above", f"{number} > {threshold}", {}, 0.0, "") if number > threshold else None


def test_default_threshold_holds_without_override():
    rule = Registry(Rule).rule("above", threshold=3)(above)
    assert rule(3) is None
    assert rule(4).message == "4 > 3"


def test_overridden_threshold_wins():
    rule = Registry(Rule).rule("above", threshold=3)(above)
    assert rule(4, {"above": 5}) is None
    assert rule(2, {"above": 1}).message == "2 > 1"


def test_thresholds_are_the_defaults_by_code():
    registry = Registry(Rule)
    registry.rule("above", threshold=3)(above)
    assert dict(registry.thresholds()) == {"above": 3}
