"""Sections disappear inside ``torch.compile``: they cause no graph break and no recompilation."""

from pathlib import Path

import pytest

from tests.system.scripts import ORDERS, run, run_forked
from training_profiler.settings.settings import NATIVE

SCRIPT = """
{imports}
torch._dynamo.config.error_on_recompile = True

@profile_section("decorated")
def inner(x):
    return x.cos()

def f(x):
    with profile_section("outer"):
        with profile_section("inner"):
            x = x.sin()
        return inner(x)

x = torch.linspace(0, 1, 8, requires_grad=True)
for backend in ("eager", "aot_eager"):
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend=backend)
    first = compiled(x)
    with profile_section("eager between two calls"):
        assert torch.equal(first, f(x))
    start_training_profiling(stream="stderr")
    for _ in range(3):
        y = compiled(x)
        y.sum().backward()
        profile_step()
    assert torch.equal(first, y)
    stop_training_profiling()
    assert torch.equal(compiled(x), y)
    start_training_profiling(stream="stderr")
    assert torch.equal(compiled(x), y)
print(torch._dynamo.explain(f)(x).graph_break_count, dict(torch._dynamo.utils.counters["graph_break"]))
"""


@pytest.mark.parametrize(
    ("order", "profile", "native"),
    [
        ("before torch", "1", "1"),
        pytest.param("before torch", "1", "0", marks=pytest.mark.programs),
        pytest.param("after torch", "1", "1", marks=pytest.mark.programs),
        pytest.param("before torch", "0", "1", marks=pytest.mark.programs),
        pytest.param("after torch", "0", "1", marks=pytest.mark.programs),
    ],
)
def test_sections_inside_a_compiled_function_cost_no_graph_break(
    tmp_path: Path, order: str, profile: str, native: str
) -> None:
    script = SCRIPT.replace("{imports}", ORDERS[order])
    starts = run if order == "before torch" else run_forked
    outcome = starts(tmp_path, script, profile=profile, variables={NATIVE: native})
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout == "0 {}\n"
    if profile == "1":
        assert "sections inside compiled code are not recorded" in outcome.stderr
        reports = "".join((folder / "report.json").read_text() for folder in outcome.folders)
        assert (f"{NATIVE} refuses the recorder in C" in reports) == (native == "0")


LATE = """
import torch
from training_profiler import *

def asks():
    return not any(cell.cell_contents is None for cell in profile_section.__closure__)

def f(x):
    with profile_section("inside"):
        return x.sin()

start_training_profiling(stream="stderr")
torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)  # imports dynamo
asked = [asks()]
x = torch.linspace(0, 1, 8)
for _ in range(5):
    with profile_section("eager"):
        f(x)
    profile_step()
torch._dynamo.config.error_on_recompile = True
compiled = torch.compile(f, fullgraph=True, backend="eager")
for _ in range(5):
    with profile_section("compiled"):
        assert torch.equal(compiled(x), f(x))  # one of both is eager
    profile_step()
asked.append(asks())
stop_training_profiling()
assert torch.equal(compiled(x), f(x))
print(asked, asks(), torch._dynamo.explain(f)(x).graph_break_count)
"""


def test_sections_ask_whether_they_are_traced_from_the_first_trace_on(tmp_path: Path) -> None:
    outcome = run(tmp_path, LATE, profile="1")
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout == "[False, True] True 0\n"
    rows = [line.split()[:2] for line in outcome.stderr.splitlines()]
    counts = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    assert {name: counts[name] for name in ("eager", "compiled", "inside")} == {"eager": 5, "compiled": 5, "inside": 10}
