"""The counters of a real GPU say what known work does; a table shows what was measured and what is expected."""

import json
import os
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from tests.gpu.running import run
from tests.support.recording import snapshot_of
from training_profiler.base.peaks import peak_of
from training_profiler.diagnosis.precision import gpu_bound
from training_profiler.model.snapshot import GpuStats, Level, MachineStats, Throughput

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

MOST_CPU_MS = 1.0  # of a sample, on average
# Work, counter, and its least and most: on an H200 0.96, 0.93, 0.17; 0.96, 0; 0.86; 0 (driver 580).
EXPECTED = (
    ("bfloat16", "sm_active", 0.85, 1.0),
    ("bfloat16", "tensor_active", 0.6, 1.0),
    ("bfloat16", "dram_active", 0.02, 0.6),
    ("float32", "sm_active", 0.85, 1.0),
    ("float32", "tensor_active", 0.0, 0.02),
    ("copy on the device", "dram_active", 0.6, 1.0),
    ("copy from the host", "sm_active", 0.0, 0.05),
    ("idle", "sm_active", 0.0, 0.02),
)
# What gpu-bound says of a training that did nothing else; steps that only copy keep the device less busy.
LIMITS = {"bfloat16": "", "float32": "tensor cores", "copy on the device": "memory", "copy from the host": "pcie"}
COPY, WITHIN = "copy from the host", 0.15  # of the bytes that the program counts itself


def limit_of(work, device, figures):
    levels = {
        each.name: Level(figures[each.name], figures[each.name], figures[each.name])
        for each in fields(GpuStats)
        if each.name in figures and each.name.startswith(("sm_", "tensor_", "dram_", "pcie_"))
    }
    gpu = GpuStats(0, device, loop_utilization=Level(1.0, 1.0, 1.0), **levels)
    rates = Throughput(1.0, dtype=work if work in ("bfloat16", "float32") else "tf32", device=device)
    run = snapshot_of({"forward_pass": 0.9})
    finding = gpu_bound(replace(run, machine=MachineStats(samples=25, gpus=(gpu,)), throughput=rates))
    return "" if finding is None else str(finding.evidence["limit"])


def test_counters_say_what_known_work_does(tmp_path, kind):
    if kind != "cuda":
        pytest.skip(f"NVML has no counters of {kind}")
    result = run(tmp_path, "inside", profile="0")
    if not result["found"]:
        pytest.skip(f"{result['device']}: no counters, {result['why']}")
    found = result["found"]
    copied, counted = found[COPY]["copied_bytes_per_s"], found[COPY]["pcie_rx_bytes_per_s"]
    rows = [(work, name, found[work][name], low, high) for work, name, low, high in EXPECTED]
    rows.append((COPY, "pcie_rx_bytes_per_s", counted, (1 - WITHIN) * copied, (1 + WITHIN) * copied))
    rows.append(("reading", "CPU ms", result["cpu_ms"], 0.0, MOST_CPU_MS))
    print(f"{result['device']}\n{'work':20} {'figure':20} {'measured':>12} {'from':>12} {'to':>12} within")
    for work, name, measured, low, high in rows:
        print(f"{work:20} {name:20} {measured:12.4g} {low:12.4g} {high:12.4g} {low <= measured <= high}")
    known = {name: value for name, value in result["known"].items() if name.startswith("pcie_") and "bytes" not in name}
    limits = {work: limit_of(work, result["device"], found[work] | known) for work in LIMITS}
    if not known:
        del limits[COPY]
    for work, limit in limits.items():
        print(
            f"{work:20} {'limit':20} {limit or 'none':>12} {LIMITS[work] or 'none':>12} {'':12} {limit == LIMITS[work]}"
        )
    print("readings:", result["known"])
    assert [row for row in rows if not row[3] <= row[2] <= row[4]] == []
    assert limits == {work: LIMITS[work] for work in limits}


def test_measured_peaks_are_near_those_of_the_data_sheet(tmp_path, kind):
    if kind != "cuda":
        pytest.skip(f"doctor measures no {kind}")
    command = [sys.executable, "-m", "training_profiler", "doctor", "--measure-peak", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)}, capture_output=True, timeout=120
    )
    assert done.stdout, done.stderr.decode()[-2000:]
    found, rows = json.loads(done.stdout), []
    for kept in (tmp_path / "training-profiler" / "peaks").iterdir():
        measured = json.loads(kept.read_text())
        for dtype, rate in measured["tflops"].items():
            print(f"{measured['device']:32} {dtype:10} {found['Peak of ' + measured['device']][dtype]}")
            sheet = peak_of(measured["device"], dtype)
            rows += [] if sheet is None else [(measured["device"], dtype, rate / sheet[0])]
    assert [row for row in rows if not 0.5 <= row[2] <= 1.05] == []
