"""The lines before the first trial: what holds, what does not, and which trackers were found."""

from pathlib import Path

import pytest

from training_profiler.base.units import BYTES_PER_GIB
from training_profiler.trials.isolation.plan import GUARDED, NAMESPACES, UNGUARDED, WAYS, Plan
from training_profiler.trials.isolation.promise import TRACKERS, offline, promise, trackers_of


def promised(way: str, *modules: str, in_memory: bool = False) -> str:
    plan = Plan(way, "/scratch", (), in_memory, 8 * BYTES_PER_GIB)
    found = [tracker for tracker in TRACKERS if tracker.module in modules]
    return promise(plan, found, 32 * BYTES_PER_GIB).replace("\n", " ")


def test_a_weaker_way_promises_less() -> None:
    assert "Your files stay as they are" in promised(NAMESPACES)
    assert "the kernel refuses" in promised(GUARDED)
    assert "Not promised here: what it writes elsewhere stays" in promised(UNGUARDED)
    assert "Your files stay" not in promised(UNGUARDED)


@pytest.mark.parametrize("way", WAYS)
def test_the_limits_are_named(way: str) -> None:
    assert "A trial writes to 32 GiB of free disk, at most 8.0 GiB a file." in promised(way)
    assert "A trial writes to memory" in promised(way, in_memory=True)
    assert max(map(len, promise(Plan(way, "/s", (), False, 1), None, 1).splitlines())) < 80


def test_each_tracker_is_named_by_what_holds_it() -> None:
    text = promised(NAMESPACES, "wandb", "comet_ml", "aim")

    assert "Kept offline: W&B." in text
    assert "Asked to stay offline by a variable, which the program can overrule: Comet." in text
    assert "Not held back: Aim." in text
    assert "imports none of the known trackers" in promised(NAMESPACES)


def test_nothing_is_said_of_trackers_without_a_script() -> None:
    text = promise(Plan(NAMESPACES, "/s", (), False, 1), None, 1)

    assert text.endswith("sends over the network.")


def test_trackers_are_found_in_modules_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from package import logs\nimport helper, train\ndef f():\n    import wandb.sdk\n"
    )
    (tmp_path / "helper.py").write_text("import neptune\nimport missing_module")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/logs.py").write_text("from mlflow import log_metric")
    (tmp_path / "unused.py").write_text("import clearml")

    assert [tracker.module for tracker in trackers_of(tmp_path / "train.py")] == ["wandb", "mlflow", "neptune"]
    assert trackers_of(tmp_path / "missing.py") == []


def test_a_tracker_that_is_disabled_stays_disabled() -> None:
    assert offline({})["WANDB_MODE"] == "offline"
    assert offline({"WANDB_MODE": "online"})["WANDB_MODE"] == "offline"
    assert "WANDB_MODE" not in offline({"WANDB_MODE": "disabled"})
