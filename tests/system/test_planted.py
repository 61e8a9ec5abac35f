"""Unmodified trainings with one planted fault each: the diagnosis finds it, and finds nothing in a healthy one."""

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from training_profiler.inspections import growth

from .launching import execute_forked
from .scripts import ROOT

pytestmark = pytest.mark.programs  # each is a real training

PLANTED = ROOT / "tests" / "planted"
# On a shared machine the steps of every training vary, whatever the program does.
SHARED_MACHINE = "machine-busy=1,cpu-oversubscribed=1"
# How much memory glibc keeps for the next step depends on chance.
# Each uses one thread for steadier times, which is a finding of its own where another CPU is free.
NOISE = f"step-time-varies=1,slowing-down=1,warm-up=1000,page-faults=1,few-threads=1,{SHARED_MACHINE}"
DEFAULT = f"step-time-varies=1,slowing-down=9,{SHARED_MACHINE}"
# These trainings take one second on a fast machine, which is too few samples at the usual rate.
OFTEN = {"RECTIFIED_FLOW_PROFILE_SAMPLE_HZ": "200", "OMP_NUM_THREADS": "1"}


def findings_of(program: str, cwd: Path, thresholds: str = DEFAULT, **variables: str) -> list[dict[str, Any]]:
    """Run a planted training under the profiler and return its findings in order."""
    return list(outcome_of(program, cwd, thresholds, **variables)[1]["findings"])


def outcome_of(
    program: str, cwd: Path, thresholds: str, *arguments: str, **variables: str
) -> tuple[str, dict[str, Any]]:
    """Run a planted training under the profiler; return what it printed, and its report."""
    variables |= {"RECTIFIED_FLOW_PROFILE_THRESHOLDS": thresholds}
    ended = execute_forked(cwd, str(PLANTED / f"{program}.py"), *arguments, **variables)
    assert ended.status == 0, ended.stderr
    assert "Final Profiling Summary" in ended.stdout + ended.stderr
    (folder,) = (cwd / "runs").glob("2*")
    return ended.stdout, json.loads((folder / "report.json").read_text())


def truth_of(stdout: str) -> dict[str, Any]:
    """Return what a program has printed of its own counting."""
    return dict(json.loads(stdout.partition("TRUTH ")[2].partition("\n")[0]))


def find(findings: list[dict[str, Any]], code: str) -> dict[str, Any]:
    assert code in [finding["code"] for finding in findings], findings
    return next(finding for finding in findings if finding["code"] == code)


def test_healthy_training_gets_no_warning(tmp_path: Path) -> None:
    codes = [finding["code"] for finding in findings_of("healthy", tmp_path, NOISE)]
    assert codes == ["healthy", "slowest-component", "data-loading-efficient"]


def test_slow_dataset_is_the_costliest_finding_and_says_how_many_workers_would_do(tmp_path: Path) -> None:
    stdout, report = outcome_of("slow_dataset", tmp_path, DEFAULT)
    first, truth_s = report["findings"][0], truth_of(stdout)["making_cpu_s"]
    evidence = first["evidence"]
    assert first["code"] == "data-loading-bound"
    assert evidence["share_of_step"] > 0.5
    assert first["step_if_fixed_s"] < first["step_s"] / 2
    (loader,) = report["loaders"]
    assert truth_s <= 1.1 * loader["batch_cpu_avg_s"] <= 2 * truth_s  # putting samples together is not in the truth
    assert evidence["batch_cpu_s"] == loader["batch_cpu_avg_s"]
    assert evidence["num_workers"] == 0
    assert evidence["workers_needed"] == math.ceil(evidence["batch_s"] / evidence["using_s"])


def test_synchronizing_item_is_found_with_its_line_only_once(tmp_path: Path) -> None:
    findings = findings_of("synchronizing_item", tmp_path, RECTIFIED_FLOW_PROFILE_SAMPLE_HZ="200")
    finding = find(findings, "waits-for-device")
    assert "unexplained" not in [finding["code"] for finding in findings]
    source = (PLANTED / "synchronizing_item.py").read_text().splitlines()
    line = source.index("            norm.item()") + 1
    assert f"synchronizing_item.py:{line} main (.item(), 100% of it)" in finding["finding"]
    # Of 150 steps with 6 reads of 2 ms; how much of a step that is depends on the load of the machine.
    assert finding["evidence"]["seconds"] > 0.8 * 150 * 6 * 0.002


