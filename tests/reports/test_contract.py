import json

from tests.support.loader_workers import waiting_run
from tests.support.recording import FakeRun, snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.reports.report_json import as_data
from training_profiler.snapshot.snapshot import (
    GpuStats,
    Growth,
    Health,
    Level,
    MachineStats,
    Snapshot,
    Throughput,
)

SECTION_KEYS = {
    "count", "total_s", "self_s", "avg_s", "min_s", "max_s", "std_s", "p50_s", "p95_s", "p99_s", "share", "parent",
}  # fmt: skip
INSIGHT_KEYS = {
    "code",
    "finding",
    "evidence",
    "worth_s",
    "worth_share",
    "step_s",
    "step_if_gone_s",
    "remedy",
}


def data_of_a_run():
    run = FakeRun()
    run.begin_epoch(1)
    for _ in range(20):
        with run.section("forward_pass"):
            run.spend("attention", 0.25)
        run.step(data_loading=0.25)
        run.clock.advance(0.25)
    run.end_epoch(batches=20, samples=640)
    snapshot = run.snapshot(ended_by="SIGTERM")
    return as_data(snapshot, diagnose(snapshot))


def test_required_keys_are_present():
    data = data_of_a_run()
    assert data.keys() >= {"schema", "steps", "wall_s", "sections", "epochs", "insights", "health"}
    assert data["schema"] == 1
    assert all(section.keys() >= SECTION_KEYS for section in data["sections"].values())
    assert all(finding.keys() >= INSIGHT_KEYS for finding in data["insights"])
    assert data["health"].keys() >= {"dropped", "disabled", "overhead_s"}


def test_other_is_a_section():
    assert data_of_a_run()["sections"]["other"]["self_s"] == 4.75


def test_shares_add_up_to_one():
    assert sum(section["share"] for section in data_of_a_run()["sections"].values()) == 1.0


def test_nested_section_names_its_parent():
    assert data_of_a_run()["sections"]["attention"]["parent"] == "forward_pass"


def test_epoch_has_its_rate():
    (epoch,) = data_of_a_run()["epochs"]
    assert (epoch["batches"], epoch["samples"], epoch["wall_s"], epoch["batches_per_s"]) == (20, 640, 15.0, 20 / 15)


def test_data_survives_json():
    data = data_of_a_run()
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_unknown_figures_are_none():
    data = as_data(snapshot_of({"forward_pass": 0.5}), [])
    assert data["sections"]["forward_pass"]["p50_s"] is None


def test_empty_run_has_every_key():
    data = as_data(Snapshot(), [])
    assert (data["steps"], data["wall_s"], data["sections"], data["epochs"]) == (0, 0.0, {}, [])


def test_machine_and_throughput_are_complete():
    gpu = GpuStats(0, "T4", used_bytes=Level(1.0, 2.0, 3.0))
    snapshot = Snapshot(
        machine=MachineStats(samples=2, cores=1.5, gpus=(gpu,), ram_growth=Growth(5.0, 0.01, 9, 8.0)),
        throughput=Throughput(2.0, samples_per_s=64.0),
    )
    data = json.loads(json.dumps(as_data(snapshot, []), allow_nan=False))
    assert data["machine"]["cores"] == 1.5
    assert data["machine"]["ram_growth"] == {"bytes": 5.0, "p_value": 0.01, "points": 9, "seconds": 8.0}
    assert data["machine"]["gpus"][0]["used_bytes"] == {"mean": 1.0, "max": 2.0, "last": 3.0}
    assert (data["throughput"]["samples_per_s"], data["throughput"]["mfu"]) == (64.0, None)


def test_health_is_complete():
    data = as_data(Snapshot(health=Health(dropped=2, disabled=("console",), overhead_s=0.5, notes=("a note",))), [])
    assert data["health"] == {
        "dropped": 2,
        "disabled": ["console"],
        "overhead_s": 0.5,
        "span_s": 0.0,
        "notes": ["a note"],
    }


def test_lines_in_workers_have_a_key_of_their_own():
    data = as_data(waiting_run(), ())
    first, second = data["lines"]["data_loading (workers)"]
    assert (first["file"], first["line"], first["share"], first["phase"]) == ("data.py", 31, 0.6, "transform")
    assert second["samples"] == 240
    assert as_data(waiting_run(workers=None), ())["lines"] == {}
