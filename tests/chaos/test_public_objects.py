"""Everything public behaves the same while profiling is off, on, on with a run, and under ``training-profiler run``."""

import json
import re
from pathlib import Path

import pytest

from tests.chaos.neighbours import output_of

SWITCH = "RECTIFIED_FLOW_PROFILE"
pytestmark = pytest.mark.chaos
# "object / operation": why it differs while profiling is on. docs/visible-changes.md lists the same.
KNOWN_DIFFERENCES = {
    r"list / json": "a list as a loader is a stand-in, and C code looks at its type",
    r"(list|list iterator|pass over a list) / weakref": "the stand-in can be referenced weakly",
    r"sequence / isinstance": "the stand-in of a loader that has only __getitem__ has __iter__",
    r"(generator|coroutine|asynchronous generator) function / call with .*": "wrong arguments raise at the first step",
    r"profile_section / decorate": "a forgotten name raises at the decorator, not at the first call",
}
OF_PATCHES = {
    r"torch Module.__call__ / (copy|deepcopy|repr|str|format|module|pickle \d|cloudpickle|torch.save|call .*)": "name",
    r"torch to / (?!pickle ==|copy is|deepcopy is|parameters$).*": "a function of Python in place of one in C",
}


def outcomes(folder: Path, state: str, *launcher: str, **variables: str) -> dict[str, object]:
    """Return what came of each operation on each object."""
    file = folder / f"{state}.json"
    output_of(folder, launcher, "public_objects.py", str(file), state, **variables)
    return dict(json.loads(file.read_text()))


@pytest.fixture(scope="module")
def off(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return outcomes(tmp_path_factory.mktemp("off"), "off")


@pytest.mark.parametrize(
    ("state", "launcher", "variables"),
    [
        ("on", (), {SWITCH: "1"}),
        ("started", (), {SWITCH: "1"}),
        ("run", ("-m", "training_profiler", "run"), {}),
    ],
)
def test_operations_on_public_objects_have_the_same_outcome(
    tmp_path: Path, off: dict[str, object], state: str, launcher: tuple[str, ...], variables: dict[str, str]
) -> None:
    on = outcomes(tmp_path, state, *launcher, **variables)
    assert len(off) > 2000
    known = list(KNOWN_DIFFERENCES | OF_PATCHES)
    different = {name: (off[name], on[name]) for name in off if off[name] != on[name]}
    assert {name: outcome for name, outcome in different.items() if not matching(name, known)} == {}
    assert [pattern for pattern in known if not any(matching(name, [pattern]) for name in different)] == []


def matching(name: str, patterns: list[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def test_objects_can_be_sent_to_processes_and_workers(tmp_path: Path) -> None:
    off, on, under_run = (
        output_of(tmp_path, launcher, "spawned_objects.py", **{f"{SWITCH}_STREAM": "stderr"}, **variables).splitlines()
        for launcher, variables in (((), {}), ((), {SWITCH: "1"}), (("-m", "training_profiler", "run"), {}))
    )
    assert on == under_run == off
    assert len(off) == 9