def test_slow_checkpoint_is_the_costliest_finding(tmp_path: Path) -> None:
    first, *_ = findings_of("slow_checkpoint", tmp_path)
    assert first["code"] == "checkpointing-heavy"
    assert first["evidence"]["count"] == 80
    assert first["actions"][0]["text"].startswith("Save at each 10th of these times")


def test_what_the_end_of_each_epoch_writes_is_named_with_its_line(tmp_path: Path) -> None:
    for name in ("profiled", "plain", "fixed"):
        (tmp_path / name).mkdir()
    _, report = outcome_of("written_history", tmp_path / "profiled", NOISE, **OFTEN)
    finding = find(report["findings"], "outside-steps")
    assert "printing and writing (" in finding["finding"]
    # Where others write as well, opening the file takes longer than its rows.
    lines = [line_of("written_history", text) for text in ("writer.writerow", "path.open")]
    assert any(f"{line} write_history" in finding["finding"] for line in lines), finding
    assert finding["fix"].startswith("Do it in each 10th epoch")
    plain_s, fixed_s = (
        truth_of(execute_forked(tmp_path / "plain", str(PLANTED / "written_history.py"), *way).stdout)["cpu_s"]
        for way in ((), ("--fixed",))
    )
    assert finding["evidence"]["share_of_training"] * 0.9 == pytest.approx(1 - fixed_s / plain_s, abs=0.2)
    report = outcome_of("written_history", tmp_path / "fixed", NOISE, "--fixed", **OFTEN)[1]
    assert "outside-steps" not in [each["code"] for each in report["findings"]]


def line_of(program: str, text: str) -> str:
    """Return the file and line at which ``text`` stands in a planted training."""
    lines = (PLANTED / f"{program}.py").read_text().splitlines()
    return f"{program}.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def test_a_copy_of_the_model_in_each_step_is_named_with_its_line(tmp_path: Path) -> None:
    first, *_ = findings_of("copied_average", tmp_path, NOISE, **OFTEN)
    assert first["code"] == "unexplained"
    assert "copying objects" in first["evidence"]["spent_on"]
    assert line_of("copied_average", "fresh = copy.deepcopy") in first["finding"]


def test_validation_with_gradients_comes_before_the_time_it_takes(tmp_path: Path) -> None:
    first, second, *_ = findings_of("validated_with_gradients", tmp_path, NOISE, **OFTEN)
    assert first["code"] == "validation-with-gradients"
    assert first["evidence"]["count"] == 2000
    assert line_of("validated_with_gradients", "hits = sum(") in first["finding"]
    assert second["code"] == "validation-heavy"


@pytest.mark.parametrize(
    ("program", "code", "line"),
    [
        ("generator_twice", "repeated-forward", "made = generator(noise)  # again"),
        ("frozen_backbone", "frozen-forward", "else backbone(inputs)"),
        ("anomaly_mode", "anomaly-detection", "set_detect_anomaly(True)"),
        ("dense_table", "dense-embedding", "optimizer.step()"),
        ("loop_in_dataset", "data-loading-bound", "total += number"),
        ("one_hot_words", "calls-in-forward", "vectors = F.one_hot"),
        ("filled_mask", "computed-constants", "mask[row, column] ="),
        ("normalized_again", "computed-constants", "self.data.std(0)"),
    ],
)
def test_the_cause_comes_first_with_its_line(tmp_path: Path, program: str, code: str, line: str) -> None:
    first, *_ = findings_of(program, tmp_path, NOISE, **OFTEN)
    assert first["code"] == code, first
    assert line_of(program, line) in first["finding"]


def test_padding_is_found_with_what_shorter_rows_save(tmp_path: Path) -> None:
    for name in ("plain", "cut", "tokens"):
        (tmp_path / name).mkdir()
    stdout, report = outcome_of("padded_texts", tmp_path / "plain", NOISE, **OFTEN)
    finding, truth = find(report["findings"], "padding"), truth_of(stdout)
    assert finding["evidence"]["padding"] == pytest.approx(truth["padding"], abs=0.02)
    assert finding["evidence"]["lines"] == line_of("padded_texts", "def collate") + " collate"
    stdout, report = outcome_of("padded_texts", tmp_path / "cut", NOISE, "--longest", **OFTEN)
    said = finding["evidence"]["share_of_step"] * finding["evidence"]["to_longest"] / finding["evidence"]["padding"]
    # CPU time of a thread beside shares of wall time, in two runs: on a busy machine these differ by a tenth.
    assert said == pytest.approx(1 - truth_of(stdout)["step_s"] / truth["step_s"], abs=0.2)
    report = outcome_of("padded_texts", tmp_path / "tokens", NOISE, "--tokens", **OFTEN)[1]
    assert "padding" not in [finding["code"] for finding in report["findings"]]


