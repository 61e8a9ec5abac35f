"""A rule is registered once, by the decorator, and fires by the threshold that holds."""

import pytest

from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Registry, Rule, Saving


def above(number, threshold):
    return Finding("above", f"{number} > {threshold}", {}, 0.0, "") if number > threshold else None


def test_decorator_registers_a_rule():
    registry = Registry(Rule)
    rule = registry.rule("above", threshold=3, saving=Saving.RUN)(above)
    assert list(registry) == [rule] == [Rule("above", 3, above, Saving.RUN)]


def test_default_threshold_holds_without_override():
    rule = Registry(Rule).rule("above", threshold=3)(above)
    assert rule(3) is None
    assert rule(4).message == "4 > 3"


def test_overridden_threshold_wins():
    rule = Registry(Rule).rule("above", threshold=3)(above)
    assert rule(4, {"above": 5}) is None
    assert rule(2, {"above": 1}).message == "2 > 1"


def test_findings_come_in_order_of_registration():
    registry = Registry(Rule)
    for code in ("b", "a", "c"):
        registry.add(Rule(code, 0, lambda number, threshold, code=code: Finding(code, "", {}, 0.0, "")))
    assert [finding.code for finding in registry.findings(1)] == ["b", "a", "c"]


def test_silent_rules_give_no_finding():
    registry = Registry(Rule)
    registry.rule("above", threshold=3)(above)
    assert registry.findings(1) == []


def test_thresholds_are_the_defaults_by_code():
    registry = Registry(Rule)
    registry.rule("above", threshold=3)(above)
    assert dict(registry.thresholds()) == {"above": 3}


def test_a_code_is_registered_once():
    registry = Registry(Rule)
    registry.rule("above", threshold=3)(above)
    with pytest.raises(AssertionError, match="two rules are called above"):
        registry.rule("above", threshold=4)(above)
