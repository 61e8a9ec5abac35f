import ast
import re
from pathlib import Path

import pytest

from training_profiler.base.errors import SettingsError
from training_profiler.base.switch import ROOT, SWITCH, means_on
from training_profiler.base.trackers import TRACKERS
from training_profiler.base.units import Price
from training_profiler.settings import settings
from training_profiler.settings.settings import (
    Launch,
    RunLimit,
    Settings,
    describe,
    launch_id,
    read_settings,
    unknown_variables,
    variables,
)

PREFIX = "RECTIFIED_FLOW_PROFILE_"


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("LOG_EVERY", "7", 7),
        ("LOG_EVERY", " 7 ", 7),
        ("LOG_EVERY", "0", 0),
        ("NAME", "lr-1e.3_b", "lr-1e.3_b"),
        ("GPU_HOUR_PRICE", "2.50 EUR", Price(2.5, "EUR")),
        ("GPU_HOUR_PRICE", "3 $", Price(3.0, "$")),
        ("GPU_HOUR_PRICE", "3", Price(3.0)),
        ("GPU_HOUR_PRICE", "none", None),
        ("FORMAT", "Lines", "lines"),
        ("DIR", "/data/runs", "/data/runs"),
        ("STREAM", "stderr", "stderr"),
        ("WARMUP", "3", 3),
        ("WARMUP", "0", 0),
        ("WARMUP", "auto", None),
        ("FLUSH_S", "0.5", 0.5),
        ("MAX_NAMES", "4000", 4000),
        ("SAMPLE_HZ", "0", 0),
        ("SAMPLE_HZ", "1000", 1000),
        ("TIMING", "Events", "events"),
        ("MONITOR_S", "0", 0.0),
        ("MONITOR_S", "0.25", 0.25),
        ("FLOPS", "0", False),
        ("FLOPS", "on", True),
        ("SINKS", "jsonl", ("jsonl",)),
        ("SINKS", " CSV , tensorboard,csv ", ("csv", "tensorboard")),
        ("LOG_SCALARS_EVERY_N_STEPS", "10", 10),
        ("LOG_SCALARS_EVERY_N_STEPS", "none", None),
        ("THRESHOLDS", "unexplained=0.2, data-transfer = 0.3", {"unexplained": 0.2, "data-transfer": 0.3}),
        ("CHECKLIST", "yes", True),
        ("FOR", "60s", RunLimit("60s", 60.0, None)),
        ("FOR", "10min", RunLimit("10min", 600.0, None)),
        ("FOR", "1h 30m", RunLimit("1h 30m", 5400.0, None)),
        ("FOR", "0.5s", RunLimit("0.5s", 0.5, None)),
        ("FOR", "200steps", RunLimit("200steps", None, 200)),
        ("FOR", "1 Step ", RunLimit("1 step", None, 1)),
        ("FOR", "none", None),
        ("STOP_WHEN_SURE", "1", True),
        ("PROMETHEUS_PORT", "9400", ("127.0.0.1", 9400)),
        ("PROMETHEUS_PORT", "0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("PROMETHEUS_PORT", "[::1]:9400", ("::1", 9400)),
    ],
)
def test_variable_sets_its_setting(name, given, read):
    settings = read_settings(environ={PREFIX + name: given})
    assert getattr(settings, {"FOR": "for_"}.get(name, name.lower())) == read


@pytest.mark.parametrize("name", variables())
def test_blank_variable_counts_as_unset(name):
    assert read_settings(environ={name: "  "}) == Settings()


@pytest.mark.parametrize(
    ("name", "given", "example"),
    [
        ("LOG_EVERY", "5s", "50"),
        ("PROMETHEUS_PORT", "0", "9400"),
        ("PROMETHEUS_PORT", "99999", "9400"),
        ("PROMETHEUS_PORT", ":9400", "9400"),
        ("PROMETHEUS_PORT", "http", "9400"),
        ("NAME", "a/b", "baseline"),
        ("GPU_HOUR_PRICE", "0", "2.50 EUR"),
        ("GPU_HOUR_PRICE", "-1 EUR", "2.50 EUR"),
        ("GPU_HOUR_PRICE", "nan", "2.50 EUR"),
        ("GPU_HOUR_PRICE", "EUR 2", "2.50 EUR"),
        ("GPU_HOUR_PRICE", "2 \x1b[31m", "2.50 EUR"),
        ("NAME", "12", "baseline"),
        ("NAME", "rank3", "baseline"),
        ("NAME", "..", "baseline"),
        ("LOG_EVERY", "-1", "50"),
        ("LOG_EVERY", "1.5", "50"),
        ("FORMAT", "html", "table"),
        ("DIR", "a\0b", "runs"),
        ("STREAM", "stdlog", "stdout"),
        ("WARMUP", "-1", "3"),
        ("WARMUP", "some", "3"),
        ("FLUSH_S", "0", "10"),
        ("FLUSH_S", "-1", "10"),
        ("FLUSH_S", "nan", "10"),
        ("FLUSH_S", "inf", "10"),
        ("FLUSH_S", "soon", "10"),
        ("MAX_NAMES", "0", "500"),
        ("MAX_NAMES", "4001", "500"),
        ("SAMPLE_HZ", "-1", "50"),
        ("SAMPLE_HZ", "1001", "50"),
        ("SAMPLE_HZ", "often", "50"),
        *(("FOR", given, "200steps") for given in ("0", "0s", "0steps", "60", "-1s", "1.5steps", "ten", "10 days")),
        ("STOP_WHEN_SURE", "soon", "1"),
    ],
)
def test_error_names_variable_value_and_example(name, given, example):
    with pytest.raises(SettingsError) as error:
        read_settings(environ={PREFIX + name: given})
    assert str(error.value).startswith(f"{PREFIX}{name}={given!r} is ")
    assert str(error.value).endswith(f"; example: {example}")


