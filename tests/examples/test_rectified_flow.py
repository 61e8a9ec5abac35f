"""The first real training: it learns, resumes, runs on two ranks, and profiles like any user's script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn (extra: examples)")

ROOT = Path(__file__).parents[2]
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


def run(out: Path, *words: str, profile: str | None = None, program: tuple[str, ...] | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RECTIFIED_FLOW_PROFILE")}
    environment["RECTIFIED_FLOW_PROFILE_DIR"] = str(out / "runs")
    environment["OMP_NUM_THREADS"] = "1"
    if profile is not None:
        environment["RECTIFIED_FLOW_PROFILE"] = profile
    program = program or (sys.executable, "-m", "examples.rectified_flow")
    done = subprocess.run(
        [*program, *BRIEF, "--out", str(out), *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def metrics(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def report(out: Path) -> dict:
    (folder,) = (out / "runs").iterdir()
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("profiled")
    return out, run(out, "--steps", "30", "--epoch-steps", "15", "--num-workers", "2", profile="1")


def test_losses_are_bitwise_equal_with_and_without_profiling(profiled, tmp_path):
    run(tmp_path, "--steps", "30", "--epoch-steps", "15", "--num-workers", "2")
    # json writes the shortest digits that give the same float back, so equal text is equal bits.
    assert (tmp_path / "metrics.jsonl").read_text() == (profiled[0] / "metrics.jsonl").read_text()


def test_all_nine_sections_of_a_step_are_measured(profiled):
    sections = report(profiled[0])["sections"]
    assert {name: sections[name]["count"] >= 30 for name in STEP_SECTIONS} == dict.fromkeys(STEP_SECTIONS, True)
    assert sum(section["share"] for section in sections.values()) == pytest.approx(1, abs=1e-9)


def test_work_between_steps_is_excluded_from_training_averages(profiled):
    sections = report(profiled[0])["sections"]
    assert sections["data_loading"]["count"] == 30
    assert sections["validation_epoch"]["count"] == sections["checkpointing"]["count"] == 2
    assert sections["sampling"]["count"] == sections["visualization_generation"]["count"] == 3


def test_every_report_is_printed_once(profiled):
    titles = [line for line in profiled[1].splitlines() if line.startswith("===") and not line.endswith("=====")]
    assert titles == [
        "=== Profiling Report (Step 10) ===",
        "=== Epoch 1 Profiling Summary ===",
        "=== Profiling Report (Step 20) ===",
        "=== Profiling Report (Step 30) ===",
        "=== Epoch 2 Profiling Summary ===",
        "=== Final Profiling Summary (30 steps) ===",
    ]


def test_plain_training_prints_no_report_and_leaves_no_run_folder(tmp_path):
    assert "Profiling" not in run(tmp_path, "--steps", "4")
    assert not (tmp_path / "runs").exists()


@pytest.mark.programs
def test_model_learns_and_draws_a_grid_of_samples(tmp_path):
    run(tmp_path, "--steps", "240", "--epoch-steps", "60", "--batch-size", "64")
    losses = [row["validation_loss"] for row in metrics(tmp_path) if "validation_loss" in row]
    assert losses[-1] < 0.6 * losses[0]
    image = pytest.importorskip("PIL.Image").open(tmp_path / "samples.png")
    assert image.size == (6 * (10 * 9 + 1), 6 * (6 * 9 + 1))
    assert len(set(image.convert("L").tobytes())) > 10


def test_resumed_training_equals_an_uninterrupted_one(profiled, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    run(first, "--steps", "15", "--epoch-steps", "15")
    resume = str(first / "checkpoint.pt")
    run(second, "--steps", "30", "--epoch-steps", "15", "--resume", resume)
    assert metrics(second) == metrics(profiled[0])


def test_torchrun_trains_two_ranks_and_only_rank_0_reports(tmp_path):
    program = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    program += ("-m", "examples.rectified_flow")
    printed = run(tmp_path, "--steps", "10", profile="1", program=program)
    assert printed.count("=== Final Profiling Summary (10 steps) ===") == 1
    found = report(tmp_path)
    assert found["sections"]["synchronization"]["count"] >= 10
    assert [(row["who"]["rank"], row["steps"], row["is_final"]) for row in found["ranks"]["ranks"]] == [
        (0, 10, True),
        (1, 10, True),
    ]
    assert "Ranks: 2 of 2 reported" in printed.rpartition("=== Final")[2]
    assert sorted(path.name for path in next((tmp_path / "runs").iterdir()).glob("rank*.jsonl")) == [
        "rank0.jsonl",
        "rank1.jsonl",
    ]


def test_profile_training_enables_profiling_and_prints_the_next_command(tmp_path):
    program = (sys.executable, "profile_training.py")
    printed = run(tmp_path, "--steps", "4", program=program)
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"Run folder: {folder}" in printed
    assert printed.splitlines()[-1].startswith("Next: ")
    assert printed.splitlines()[-1].endswith(f"report {folder}")
    plain = run(tmp_path / "plain", "--steps", "4", profile="0", program=program)
    assert "RECTIFIED_FLOW_PROFILE=1 python profile_training.py" in plain.splitlines()[-1]