def test_images_padded_to_the_largest_of_all_are_found_with_what_smaller_ones_save(tmp_path: Path) -> None:
    for name in ("plain", "digits"):
        (tmp_path / name).mkdir()
    finding = find(outcome_of("padded_images", tmp_path / "plain", NOISE, **OFTEN)[1]["findings"], "padding")
    assert finding["evidence"]["lines"] == line_of("padded_images", "def collate") + " collate"
    report = outcome_of("padded_images", tmp_path / "digits", NOISE, "digits", **OFTEN)[1]
    assert "padding" not in [each["code"] for each in report["findings"]]
    plain_s, fixed_s = (
        truth_of(execute_forked(tmp_path, str(PLANTED / "padded_images.py"), *way).stdout)["cpu_s"]
        for way in ((), ("fixed",))
    )
    assert 0.3 < finding["saving_share"] < 1 - fixed_s / plain_s + 0.1


def test_weights_that_are_computed_again_are_found_with_what_keeping_them_saves(tmp_path: Path) -> None:
    for name in ("plain", "cached"):
        (tmp_path / name).mkdir()
    report = outcome_of("computed_weight", tmp_path / "plain", NOISE, **OFTEN)[1]
    finding = find(report["findings"], "computed-weights")
    assert line_of("computed_weight", "torch.tanh(") in finding["finding"]
    assert finding["evidence"]["calls"] == 8
    report = outcome_of("computed_weight", tmp_path / "cached", NOISE, "--cached", **OFTEN)[1]
    assert "computed-weights" not in [finding["code"] for finding in report["findings"]]
    plain_s, cached_s = (
        truth_of(execute_forked(tmp_path / "plain", str(PLANTED / "computed_weight.py"), *way).stdout)["cpu_s"]
        for way in ((), ("--cached",))
    )
    assert finding["evidence"]["share_of_step"] == pytest.approx(1 - cached_s / plain_s, abs=0.15)


def test_what_each_forward_pass_builds_again_is_found_with_what_keeping_it_saves(tmp_path: Path) -> None:
    for name in ("built", "kept", "noisy"):
        (tmp_path / name).mkdir()
    stdout, report = outcome_of("built_again", tmp_path / "built", NOISE, **OFTEN)
    finding, truth = find(report["findings"], "computed-constants"), truth_of(stdout)
    assert "positions" in finding["evidence"]["lines"]
    for name in ("kept", "noisy"):
        _, report = outcome_of("built_again", tmp_path / name, NOISE, f"--{name}", **OFTEN)
        assert "computed-constants" not in [each["code"] for each in report["findings"]]
    plain, kept = (
        truth_of(execute_forked(tmp_path, str(PLANTED / "built_again.py"), *way, is_profiled=False).stdout)
        for way in ((), ("--kept",))
    )
    assert truth["loss"] == plain["loss"] == kept["loss"]
    assert finding["evidence"]["share_of_step"] == pytest.approx(1 - kept["cpu_s"] / plain["cpu_s"], abs=0.2)


@pytest.mark.parametrize(
    ("way", "code", "what"),
    [
        ((), "recompiles", "self.calls changed at recompiled.py:29"),
        (("--sizes",), "recompiles", "dimension 0 of x changed"),
        (("--list",), "recompiles", "the length of parts changed"),
        (("--breaks",), "graph-breaks", "recompiled.py:25 forward ("),
        (("--fixed",), "", ""),
        (("--two-shapes",), "", ""),
        (("--asked",), "", ""),
    ],
)
def test_why_code_is_compiled_again_and_where_graphs_end(
    tmp_path: Path, way: tuple[str, ...], code: str, what: str
) -> None:
    stdout, report = outcome_of("recompiled", tmp_path, NOISE, *way)
    by_code, truth = {each["code"]: each for each in report["findings"]}, truth_of(stdout)
    assert (
        what in by_code[code]["finding"] if code else not {"recompiles", "compile-limit", "graph-breaks"} & {*by_code}
    )
    if code == "recompiles":
        evidence = by_code[code]["evidence"]
        assert evidence["recompiled"] == truth["again"]
        assert evidence["recompiled_s"] == pytest.approx(truth["seconds"], rel=0.1)
        assert ("gave up" in by_code[code]["finding"]) == (not way)


