"""Each rule says of the facts that fire it what it said before, and is silent about those that only look alike."""

import json
from dataclasses import replace

import pytest

from tests.diagnosis.cases import CASES, GOLDEN, finding_of, said

FIRES = [(rule, name) for rule, case in CASES.items() for name in case.fires]
ALIKE = [(rule, name) for rule, case in CASES.items() for name in case.alike]


@pytest.mark.parametrize(("rule", "name"), FIRES)
def test_facts_that_fire_say_the_same_as_before(rule, name):
    assert said(rule, CASES[rule].fires[name]) == json.loads(GOLDEN.read_text(encoding="utf-8"))[f"{rule}: {name}"]


@pytest.mark.parametrize(("rule", "name"), ALIKE)
def test_facts_that_look_alike_are_silent(rule, name):
    assert finding_of(rule, CASES[rule].facts(**CASES[rule].alike[name])) is None


@pytest.mark.parametrize(("rule", "name"), FIRES)
def test_a_rule_is_silent_below_its_threshold_in_few_steps_and_below_20_ms(rule, name):
    case, given = CASES[rule], CASES[rule].fires[name]
    run = case.facts(**given)
    share = next(value for key, value in finding_of(rule, run).evidence.items() if key.startswith("share_of"))
    for threshold, fires in ((share * 0.999, True), (share * 1.001, False)):
        assert (finding_of(rule, replace(run, thresholds={rule: threshold})) is not None) == fires, threshold
    assert finding_of(rule, case.facts(**given, steps=9)) is None
    if case.is_share_of_time:
        assert finding_of(rule, case.facts(**given, step_s=1e-5)) is None