@pytest.mark.parametrize(("given", "read"), [(3, 3), (None, 7)])
def test_argument_wins_over_variable_unless_it_is_none(given, read):
    assert read_settings({"log_every": given}, {PREFIX + "LOG_EVERY": "7"}).log_every == read


@pytest.mark.parametrize(("name", "given"), [("log_every", True), ("log_every", []), ("flush_s", True), ("dir", 3)])
def test_error_names_the_call_of_a_bad_argument(name, given):
    with pytest.raises(SettingsError) as error:
        read_settings({name: given}, {})
    assert str(error.value).startswith(f"start_training_profiling({name}={given!r}) is not ")


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("SINKS", "wandb,tensorbord", f"names 'tensorbord', which is not one of {', '.join(TRACKERS)}; "
         "did you mean tensorboard? (trackers that receive metrics); example: jsonl,csv"),
        ("THRESHOLDS", "unexplaned=0.2", "names 'unexplaned', which is not a rule; did you mean unexplained? "
         "example: data-loading-bound=0.2,unexplained=0.15"),
        ("THRESHOLDS", "unexplained", "has '' for unexplained, which is not a number >= 0; "
         "example: data-loading-bound=0.2,unexplained=0.15"),
        ("MONITOR_S", "-1", "is not a number of seconds >= 0 "
         "(time between two samples of CPU, memory and GPU, in s, 0 for none); example: 1"),
        ("CHECKLIST", "maybe", "is neither yes nor no (whether the final summary ends with the quick checklist); "
         "example: 1"),
        ("NATIVE", "never", "is neither yes nor no (whether the recorder in C is used where it was built); example: 0"),
        ("TIMING", "gpu", "is not one of auto, host, events, sync "
         "(how sections are timed on an accelerator); example: auto"),
    ],
)  # fmt: skip
def test_error_messages_show_what_is_possible(name, given, message):
    with pytest.raises(SettingsError) as error:
        read_settings(environ={PREFIX + name: given})
    assert str(error.value) == f"{PREFIX}{name}={given!r} {message}"


def test_sinks_may_be_a_list_and_thresholds_a_mapping():
    read = read_settings({"sinks": ["jsonl", "csv"], "thresholds": {"unexplained": 0.5}}, {})
    assert (read.sinks, read.thresholds) == (("jsonl", "csv"), {"unexplained": 0.5})


def test_unknown_argument_suggests_the_nearest():
    with pytest.raises(ValueError, match="log_evry") as error:
        read_settings({"log_evry": 3}, {})
    assert str(error.value) == "start_training_profiling(log_evry=...) is not a setting; did you mean log_every?"


@pytest.mark.parametrize(("rank", "read"), [("3", 3), ("", 0), ("first", 0), ("-1", 0)])
def test_rank_comes_from_the_launcher(rank, read):
    assert read_settings(environ={"RANK": rank}).rank == read


SHORT = "TRAINING_PROFILER"


def test_short_variable_is_read_where_the_documented_one_is_not_set():
    assert read_settings(environ={SHORT + "_LOG_EVERY": "7"}).log_every == 7
    assert read_settings(environ={SHORT + "_LOG_EVERY": "7", PREFIX + "LOG_EVERY": " "}).log_every == 7


def test_error_names_the_short_variable_that_was_given():
    with pytest.raises(SettingsError, match=r"^TRAINING_PROFILER_LOG_EVERY='x' is not"):
        read_settings(environ={SHORT + "_LOG_EVERY": "x"})


@pytest.mark.parametrize("name", [*variables()])
def test_two_names_of_a_variable_that_differ_are_an_error_that_names_both(name):
    short = name.replace("RECTIFIED_FLOW_PROFILE", SHORT)
    read = means_on if name == SWITCH else lambda environ: read_settings(environ=environ)
    with pytest.raises(SettingsError, match=f"^{name}='8' and {short}='9' are two names of one variable; set one"):
        read({name: "8", short: "9"})


