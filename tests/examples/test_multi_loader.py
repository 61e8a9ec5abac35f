"""The trainer with many loaders: schedules, errors in its file, and its report."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason="the file is YAML (extra: examples)")

import yaml

from examples.multi_loader.config import ConfigError, read_config
from examples.multi_loader.schedule import order, proportions
from tests.examples.running import needs_digits, run
from tests.system.scripts import ROOT, Outcome

pytestmark = needs_digits
DEFAULT = ROOT / "examples" / "multi_loader" / "config.yaml"


def written(folder: Path, **changes: object) -> Path:
    """Return the path of the default file with changes such as ``training__steps=3``; ``...`` removes a key."""
    data = yaml.safe_load(DEFAULT.read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        node = data
        for name in path:
            node = node[name]
        if value is ...:
            del node[last]
        else:
            node[last] = value
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def train(path: Path, **options: Any) -> Outcome:
    return run("multi_loader", path.parent, str(path), **options)


def test_round_robin_alternates_loaders():
    assert list(order("round_robin", [3, 2], (), 0)) == [0, 1, 0, 1, 0]
    assert proportions("round_robin", [3, 2], ()) == [0.5, 0.5]


def test_sequential_exhausts_loaders_one_by_one():
    assert list(order("sequential", [3, 2], (), 0)) == [0, 0, 0, 1, 1]
    assert proportions("sequential", [3, 2], ()) == [0.6, 0.4]


def test_weighted_draws_follow_weights_and_seed():
    drawn = list(order("weighted", [300, 300], (3, 1), 5))
    assert 400 < drawn.count(0) < 500
    assert drawn == list(order("weighted", [300, 300], (3, 1), 5))
    assert proportions("weighted", [300, 300], (3, 1)) == [0.75, 0.25]


def test_default_file_enables_profiling():
    assert read_config(DEFAULT).profile_training


def test_profiling_is_the_default(tmp_path):
    assert read_config(written(tmp_path, training__profile_training=...)).profile_training


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training__epochs": 0}, ("training.epochs=0", "example: 3")),
        ({"training__steps": 5}, ("training.epochs=3", "training.steps=5", "both")),
        ({"training__epochs": ...}, ("neither", "epochs: 3")),
        ({"training__profile_training": "maybe"}, ("training.profile_training='maybe'", "true")),
        ({"training__grad_acumulation": 2}, ("training.grad_acumulation=2", "did you mean grad_accumulation?")),
        ({"logging__log_scalars_every_n_steps": 2.5}, ("logging.log_scalars_every_n_steps=2.5", "example: 10")),
        ({"data__train__dataloader_names": []}, ("data.train.dataloader_names=[]", "[main, aux]")),
        ({"data__train__dataloader_names": ["main", "main"]}, ("twice",)),
        ({"data__train__dataloader_names": ["main"]}, ("data.train.schedule.weights=[2, 1]", "1 numbers")),
        ({"data__train__schedule__kind": "weigthed"}, ("kind='weigthed'", "did you mean weighted?")),
        ({"data__train__schedule__weights": [1, -1]}, ("weights=[1, -1]", "example: weights: [2, 1]")),
        ({"data__train__schedule__kind": "round_robin"}, ("weights=[2, 1]", "no meaning")),
        ({"data__train__loaders__main__dataset": "cats"}, ("loaders.main.dataset='cats'", "digits")),
        (
            {"data__train__dataloader_names": ["mian", "aux"]},
            ("data.train.loaders has no 'mian'", "did you mean main?"),
        ),
        ({"data": 3}, ("data is 3", "no mapping")),
    ],
)
def test_invalid_value_is_named_with_its_key_and_an_example(tmp_path, changes, words):
    with pytest.raises(ConfigError) as error:
        read_config(written(tmp_path, **changes))
    assert [word for word in words if word not in str(error.value)] == []


def test_missing_or_malformed_file_is_reported(tmp_path):
    with pytest.raises(ConfigError, match=r"an example lies in .*config\.yaml"):
        read_config(tmp_path / "nothing.yaml")
    (tmp_path / "bad.yaml").write_text("training: [")
    with pytest.raises(ConfigError, match="not YAML"):
        read_config(tmp_path / "bad.yaml")


def test_invalid_file_ends_with_one_line_and_status_2(tmp_path):
    done = train(written(tmp_path, training__epochs=0), status=2)
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    "kind", ["round_robin", *(pytest.param(kind, marks=pytest.mark.programs) for kind in ("weighted", "sequential"))]
)
def test_report_names_the_slow_loader_and_the_mix(tmp_path, kind):
    weights = {} if kind == "weighted" else {"data__train__schedule__weights": ...}
    changes = {"training__epochs": 1, "data__train__schedule__kind": kind, "data__train__loaders__aux__delay_ms": 1}
    path = written(tmp_path, **changes, **weights)
    done = train(path, program=(sys.executable, "-m", "examples.multi_loader") if kind == "round_robin" else ())
    (slow,) = (finding for finding in done.report["findings"] if finding["code"] == "loader-slow")
    assert slow["finding"].startswith("Loader aux is slow: ")
    assert "loader-mix" not in [finding["code"] for finding in done.report["findings"]]
    main, aux, held_out = done.report["loaders"]
    assert (main["name"], aux["name"], held_out["name"], held_out["phase"]) == ("main", "aux", "held_out", "val")
    assert main["batches"] + aux["batches"] == 188
    asked = {"round_robin": (0.5, 0.5), "weighted": (2 / 3, 1 / 3), "sequential": (0.5, 0.5)}[kind]
    assert (main["requested_proportion"], aux["requested_proportion"]) == pytest.approx(asked)
    assert aux["data_avg_s"] > 0.016  # 16 samples with a delay of 1 ms each
    assert done.report["steps"] == 94


@pytest.mark.programs
def test_unprofiled_training_prints_the_same_losses_without_a_report(tmp_path):
    for folder in ("on", "off"):
        (tmp_path / folder).mkdir()
    steps = {"training__epochs": ..., "training__steps": 120}
    on = train(written(tmp_path / "on", **steps))
    off = train(written(tmp_path / "off", training__profile_training=False, **steps), profile="1")
    assert not (tmp_path / "off" / "runs").exists()
    printed = [line for line in off.stdout.splitlines() if line]
    assert len(printed) == 2
    assert [line for line in on.stdout.splitlines() if line.startswith("epoch ")] == printed
