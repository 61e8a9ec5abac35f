"""Each rule says of the runs that fire it what it said before, and is silent about those that only look alike.

The modules of this folder have these runs in ``SAYS`` and ``SILENT``, by rule and name. What the rules say is in
golden.json. After a change of a text:

    python -m tests.diagnosis.test_cases     # or: make golden
"""

import json
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import tests.diagnosis
from tests.diagnosis.test_machine_rules import machine
from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.registry import RULES, Saving, cost_of_run, cost_of_steps, section_of
from training_profiler.model.snapshot import Snapshot
from training_profiler.reports.verdict import verdict

GOLDEN = Path(__file__).with_name("golden.json")
MODULES = [
    import_module(f"tests.diagnosis.{module.name}")
    for module in iter_modules(tests.diagnosis.__path__)
    if module.name != "test_cases"
]


def runs(table: str) -> dict[str, tuple[str, Snapshot]]:
    """Return the runs of a table of all modules, each with its rule, by "rule: name"."""
    found: dict[str, tuple[str, Snapshot]] = {}
    for module in MODULES:
        for rule, named in getattr(module, table, {}).items():
            for name, run in named.items():
                assert f"{rule}: {name}" not in found, f"two runs of {rule} are called {name}"
                found[f"{rule}: {name}"] = (rule, run)
    return found


SAYS, SILENT = runs("SAYS"), runs("SILENT")
# What a rule compares with its threshold, by the name in its evidence.
FIGURES = (
    *("share_of_step", "share_of_run", "share_of_samples", "waiting_share", "lost_share", "ram_share", "memory_share"),
    *("coefficient_of_variation", "ratio", "rise", "others"),
)
# These compare something else, or a part of it.
OTHER_FIGURES = {
    *("first-batch-slow", "forward-dominates", "gpu-memory-low", "outside-steps", "page-faults", "unexplained"),
}
# These say something of few steps as well.
OF_FEW_STEPS = {
    *("loader-slow", "loader-mix", "first-batch-slow", "host-memory", "gpu-memory-high", "memory-growth"),
    *("memory-rises-since", "slow-startup", "warm-up", "machine-busy", "cpu-oversubscribed", "recompiles"),
    *(
        "compile-limit",
        "graph-breaks",
        "kept-graphs",
        "rank-silent",
        "validation-with-gradients",
        "workers-copy-memory",
    ),
}
STEP_RULES = {rule.code for rule in RULES} - OF_FEW_STEPS
RULES_ABOUT_TIME = {rule.code for rule in RULES} - {"gpu-utilization", "shared-gpu", "slow-startup", "unused-imports"}

# These compare seconds with a fixed time, or take the time that was lost off themselves.
OF_ABSOLUTE_TIMES = {"slow-startup", "unused-imports", "short-epochs", "growing-work", "lock-held-by-thread"}


def figure_of(rule: str, name: str) -> str:
    """Return the name of what a rule compares with its threshold in a run; "" where that is not in its evidence."""
    if RULES.get(rule) is None or rule in OTHER_FIGURES:
        return ""
    run = SAYS[name][1]
    return next((figure for figure in FIGURES if figure in RULES[rule](run, run.thresholds).evidence), "")


def in_part_of_the_time(value: Any, part: float, name: str = "") -> Any:
    """Return a run, or a field of one, with this part of all times: of fields called ``..._s`` or ``seconds``."""
    if isinstance(value, float):
        return value * part if name.endswith("_s") or name == "seconds" else value
    if is_dataclass(value):
        each = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: in_part_of_the_time(inner, part, name) for name, inner in each.items()})
    if isinstance(value, dict):
        return {key: in_part_of_the_time(inner, part, name) for key, inner in value.items()}
    if isinstance(value, tuple):
        names = getattr(value, "_fields", [name] * len(value))
        inner = [in_part_of_the_time(each, part, name) for each, name in zip(value, names, strict=True)]
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    return value


def finding_of(rule: str, run: Snapshot) -> Finding | None:
    """Return the finding of a rule in a run, beside all others; None without one."""
    return next((finding for finding in diagnose(run) if finding.code == rule), None)


