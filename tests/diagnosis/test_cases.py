"""Each rule says of the facts that fire it what it said before, and is silent about those that only look alike.

Facts are rows of ``cases.CASES``, and runs in ``SAYS`` and ``SILENT`` of the other modules, by rule and name. What the
rules say is in golden.json; ``make golden`` writes it.
"""

import json
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

import tests.diagnosis
from tests.diagnosis.cases import CASES, GOLDEN, finding_of, said
from training_profiler.snapshot.snapshot import Snapshot

MODULES = [
    import_module(f"tests.diagnosis.{module.name}")
    for module in iter_modules(tests.diagnosis.__path__)
    if module.name not in ("cases", "test_cases")
]
FIRES = [(rule, name) for rule, case in CASES.items() for name in case.fires]


def runs(table: str, of_cases: str) -> dict[str, tuple[str, Snapshot]]:
    """Return the runs of a table of all modules, each with its rule, by "rule: name"."""
    rows = [
        (rule, name, case.facts(**given))
        for rule, case in CASES.items()
        for name, given in getattr(case, of_cases).items()
    ]
    rows += [
        (rule, name, run)
        for module in MODULES
        for rule, named in getattr(module, table, {}).items()
        for name, run in named.items()
    ]
    found: dict[str, tuple[str, Snapshot]] = {}
    for rule, name, run in rows:
        assert f"{rule}: {name}" not in found, f"two rows of {rule} are called {name}"
        found[f"{rule}: {name}"] = (rule, run)
    return found


SAYS, SILENT = runs("SAYS", "fires"), runs("SILENT", "alike")


@pytest.mark.parametrize("name", SAYS)
def test_facts_that_fire_say_the_same_as_before(name: str) -> None:
    assert said(*SAYS[name]) == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", SILENT)
def test_facts_that_look_alike_are_silent(name: str) -> None:
    rule, run = SILENT[name]
    assert finding_of(rule, run) is None


@pytest.mark.parametrize(("rule", "name"), FIRES)
def test_a_rule_is_silent_below_its_threshold_in_few_steps_and_below_20_ms(rule: str, name: str) -> None:
    case, given = CASES[rule], CASES[rule].fires[name]
    run = case.facts(**given)
    share = next(value for key, value in finding_of(rule, run).evidence.items() if key.startswith("share_of"))
    for threshold, fires in ((share * 0.999, True), (share * 1.001, False)):
        assert (finding_of(rule, replace(run, thresholds={rule: threshold})) is not None) == fires, threshold
    assert finding_of(rule, case.facts(**given, steps=9)) is None
    if case.is_share_of_time:
        assert finding_of(rule, case.facts(**given, step_s=1e-5)) is None


def golden() -> dict[str, Any]:
    """Return what the rules say of all these runs, by rule and name."""
    return {name: said(rule, run) for name, (rule, run) in SAYS.items()}