def test_two_names_of_a_variable_may_say_the_same():
    both = {PREFIX + "LOG_EVERY": "8", SHORT + "_LOG_EVERY": " 8 ", PREFIX + "FLOPS": "yes", SHORT + "_FLOPS": "1"}
    assert read_settings(environ=both).log_every == 8
    assert means_on({SWITCH: "yes", SHORT: "1"})
    assert not means_on({SWITCH: "0", SHORT: "Off"})


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        (PREFIX + "LOG_EVRY", PREFIX + "LOG_EVERY"),
        (PREFIX + "LOG", PREFIX + "LOG_EVERY"),
        ("RECTIFIED_FLOW_PROFILER", "RECTIFIED_FLOW_PROFILE"),
        (SHORT + "_LOG_EVRY", SHORT + "_LOG_EVERY"),
    ],
)
def test_unknown_variable_suggests_the_nearest(given, nearest):
    assert unknown_variables({given: "3", SHORT + "_DIR": "x", "HOME": "/"}) == [
        f"{given}='3' is not a setting and has no effect; did you mean {nearest}=3?"
    ]


def test_zero_steps_between_reports_is_quiet_and_trackers_keep_their_rows():
    quiet = read_settings({"log_every": 0}, {})
    assert (quiet.is_quiet, quiet.interval_steps, Settings().is_quiet) == (True, 50, False)


@pytest.mark.parametrize(("arguments", "given"), [({}, False), ({"log_every": 50}, True)])
def test_settings_know_whether_reports_were_asked_for(arguments, given):
    assert read_settings(arguments, {}).is_log_every_given is given


def test_known_variables_are_not_reported():
    assert unknown_variables(dict.fromkeys([*variables(), ROOT], "1")) == []


@pytest.mark.parametrize(("given", "may_be"), [("0", False), ("no", False), ("1", True), ("", True)])
@pytest.mark.parametrize("prefix", [PREFIX, SHORT + "_"])
def test_a_variable_refuses_the_recorder_in_c(given, may_be, prefix):
    assert read_settings(environ={prefix + "NATIVE": given}).may_be_native is may_be


def test_processes_of_a_launch_share_its_id():
    assert launch_id({ROOT: "12:12-a5"}) == "12-a5"
    assert launch_id({}) is None


TORCHRUN = {
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "0",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        (TORCHRUN, Launch(4, 1, None, 0, 2, "job7", has_agent_store=True, cuda_connections=1, is_torchrun=True)),
        ({"TORCHELASTIC_RUN_ID": "none"}, Launch(is_torchrun=True)),  # its default
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}, Launch(job="12.0")),
        ({"SLURM_JOB_ID": "12"}, Launch()),
    ],
)
def test_variables_of_launchers_are_read(environ, launch):
    assert read_settings(environ=environ).launch == launch


@pytest.mark.parametrize(
    ("name", "value", "sleeps"),
    [
        ("OMP_WAIT_POLICY", "PASSIVE", True),
        ("OMP_WAIT_POLICY", "active", False),
        ("KMP_BLOCKTIME", "0", True),
        ("KMP_BLOCKTIME", "200", False),
        ("GOMP_SPINCOUNT", "0", True),
    ],
)
def test_variables_that_make_openmp_sleep_are_read(name, value, sleeps):
    assert read_settings(environ={name: value}).launch.openmp_sleeps == sleeps


def start_function():
    """Return the syntax tree of ``start_training_profiling``: importing the API would begin its work."""
    tree = ast.parse((Path(settings.__file__).parents[1] / "api.py").read_text(encoding="utf-8"))
    (function,) = (node for node in tree.body if getattr(node, "name", "") == "start_training_profiling")
    return function


def test_description_has_a_row_per_argument_in_its_order():
    arguments = [argument.arg for argument in (*start_function().args.args, *start_function().args.kwonlyargs)]
    assert [row.argument for row in describe()] == arguments
    assert [row.variable for row in describe()] == [PREFIX + name.upper().rstrip("_") for name in arguments]


@pytest.mark.parametrize("row", describe(), ids=lambda row: row.argument)
def test_described_example_can_be_read(row):
    assert getattr(read_settings(environ={row.variable: row.example}), row.argument) is not None


@pytest.mark.parametrize(
    "row",
    [row for row in describe() if row.argument not in ("sinks", "thresholds", "capture")],
    ids=lambda row: row.argument,
)
def test_described_default_is_the_default(row):
    assert read_settings(environ={row.variable: row.default}) == Settings()


def test_docstring_of_start_documents_every_argument():
    documented = re.findall(r"^    (\w+): ", ast.get_docstring(start_function()), re.M)
    assert documented == [row.argument for row in describe()]