def said(rule: str, run: Snapshot) -> dict[str, Any]:
    """Return what the rules say of a run, as golden.json has it: above all this one, whatever is left of it there."""
    finding = finding_of(rule, run) or RULES[rule](run, run.thresholds)
    assert finding is not None, f"{rule} finds nothing"
    findings = diagnose(run)
    return {
        "verdict": verdict(run, findings).headline,
        "findings": ", ".join(f"{each.code} {each.potential_saving_s:.6f} s" for each in findings),
        "message": finding.message,
        "evidence": ", ".join(
            f"{name}: {round(value, 6) if isinstance(value, float) else value}"
            for name, value in finding.evidence.items()
        ),
        "range": " .. ".join(f"{seconds:.6f} s" for seconds in finding.saving_range_s or ()),
        "step": f"{finding.step_s or 0:.6f} s, {finding.step_if_fixed_s or 0:.6f} s without it",
        "section": section_of(finding),
        "fix": finding.fix,
        "actions": " | ".join(f"{action.text} ({action.part:.2f})" for action in finding.actions),
        "losses": finding.losses,
    }


@cache
def golden() -> dict[str, Any]:
    """Return what the rules said before, by the run."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_all_that_was_said_has_a_run() -> None:
    assert golden().keys() == SAYS.keys()


def test_no_action_is_to_look_for_something() -> None:
    assert not [name for name, run in golden().items() if "Look for" in run["actions"]]


@pytest.mark.parametrize("name", SAYS)
def test_runs_that_fire_say_the_same_as_before(name: str) -> None:
    assert said(*SAYS[name]) == golden()[name]


@pytest.mark.parametrize("name", SILENT)
def test_runs_that_look_alike_are_silent(name: str) -> None:
    assert finding_of(*SILENT[name]) is None


@pytest.mark.parametrize("name", [name for name, (rule, _) in SAYS.items() if figure_of(rule, name)])
def test_a_rule_is_silent_from_its_threshold_on(name: str) -> None:
    rule, run = SAYS[name]
    figure = float(RULES[rule](run, run.thresholds).evidence[figure_of(rule, name)])
    for threshold, fires in ((figure * 0.999, True), (figure * 1.001, False)):
        assert (RULES[rule](run, {rule: threshold}) is not None) == fires, threshold


@pytest.mark.parametrize("name", [name for name, (rule, _) in SAYS.items() if rule in STEP_RULES])
def test_a_rule_about_steps_is_silent_about_nine(name: str) -> None:
    rule, run = SAYS[name]
    nine = replace(run, step=replace(run.step, settled_count=9, settled_s=0.5))
    assert RULES[rule](nine, run.thresholds) is None


@pytest.mark.parametrize("name", [name for name, (rule, _) in SAYS.items() if rule in RULES_ABOUT_TIME])
def test_a_rule_is_silent_about_a_few_milliseconds(name: str) -> None:
    rule, run = SAYS[name]
    saving_s = RULES[rule](run, run.thresholds).potential_saving_s
    assert not saving_s or RULES[rule](in_part_of_the_time(run, 0.005 / saving_s), run.thresholds) is None


STRETCHED = RULES_ABOUT_TIME - OF_ABSOLUTE_TIMES - {rule.code for rule in RULES if rule.is_uneven}


@pytest.mark.parametrize("name", [name for name, (rule, run) in SAYS.items() if rule in STRETCHED and not run.machine])
def test_a_fix_saves_the_same_part_of_a_run_on_a_busy_machine(name: str) -> None:
    rule, run = SAYS[name]
    busy = replace(in_part_of_the_time(run, 1 / 0.4), machine=machine(wait=0.6))
    alone, beside = (finding_of(rule, each) or Finding(rule, "", {}) for each in (run, busy))
    waits = RULES[rule].saving is Saving.STEPS and section_of(alone) in (None, "synchronization")
    kept = 0.4 if waits or (RULES[rule].is_of_host and run.device is not None) else 1.0
    saving_s, least_s = beside.potential_saving_s, kept * alone.potential_saving_s / 0.4
    assert least_s - 0.005 * busy.wall_s <= saving_s <= least_s + 0.04 * busy.wall_s


@pytest.mark.parametrize("cost_of", [cost_of_steps, cost_of_run])
def test_what_costs_less_than_20_ms_is_not_reported(cost_of) -> None:
    run = snapshot_of({"forward_pass": 0.5})
    assert not cost_of(run, 0.0, 0.0199).is_worth_saying
    assert cost_of(run, 0.0, 0.02).is_worth_saying


if __name__ == "__main__":
    in_order = [name for name in golden() if name in SAYS]  # new ones come last
    says = {name: said(*SAYS[name]) for name in dict.fromkeys([*in_order, *SAYS])}
    GOLDEN.write_text(json.dumps(says, indent=1) + "\n", encoding="utf-8")
