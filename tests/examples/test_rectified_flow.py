"""The first real training: it learns, resumes, runs on two ranks, and profiles like any user's script."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.running import losses_of_validation, metrics, needs_digits, run
from tests.system.scripts import Outcome

pytestmark = needs_digits
STEP_SECTIONS = (
    "data_loading",
    "data_generation",
    "data_transfer",
    "forward_pass",
    "backward_pass",
    "metrics_computation",
    "optimizer_step",
    "ema_update",
    "synchronization",
)
BRIEF = ("--batch-size", "16", "--num-workers", "0", "--log-every", "10")


def train(out: Path, *words: str, **options: Any) -> Outcome:
    return run("rectified_flow", out, *BRIEF, "--out", str(out), *words, **options)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    words = ("--steps", "30", "--epoch-steps", "15", "--num-workers", "2")
    return train(tmp_path_factory.mktemp("profiled"), *words, profile="1")


def test_all_nine_sections_of_a_step_are_measured(profiled):
    sections = profiled.report["sections"]
    assert {name: sections[name]["count"] >= 30 for name in STEP_SECTIONS} == dict.fromkeys(STEP_SECTIONS, True)
    assert sum(section["share"] for section in sections.values()) == pytest.approx(1, abs=1e-9)


def test_work_between_steps_is_excluded_from_training_averages(profiled):
    sections = profiled.report["sections"]
    assert sections["data_loading"]["count"] == 30
    assert sections["validation_epoch"]["count"] == sections["checkpointing"]["count"] == 2
    assert sections["sampling"]["count"] == sections["visualization_generation"]["count"] == 3


def test_every_report_is_printed_once(profiled):
    titles = [line for line in profiled.stdout.splitlines() if line.startswith("===") and not line.endswith("=====")]
    assert titles == [
        "=== Profiling Report (Step 10) ===",
        "=== Epoch 1 Profiling Summary ===",
        "=== Profiling Report (Step 20) ===",
        "=== Profiling Report (Step 30) ===",
        "=== Epoch 2 Profiling Summary ===",
        "=== Final Profiling Summary (30 steps) ===",
    ]


@pytest.mark.programs
def test_model_learns_and_draws_a_grid_of_samples(tmp_path):
    train(tmp_path, "--steps", "240", "--epoch-steps", "60", "--batch-size", "64")
    losses = losses_of_validation(tmp_path)
    assert losses[-1] < 0.6 * losses[0]
    image = pytest.importorskip("PIL.Image").open(tmp_path / "samples.png")
    assert image.size == (6 * (10 * 9 + 1), 6 * (6 * 9 + 1))
    assert len(set(image.convert("L").tobytes())) > 10


def test_resumed_plain_training_equals_an_uninterrupted_one_with_profiling(profiled, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    plain = train(first, "--steps", "15", "--epoch-steps", "15")
    resume = str(first / "checkpoint.pt")
    train(second, "--steps", "30", "--epoch-steps", "15", "--resume", resume)
    assert metrics(second) == metrics(profiled.cwd)
    assert "Profiling" not in plain.stdout
    assert not (first / "runs").exists()


def test_two_ranks_train_and_only_rank_0_reports(tmp_path):
    ended = train(tmp_path, "--steps", "10", profile="1", ranks=2)
    assert ended.stdout.count("=== Final Profiling Summary (10 steps) ===") == 1
    found = ended.report
    assert found["sections"]["synchronization"]["count"] >= 10
    assert [(row["who"]["rank"], row["steps"], row["is_final"]) for row in found["ranks"]["ranks"]] == [
        (0, 10, True),
        (1, 10, True),
    ]
    assert "10 steps, 2 ranks in " in ended.stdout.rpartition("=== Final")[2]
    assert sorted(path.name for path in ended.folder.glob("rank*.jsonl")) == ["rank0.jsonl", "rank1.jsonl"]


def test_profile_training_enables_profiling_and_prints_the_next_command(tmp_path):
    ended = train(tmp_path, "--steps", "4", program=(sys.executable, "profile_training.py"))
    assert f"Run folder: {ended.folder}" in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("Next: ")
    assert ended.stdout.splitlines()[-1].endswith(f"report {ended.folder}")
    plain = train(tmp_path / "plain", "--steps", "4", profile="0", module="profile_training")
    assert "RECTIFIED_FLOW_PROFILE=1 python profile_training.py" in plain.stdout.splitlines()[-1]