def test_statistics_that_each_step_computes_again_save_what_the_fixed_program_does(tmp_path: Path) -> None:
    reports, truths = {}, {}
    for way in ("--plain", "--fixed", "--batch"):
        (tmp_path / way).mkdir()
        reports[way] = outcome_of("normalized_again", tmp_path / way, NOISE, way, **OFTEN)[1]["findings"]
        program = (str(PLANTED / "normalized_again.py"), way)
        truths[way] = truth_of(execute_forked(tmp_path / way, *program, is_profiled=False).stdout)
    finding = find(reports["--plain"], "computed-constants")
    assert "computed-constants" not in {each["code"] for way in ("--fixed", "--batch") for each in reports[way]}
    assert truths["--plain"]["loss"] == truths["--fixed"]["loss"]
    true = 1 - truths["--fixed"]["cpu_s"] / truths["--plain"]["cpu_s"]
    assert true - 0.25 < finding["evidence"]["share_of_step"] < true + 0.1  # low, as calls take longer when watched


@pytest.mark.parametrize("way", ["", "--fixed"])
def test_two_functions_that_take_the_time_of_a_section_are_named_both(tmp_path: Path, way: str) -> None:
    stdout, report = outcome_of("two_causes", tmp_path, NOISE, *way.split(), **OFTEN)
    finding, truth = find(report["findings"], "data-loading-bound"), truth_of(stdout)
    named = [name for name in truth if f" {name} (" in finding["finding"]]
    assert named == (["smoothed"] if way else ["smoothed", "squared"]), finding["finding"]
    actions = " ".join(each["text"] for each in finding["actions"])
    assert [name for name in truth if name in actions] == named


def test_samples_that_each_epoch_makes_again_save_what_keeping_them_does(tmp_path: Path) -> None:
    truths, said = {}, {}
    for way in ("--plain", "--fixed", "--random"):
        (tmp_path / way).mkdir()
        stdout, report = outcome_of("decoded_again", tmp_path / way, NOISE, way, **OFTEN)
        actions = [action for each in report["findings"] for action in each["actions"]]
        said[way] = [each["saving_share"] for each in actions if each["text"].startswith("make each sample once")]
        truths[way] = truth_of(stdout)
    assert not said["--fixed"]
    assert not said["--random"]
    assert truths["--plain"]["loss"] == truths["--fixed"]["loss"]
    true = 0.8 * (1 - truths["--fixed"]["cpu_s"] / truths["--plain"]["cpu_s"])  # one of five epochs has to make them
    assert said["--plain"] == [pytest.approx(true, abs=0.2)]


def test_a_teacher_with_detached_outputs_is_found_with_its_line(tmp_path: Path) -> None:
    finding = find(findings_of("detached_teacher", tmp_path, NOISE, **OFTEN), "unused-graphs")
    assert "80% of them" in finding["finding"]
    assert line_of("detached_teacher", "targets = [teacher(") in finding["finding"]


def test_features_that_are_kept_already_are_not_found(tmp_path: Path) -> None:
    report = outcome_of("frozen_backbone", tmp_path, NOISE, "--kept", **OFTEN)[1]
    assert "frozen-forward" not in [finding["code"] for finding in report["findings"]]


@pytest.mark.parametrize("way", ["", "--statistics", "--fixed", "--buffer"])
def test_batches_that_are_fetched_before_the_training_are_found_with_their_seconds(tmp_path: Path, way: str) -> None:
    stdout, report = outcome_of("skipped_batches", tmp_path, NOISE, *way.split(), **OFTEN)
    found = [each for each in report["findings"] if each["code"] == "fetched-before-training"]
    if way in ("--fixed", "--buffer"):
        assert found == []
        return
    (finding,) = found
    does = "takes 120 batches" if not way else "goes through 160 batches of a loader without training"
    assert does in finding["finding"]
    assert line_of("skipped_batches", "enumerate(batches)" if not way else "sum(inputs") in finding["finding"]
    truth_s = truth_of(stdout)["before_s"]  # with the first batch trained on
    assert finding["evidence"]["seconds"] == pytest.approx(truth_s, rel=0.1, abs=0.2)


