"""Metrics of an unmodified training, read back with the readers of the trackers; metrics of the user are unchanged."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.wandb_file import artifacts, axes, history
from tests.system.launching import Ended, execute, execute_forked, through_run
from tests.system.scripts import ROOT
from training_profiler.base.sections import key_of
from training_profiler.sinks.metrics import PlainNames
from training_profiler.sinks.program_runs import mlflow_key

pytestmark = pytest.mark.integrations
SINKS = "RECTIFIED_FLOW_PROFILE_SINKS"
STEPS = 130
UNUSED = "wandb,mlflow"  # by a program that logs nothing

TRAINING = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(net.parameters())
BEFORE
for step in range(130):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    LOG
AFTER
"""
# Names with characters that trackers treat specially, and names of rows of ours.
NAMES = ("a*b", "a_b", "a?b", "a.b", "a\\b", 'a"b', "a//b", "a/_/b", "é", "{a}", "other", "(profiler)", "profiler")
SECTIONS = f"import training_profiler\nfor name in {NAMES!r}:\n    with training_profiler.profile_section(name): pass"
INIT = "import wandb; run = wandb.init(project='p', settings=wandb.Settings(silent=True))"


def train(
    cwd: Path,
    sinks: str,
    before: str = "",
    log: str = "pass",
    after: str = "",
    is_forked: bool = True,
    **variables: str,
) -> Ended:
    """Profile the training with these lines of the user in it, in a fork or in an interpreter of its own."""
    text = TRAINING.replace("BEFORE", before).replace("LOG", log.replace("\n", "\n    ")).replace("AFTER", after)
    (cwd / "train.py").write_text(text)
    variables = {"WANDB_MODE": "offline", SINKS: sinks, **variables}
    if is_forked:
        ended = execute_forked(cwd, "train.py", **variables)
    else:
        ended = execute(cwd, through_run("train.py"), pythonpath=str(ROOT), variables=variables)
    assert ended.status == 0, ended.stderr
    assert ("sink" in ended.stdout) == (sinks == UNUSED), ended.stdout
    assert f"=== Final Profiling Summary ({STEPS} steps) ===" in ended.stdout
    return ended


def folder_of(cwd: Path) -> Path:
    (folder,) = (cwd / "runs").glob("2*")
    return folder


def expected_rows(cwd: Path) -> list[dict[str, Any]]:
    """Return the rows of the simplest tracker, which all others must match."""
    return [json.loads(line) for line in (folder_of(cwd) / "metrics.jsonl").read_text().splitlines()]


def means_in(cwd: Path) -> dict[str, float]:
    """Return the last mean of each section of ``NAMES``, by the name of its metric."""
    last = expected_rows(cwd)[-1]
    metrics = {name: f"profiling/timing_{key_of(name)}_avg" for name in NAMES}
    assert len({last[metric] for metric in metrics.values()}) > len(NAMES) // 2  # most of them differ
    return {metric: last[metric] for metric in metrics.values()}


EACH = list(range(STEPS))


@pytest.mark.parametrize(
    ("log", "after", "users"),
    [
        ("wandb.log({'mine': step})", "wandb.finish()", EACH),
        ("wandb.log({'mine': step})", "", EACH),
        ("run.log({'mine': step}, step=step)", "run.finish()", EACH),
        ("run.log({'mine': step}, step=step)", "", EACH),
        ("run.log({'loss': 0.5}, step=step)\nrun.log({'mine': step}, step=step)", "", EACH),
        ("wandb.log({'loss': 0.5}, commit=False)\nwandb.log({'mine': step})", "wandb.finish()", EACH),
        ("if step % 40 == 39: wandb.log({'mine': step}, step=step)", "", [39, 79, 119]),
        ("pass", "wandb.finish()", []),
        ("pass", "", []),
        (
            "run.log({'mine': step}, step=step)",
            "import training_profiler as t; t.stop_training_profiling()\n"
            "for step in range(130, 140): run.log({'mine': step}, step=step)",
            list(range(140)),
        ),
    ],
)
def test_wandb_rows_of_the_user_are_neither_lost_nor_doubled(
    tmp_path: Path, log: str, after: str, users: list[int]
) -> None:
    pytest.importorskip("wandb")
    train(tmp_path, "wandb,jsonl", INIT, log, after)
    rows = history(tmp_path)
    mine = [row for row in rows if "mine" in row]
    assert [row["mine"] for row in mine] == users
    if "step=step" in log:
        assert [row["_step"] for row in mine] == users
    if "loss" in log:
        assert [row["loss"] for row in rows if "loss" in row] == [0.5] * len(users)
    ours = [row for row in rows if "profiling/batch_time_avg" in row]
    assert ours[-1]["profiling/step"] == STEPS
    if not users:
        assert [row["profiling/step"] for row in ours] == [50, 100, STEPS]
    last = expected_rows(tmp_path)[-1]
    assert ours[-1]["profiling/batches_per_second"] == pytest.approx(last["profiling/batches_per_second"], rel=0.5)
    names = {name for row in ours for name in row if name.startswith("profiling/")}
    assert {name: axes(tmp_path)[name] for name in names} == {
        name: "" if name == "profiling/step" else "profiling/step" for name in names
    }


