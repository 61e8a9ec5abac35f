import json
from pathlib import Path

import pytest

from tests.support.recording import FakeRun
from tests.trials.test_results import RESULTS
from training_profiler.diagnosis import diagnose
from training_profiler.reports.report_json import as_data, report_schema
from training_profiler.storage.run_reader import read_run
from training_profiler.trials.results import Results
from training_profiler.trials.results import as_data as trials_data

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
PUBLISHED = Path(__file__).parents[2] / "docs" / "reference" / "report.schema.json"
JOURNALS = Path(__file__).parents[1] / "storage" / "journals"


DEFINED = report_schema(Results)["$defs"]


def referred(schema):
    return DEFINED[schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema


def problems(schema, value, path="$"):
    """Return where ``value`` is not of ``schema``, for the few keywords that ours has."""
    schema = referred(schema)
    if "const" in schema and value != schema["const"]:
        return [f"{path} is {value!r}"]
    if "anyOf" in schema:
        each = [problems(one, value, path) for one in schema["anyOf"]]
        return [] if [] in each else max(each, key=len)
    types = schema.get("type")
    if types is not None:
        names = [types] if isinstance(types, str) else types
        is_bool = isinstance(value, bool)
        if not any(isinstance(value, TYPES[name]) and (not is_bool or name == "boolean") for name in names):
            return [f"{path} is {value!r}, not {types}"]
    found = []
    if isinstance(value, dict):
        found += [f"{path}.{key} is missing" for key in schema.get("required", ()) if key not in value]
        found += [f"{path}.{key} is new" for key in value if path == "$" and key not in schema["properties"]]
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            found += problems(inner, item, f"{path}.{key}")
    if isinstance(value, list):
        found += [
            one for i, item in enumerate(value) for one in problems(schema.get("items", {}), item, f"{path}[{i}]")
        ]
    return found


def test_the_published_schema_is_that_of_the_code():
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == report_schema(Results)


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


def data_of_many_ranks():
    snapshot = read_run(JOURNALS)
    assert snapshot.ranks is not None
    return as_data(snapshot, diagnose(snapshot))


def data_of_nothing():
    return as_data(FakeRun().snapshot(), ())


def data_with_trials():
    return as_data(FakeRun().snapshot(), (), trials_data(RESULTS))


@pytest.mark.parametrize("data", [data_of_a_run, data_with_trials, data_of_many_ranks, data_of_nothing])
def test_reports_are_of_the_schema(data):
    assert problems(report_schema(Results), json.loads(json.dumps(data()))) == []


def test_every_key_of_the_trials_is_in_the_schema():
    trials = report_schema(Results)["properties"]["trials"]["anyOf"][0]["properties"]
    assert trials_data(RESULTS).keys() - {"schema"} == trials.keys()
    assert trials_data(RESULTS)["rows"][0].keys() == referred(trials["rows"]["items"])["properties"].keys()


def test_a_wrong_report_is_not_of_the_schema():
    data = json.loads(json.dumps(data_of_a_run()))
    del data["steps"]
    data["wall_s"] = "long"
    data["sections"]["forward_pass"]["count"] = None
    assert len(problems(report_schema(Results), data)) == 3


def test_an_epoch_has_its_rate_and_shares_add_up():
    data = data_of_a_run()
    (epoch,) = data["epochs"]
    assert (epoch["batches"], epoch["samples"], epoch["wall_s"], epoch["batches_per_s"]) == (20, 640, 15.0, 20 / 15)
    assert sum(section["share"] for section in data["sections"].values()) == 1.0
    assert (data["sections"]["other"]["self_s"], data["sections"]["attention"]["parent"]) == (4.75, "forward_pass")
    assert json.loads(json.dumps(data, allow_nan=False)) == data