@pytest.mark.parametrize("way", ["", "--named", "--fixed"])
def test_an_import_that_nothing_names_is_found_with_its_seconds(tmp_path: Path, way: str) -> None:
    stdout, report = outcome_of("unused_imports", tmp_path, NOISE, *way.split(), **OFTEN)
    found = [each for each in report["findings"] if each["code"] == "unused-imports"]
    assert len(found) == (not way), found
    if found:
        assert line_of("unused_imports", "import plots  #") in found[0]["finding"]
        assert found[0]["evidence"]["seconds"] == pytest.approx(truth_of(stdout)["import_s"], rel=0.15, abs=0.3)


def test_a_stream_that_each_worker_repeats_is_found(tmp_path: Path) -> None:
    finding = find(findings_of("repeated_stream", tmp_path, NOISE, **OFTEN), "stream-repeated")
    assert finding["evidence"]["share_of_steps"] == 0.5
    assert finding["saving_s"] > 0
    assert "Each of the 2 workers yields all samples of Stream" in finding["finding"]


def test_a_stream_that_is_divided_among_workers_is_not_found(tmp_path: Path) -> None:
    report = outcome_of("repeated_stream", tmp_path, NOISE, "--divided", **OFTEN)[1]
    assert report["loaders"][0]["workers"]["repeats"]["times"] == 1
    assert "stream-repeated" not in [each["code"] for each in report["findings"]]


def test_workers_that_only_cost_time_are_advised_against(tmp_path: Path) -> None:
    finding = find(findings_of("idle_workers", tmp_path, NOISE, **OFTEN), "data-loading-bound")
    assert finding["fix"].startswith("Set DataLoader(num_workers=0), now 1: ")


def test_slowing_steps_are_found(tmp_path: Path) -> None:
    thresholds = f"step-time-varies=9,{SHARED_MACHINE}"
    often = {"RECTIFIED_FLOW_PROFILE_SAMPLE_HZ": "200", "RECTIFIED_FLOW_PROFILE_FLUSH_S": "0.2"}
    _, report = outcome_of("slowing_step", tmp_path, thresholds, **often)
    source = (PLANTED / "slowing_step.py").read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if text.startswith("        mean = sum("))
    by_code = {finding["code"]: finding for finding in report["findings"]}
    if "growing-work" in by_code:  # says more, and needs samples of the line in each part of the run
        what = f"slowing_step.py:{line} main takes longer as history grew from"
        assert by_code["growing-work"]["finding"].startswith(what)
        return
    assert by_code["slowing-down"]["evidence"]["rise"] > 0.3
    grown = report["step_time"]["change"] or report["step_time"]["halves"]
    assert grown["lines"]["other"][0]["line"] == f"slowing_step.py:{line} main"


def test_memory_leak_is_found(tmp_path: Path) -> None:
    findings = findings_of("leaking_losses", tmp_path, RECTIFIED_FLOW_PROFILE_MONITOR_S="0.05")
    assert find(findings, "memory-growth")["evidence"]["growth_bytes"] > 100 * 2**20


@pytest.mark.parametrize("arguments", [(), ("fixed",), ("cached",)])
def test_workers_that_copy_a_list_by_reading_it_are_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    _, report = outcome_of("copied_list", tmp_path, f"{NOISE},workers-copy-memory=0.0005", *arguments)
    findings = [each for each in report["findings"] if each["code"] == "workers-copy-memory"]
    if arguments:
        assert findings == []
        return
    if not report["loaders"][0]["workers"]["memory_copied_bytes"]:
        pytest.skip("this machine was so busy that the workers did not look at their memory a second time")
    (finding,) = findings
    objects_bytes = 6_400 * 250 * sys.getsizeof(1.0)
    assert 0.2 * objects_bytes < finding["evidence"]["copied_bytes"] < 1.4 * objects_bytes
    assert "Keep what Texts lists in a NumPy array" in finding["fix"]


