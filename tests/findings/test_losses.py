"""Each fix of a rule about runs says what it does to the losses, from one table."""

import ast
from pathlib import Path

import pytest

from training_profiler import diagnosis
from training_profiler.findings.losses import PRICE_OF, PRICES, Losses, losses_text

# Fixes that name no change of the training: where to look, and what to do on the machine.
NO_CHANGE = (
    "check ",
    "look ",
    "nothing",
    "free memory",
    "fix ",
    "first fix",
    "use a machine",
    "batches are",
    "a different rank",
    "the usual switches",
)
FILLED_IN = (
    "X (X)",
    "X: X",
    "XX: X",
    "Use X, or X",
    "X.to(device, non_blocking=True); prefetch batches to the device",
)  # made of texts that are fixes themselves


def fixes() -> list[str]:
    """Return the texts in the rules that are given as a fix, with a placeholder for what a run fills in."""
    found = []
    for path in sorted(Path(diagnosis.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "fix":
                found.append(text_of(node.value))
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == "fix" for target in node.targets):
                found.append(text_of(node.value))
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_FIXES" and node.value is not None:
                found += [text_of(value) for value in node.value.values]
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_fix"):
                found += [text_of(each.value) for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
    return [text for text in found if len(text) > 2]


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return ""


def test_each_fix_has_its_price():
    assert len(fixes()) > 40
    unpriced = [
        fix
        for fix in fixes()
        if not losses_text(fix) and not fix.lower().startswith(NO_CHANGE) and fix not in FILLED_IN
    ]
    assert unpriced == []


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        ("Set DataLoader(num_workers=4), now 0", "same bit for bit, if samples draw no random numbers"),
        ("Pass foreach=True to Adam", "same bit for bit, on the CPU"),
        (
            "Pass fused=True to Adam, or accumulate gradients over several batches",
            "fused: differ by rounding; accumulated gradients: differ",
        ),
        ("More workers would not help: all 2 CPUs are busy", ""),
        ("Adam is fused already: train fewer parameters", "differ"),
        (
            "Validate or generate samples less often, on less data, or with a larger batch size",
            "same bit for bit, if it draws no random numbers",
        ),
        ("or average every n-th step with a decay to match", "same bit for bit, if no loss uses the average"),
        ("Validate less often, or with a larger batch size", "same bit for bit, if it draws no random numbers"),
        ("Save less often", "same bit for bit"),
    ],
)
def test_what_is_advised_is_what_is_priced(advice, expected):
    assert losses_text(advice) == expected


def test_rows_are_unique_and_conditions_are_those_of_their_kind():
    assert len(PRICE_OF) == len(PRICES)
    for price in PRICES:
        assert bool(price.condition) or price.losses is not Losses.EXACT_IF, price.change
        assert not price.condition or price.losses is not Losses.EXACT, price.change