@pytest.mark.parametrize("after", ["", "wandb.finish()"])
def test_wandb_run_has_the_report_and_a_metric_for_each_name_of_a_section(tmp_path: Path, after: str) -> None:
    pytest.importorskip("wandb")
    train(tmp_path, "wandb,jsonl", INIT, SECTIONS, after)
    ((name, kind, files),) = artifacts(tmp_path)
    assert (name.startswith("profiling-"), kind) == (True, "profiling-report")
    assert files == {"report.txt", "report.json"}
    (*_, last) = (row for row in history(tmp_path) if "profiling/batch_time_avg" in row)
    expected = {name.replace("a*b", "a_b") for name in means_in(tmp_path)} | {"profiling/timing_a_b_avg-2"}
    assert expected <= last.keys()
    assert {axes(tmp_path)[name] for name in expected} == {"profiling/step"}


def test_rows_wait_for_a_late_wandb_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    log = f"if step == 60:\n    {INIT}\nif step >= 60: wandb.log({{'mine': step}})"
    train(tmp_path, "wandb", "import wandb", log, is_forked=False)
    rows = history(tmp_path)
    assert [row["mine"] for row in rows if "mine" in row] == list(range(60, STEPS))
    assert [row["profiling/step"] for row in rows if "profiling/step" in row][-1] == STEPS


def test_tensorboard_reader_finds_every_metric(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, "tensorboard,jsonl", log=SECTIONS)
    events = EventAccumulator(str(folder_of(tmp_path) / "tensorboard"))
    events.Reload()
    rows = expected_rows(tmp_path)
    assert means_in(tmp_path).keys() <= rows[-1].keys()
    for name in {name for row in rows for name in row} - {"step", "time"}:
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows if name in row]
    assert events.Tags()["tensors"] == ["custom_scalars__config__"]


def test_tensorboard_writer_of_the_user_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    before = "from torch.utils.tensorboard import SummaryWriter; writer = SummaryWriter('mine')"
    train(tmp_path, "tensorboard", before, "writer.add_scalar('loss', loss.item(), step)", "writer.close()")
    events = EventAccumulator(str(tmp_path / "mine"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert len(events.Scalars("loss")) == STEPS


def test_prometheus_parser_reads_the_text_file(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    train(tmp_path, "prometheus,jsonl", log=SECTIONS)
    families = list(text_string_to_metric_families((folder_of(tmp_path) / "metrics.prom").read_text()))
    assert {family.type for family in families} == {"gauge"}
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }
    last = expected_rows(tmp_path)[-1]
    assert values["profiling_step",] == STEPS
    assert values["profiling_batch_time_avg",] == last["profiling/batch_time_avg"]
    labelled = "profiling_timing_avg", ("section", "forward_pass")
    assert values[labelled] == last["profiling/timing_forward_pass_avg"]
    for name, mean_s in means_in(tmp_path).items():
        section = name.removeprefix("profiling/timing_").removesuffix("_avg")
        assert values["profiling_timing_avg", ("section", section)] == mean_s
    (documentation,) = [family.documentation for family in families if family.name == "profiling_timing_avg"]
    assert documentation.startswith("profiling/timing_{section}_avg ")


@pytest.mark.parametrize(("store", "after"), [("sqlite:///{}/mlflow.db", ""), ("file://{}/mlruns", "mlflow.end_run()")])
def test_active_mlflow_run_gets_our_metrics_and_those_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, after: str
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = store.format(tmp_path)
    before = f"import mlflow; mlflow.set_tracking_uri({uri!r}); mlflow.start_run()"
    log = f"{SECTIONS}\nif step % 50 == 0: mlflow.log_metric('loss', 0.5, step=step)"
    train(tmp_path, "mlflow,jsonl", before, log, after, MLFLOW_ALLOW_FILE_STORE="true")
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED"
    rows = expected_rows(tmp_path)
    for name in ("profiling/batch_time_avg", "profiling/timing_forward_pass_avg"):
        found = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        assert sorted(found) == [(row["step"], pytest.approx(row[name])) for row in rows]
    users = client.get_metric_history(run.info.run_id, "loss")
    assert sorted(metric.step for metric in users) == [0, 50, 100]
    names = PlainNames(mlflow_key)
    for name, mean_s in means_in(tmp_path).items():
        assert run.data.metrics[names.of(name)] == pytest.approx(mean_s)


def test_unused_tracker_is_not_imported_and_reported(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    after = "import sys; print({'wandb', 'mlflow'} & sys.modules.keys())"
    ended = train(tmp_path, UNUSED, after=after, is_forked=False)
    assert ended.stderr == ""
    assert "\nset()\n" in ended.stdout
    assert "- wandb sink: no run was found (wandb.init())" in ended.stdout
    assert "- mlflow sink: no active run was found (mlflow.start_run())" in ended.stdout