@pytest.mark.parametrize("arguments", [(), ("fixed",), ("short",)])
def test_a_log_that_is_written_again_is_named_with_what_adding_a_line_saves(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    stdout, report = outcome_of("rewritten_log", tmp_path, NOISE, *arguments, **OFTEN)
    findings = [each for each in report["findings"] if each["code"] == "growing-work"]
    if arguments:
        assert findings == []
        return
    (finding,) = findings
    assert finding["evidence"]["variable"] == "history"
    assert finding["evidence"]["lines"].startswith(line_of("rewritten_log", "json.dump(history"))
    assert " elements while the step grew from " in finding["finding"]
    assert finding["fix"].startswith("Append what is new to the file")
    assert 0.4 * truth_of(stdout)["written"] < finding["saving_share"] < truth_of(stdout)["written"] + 0.1


@pytest.mark.parametrize("arguments", [("meters",), ("fixed",), ("meters", "fixed")])
def test_what_grows_in_an_object_of_a_dict_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    _, report = outcome_of("growing_bank", tmp_path, NOISE, *arguments, **OFTEN)
    findings = [each for each in report["findings"] if each["code"] == "growing-work"]
    if "fixed" in arguments:
        assert findings == []
        return
    (finding,) = findings
    assert finding["evidence"]["variable"] == "self.meters.kept"
    assert finding["evidence"]["lines"].startswith(line_of("growing_bank", "return sum(self.kept"))


@pytest.mark.parametrize("arguments", [(), ("small",), ("fixed",), ("replay",)])
def test_a_variable_that_keeps_what_memory_grows_by_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    _, report = outcome_of("kept_outputs", tmp_path, DEFAULT, *arguments, RECTIFIED_FLOW_PROFILE_MONITOR_S="0.05")
    findings = [each for each in report["findings"] if each["code"] == "memory-growth"]
    if arguments in (("fixed",), ("replay",)):
        assert findings == []
        return
    (finding,) = findings
    assert finding["evidence"]["variable"] == "log.outputs"
    assert finding["evidence"]["lines"] == line_of("kept_outputs", "log.outputs.append")
    assert ("elements of 0.3 MiB" in finding["finding"]) == (not arguments)


@pytest.mark.parametrize("arguments", [(), ("fixed",), ("added",), ("added", "fixed")])
def test_an_optimizer_that_does_more_and_more_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    small = torch.full((10_000,), 1e-40)
    if arguments == () and not growth._is_slow(small, is_squared=True):
        pytest.skip("this CPU is as quick with subnormal floats")
    _, report = outcome_of("growing_optimizer", tmp_path, NOISE, *arguments, **OFTEN)
    findings = [each for each in report["findings"] if each["code"] == "growing-work"]
    if "fixed" in arguments:
        assert findings == []
        return
    (finding,) = findings
    assert finding["evidence"]["variable"] == ("SGD" if arguments else "exp_avg_sq of Adam")
    lines = line_of("growing_optimizer", ".extend(") if arguments else ""
    assert finding["evidence"]["lines"] == lines
    assert finding["evidence"]["share_of_step"] > 0.3


@pytest.mark.parametrize("arguments", [(), ("fixed",)])
def test_a_state_that_is_not_detached_is_named_with_what_detaching_it_saves(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    _, report = outcome_of("kept_state", tmp_path, NOISE, *arguments, OMP_NUM_THREADS="1")
    findings = [each for each in report["findings"] if each["code"] == "growing-graph"]
    if arguments:
        assert findings == []
        return
    (finding,) = findings
    assert finding["evidence"]["variable"] == "hidden"
    assert finding["evidence"]["lines"] == line_of("kept_state", "backward(retain_graph=True)").replace(" ", "")
    assert finding["evidence"]["share_of_step"] > 0.5


def test_full_garbage_collections_have_the_time_that_the_program_sees(tmp_path: Path) -> None:
    thresholds = f"step-time-varies=9,{SHARED_MACHINE}"
    stdout, report = outcome_of("full_collections", tmp_path, thresholds, OMP_NUM_THREADS="1")
    truth = truth_of(stdout)
    by_kind = report["garbage"]["by_kind"]
    assert by_kind["generation 2"]["step_total_s"] == pytest.approx(truth["generation 2"], rel=0.01)
    # The program's own callback takes a part of a short collection.
    assert by_kind["generation 1"]["step_total_s"] == pytest.approx(truth["generation 1"], rel=0.2)
    assert report["garbage"]["explained"] > 0.25  # waits for a CPU make steps uneven as well
    finding = find(report["findings"], "garbage-collection")
    assert finding["evidence"]["kind"] == "full"
    assert 0.8 * truth["generation 2"] < finding["saving_s"] < 1.05 * truth["generation 2"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the page faults of a thread")
def test_page_faults_have_the_time_that_the_program_sees(tmp_path: Path) -> None:
    variables = {"OMP_NUM_THREADS": "1", "RECTIFIED_FLOW_PROFILE_MONITOR_S": "0.1"}
    stdout, report = outcome_of("new_memory", tmp_path, f"step-time-varies=9,{SHARED_MACHINE}", **variables)
    truth = truth_of(stdout)
    pause = next(pause for pause in report["pauses"] if pause["cause"] == "page faults")
    assert 0.8 * pause["min_s"] <= truth["lost_s"] <= 1.25 * pause["max_s"]  # others take the caches meanwhile
    assert find(report["findings"], "page-faults")["evidence"]["pages_per_step"] >= 0.8 * truth["pages"]


ALONE = {"OMP_NUM_THREADS": "1", "RECTIFIED_FLOW_PROFILE_MONITOR_S": "0.1"}
VARIES = "step-time-varies=9"


def pause_of(report: dict[str, Any], cause: str) -> dict[str, Any]:
    causes = [pause["cause"] for pause in report["pauses"]]
    assert cause in causes, report["pauses"]
    return dict(report["pauses"][causes.index(cause)])


def test_waiting_for_a_disk_has_the_time_that_the_program_sees(tmp_path: Path) -> None:
    stdout, report = outcome_of("synced_log", tmp_path, VARIES, **ALONE)
    pause = pause_of(report, "disk")
    assert pause["min_s"] <= truth_of(stdout)["lost_s"] <= pause["max_s"]
    assert line_of("synced_log", "os.fsync(") in find(report["findings"], "unexplained")["finding"]


def test_longer_batches_are_more_work_and_no_fault(tmp_path: Path) -> None:
    stdout, report = outcome_of("longer_batches", tmp_path, VARIES, **ALONE)
    truth = truth_of(stdout)
    if max(truth["short_s"]) > min(truth["long_s"]):  # quartiles of the program's own times
        pytest.skip("other programs kept this machine so busy that short batches took as long as long ones")
    if report["step_time"]["change"] is None and report["findings"][0]["code"] == "machine-busy":
        pytest.skip("other programs kept this machine so busy that no change of step times is shown")
    finding = find(report["findings"], "steps-do-more")
    longer = "the length of a batch grew from 8 to 64 (inputs of 16 x 64 x 128), while the step grew from "
    assert longer in finding["finding"]
    change = report["step_time"]["change"]
    assert change["first_step"] <= 151 <= change["last_step"]
    assert change["input_elements"][1] == pytest.approx(8 * change["input_elements"][0], rel=0.2)
    assert "slower-since" not in [each["code"] for each in report["findings"]]


@pytest.fixture
def quota() -> Iterator[Path]:
    """A control group that may use a third of one CPU."""
    folder = Path("/sys/fs/cgroup/cpu") / f"planted-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "cpu.cfs_quota_us").write_text("33000")
    except OSError:
        pytest.skip("control groups cannot be made here")
    yield folder
    folder.rmdir()


def test_throttling_has_the_time_that_the_program_sees(tmp_path: Path, quota: Path) -> None:
    stdout, report = outcome_of("throttled", tmp_path, VARIES, str(quota), **ALONE)
    pause, lost_s = pause_of(report, "the container's CPU quota"), truth_of(stdout)["lost_s"]
    # The quota stops whoever reads a counter, too: between the clock and the counter, at the first and the last sample.
    stops_s = 2 * 0.067
    assert pause["min_s"] - stops_s <= lost_s <= pause["max_s"] + stops_s
    assert find(report["findings"], "machine-busy")["evidence"]["cause"] == "quota"


def test_batches_from_a_queue_of_the_program_are_said_to_be_not_seen(tmp_path: Path) -> None:
    _, report = outcome_of("own_queue", tmp_path, NOISE)
    (wait,) = report["unsampled_waits"]
    assert wait["what"] == "a queue between threads"
    assert wait["line"] == f"{line_of('own_queue', 'batches_ahead.get()')} main"
    assert wait["share"] > 0.3
