"""The TensorBoard page of our charts: every chart finds its data, and a browser shows all of them without an error."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from training_profiler.model.snapshot import (
    OTHER,
    EpochStats,
    GpuStats,
    Level,
    LoaderStats,
    MachineStats,
    SectionStats,
    Snapshot,
    StepStats,
    Throughput,
)
from training_profiler.sinks.metrics import epoch_metrics, interval_metrics, loader_metrics
from training_profiler.sinks.sink import MetricRow

pytestmark = pytest.mark.integrations
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
GROUPS = ["Throughput", "Memory", "Timing breakdown", "Bottlenecks"]
PATIENCE_S = 60
ERROR_RED = (255, 0, 0)  # the card with the error of a chart
CHARTS = [
    "Batches and steps per second",
    "Samples per second",
    "Batch time (s)",
    "Batches per hour, by epoch",
    "Achieved TFLOP/s",
    "Model FLOPs utilization",
    "Host memory used (%)",
    "Host memory available (GB)",
    "GPU memory allocated (GB)",
    "GPU memory used (%)",
    "Where the time goes (% of wall time, stacked)",
    "Mean of a span, by section (s)",
    "Mean of validation, sampling, checkpoints (s)",
    "Data loaders, training (ms)",
    "Data loaders, validation (ms)",
    "Bottlenecks (1 where there is one)",
    "Severity (0 to 1)",
    "CPU and GPU busy (%)",
    "Data generation and transfer (% of batch time)",
]


def rows() -> Iterator[MetricRow]:
    """Yield the rows of a training with every metric; validation starts later."""
    for number in range(1, 21):
        wave = number % 5 / 10
        shares = {"data_loading": 0.1 + wave, "data_generation": 0.1, "forward_pass": 0.2, "backward_pass": 0.2}
        if number > 4 and number % 4 == 0:
            shares["validation_epoch"] = 0.05
        yield MetricRow(50 * number, 1e9 + 60 * number, interval_metrics(snapshot(shares, wave)))
        if number % 5 == 0:
            parts_s = {"forward_pass": 60.0, "backward_pass": 120.0, OTHER: 120.0}
            epoch = EpochStats(number // 5, 300.0, 250, 250, None, 1.2, parts_s, None, None, machine=machine(wave))
            yield MetricRow(50 * number, 1e9 + 60 * number, epoch_metrics(epoch))
        train = LoaderStats("main", 50, None, 1.0, "train", 0.01 + wave / 100, 0.02, 0.04, 0.01, 0.09, 1.0)
        held_out = LoaderStats("held_out", 5, None, 1.0, "val", 0.01, 0.02)
        yield MetricRow(50 * number, 1e9 + 60 * number, loader_metrics([train, held_out]))


def snapshot(shares: dict[str, float], wave: float) -> Snapshot:
    shares = {**shares, OTHER: 1 - sum(shares.values())}
    sections = {
        name: SectionStats(name, 50, 60 * share, 60 * share, share, avg_s=share, settled_total_s=60 * share)
        for name, share in shares.items()
    }
    step = StepStats(50, 60.0, 1.2, 0, 0.0, 50, 1.2, 0.1, 2.0, 3, 60.0)
    return Snapshot(
        steps=50,
        wall_s=60.0,
        sections=sections,
        step=step,
        machine=machine(wave),
        throughput=Throughput(0.8, samples_per_s=52.0 + wave, tflops=10 + wave, mfu=0.3 + wave / 10),
    )


def machine(wave: float) -> MachineStats:
    def level(mean: float) -> Level:
        return Level(mean, mean, mean)

    gpus = tuple(
        GpuStats(
            index,
            total_bytes=80 * 10**9,
            allocated_bytes=level((30 + 10 * index + 10 * wave) * 1e9),
            used_bytes=level((60 + 10 * index + 10 * wave) * 1e9),
            utilization=level(0.9 - wave),
        )
        for index in range(2)
    )
    share = 0.7 + wave / 2
    return MachineStats(
        1, ram_share=level(share), ram_available_bytes=level((1 - share) * 64e9), cpu_host=level(0.3 + wave), gpus=gpus
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Write the rows, serve them with TensorBoard, and yield its address."""
    pytest.importorskip("tensorboard")
    from training_profiler.sinks.tensorboard_events import TensorboardEvents

    folder = tmp_path_factory.mktemp("tensorboard")
    sink = TensorboardEvents()
    sink.open(folder)
    for row in rows():
        sink.write([row])
    sink.close()
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, 15)
        server.wait(PATIENCE_S)


def ask(address: str, until_there_is: str = "") -> Any:
    """Return the response of the server, once it contains these words."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        with suppress(OSError), urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
            if until_there_is in text:
                return json.loads(text)
        time.sleep(0.2)
    raise TimeoutError(address)


def test_every_chart_finds_its_data(served: str) -> None:
    layout = ask(f"{served}/data/plugin/custom_scalars/layout", until_there_is="section_outside_steps_mean")
    assert [category["title"] for category in layout["category"]] == GROUPS
    scalars = ask(f"{served}/data/plugin/scalars/tags")
    charts = [chart for category in layout["category"] for chart in category["chart"]]
    assert sorted(chart["title"] for chart in charts) == sorted(CHARTS)
    for chart in charts:
        if "multiline" in chart:
            (pattern,) = chart["multiline"]["tag"]
            assert any(points(served, pattern, run) for run in scalars), chart["title"]
        else:
            tags = {tag for series in chart["margin"]["series"] for tag in (series["lower"], series["upper"])}
            assert sum(tags <= of_run.keys() for of_run in scalars.values()) > 1


def test_each_section_is_a_run_so_that_it_has_its_own_color(served: str) -> None:
    ask(f"{served}/data/plugin/custom_scalars/layout", until_there_is="overview")
    scalars = ask(f"{served}/data/plugin/scalars/tags")
    runs = {run for run, tags in scalars.items() if "overview/1_section_share_percent" in tags}
    assert {"tensorboard/forward_pass", "tensorboard/data_loading", "tensorboard/other"} <= runs
    assert min(tag for tags in scalars.values() for tag in tags).startswith("overview/")


def points(served: str, pattern: str, run: str) -> Any:
    asked = urllib.parse.urlencode({"tag": pattern, "run": run})
    found = ask(f"{served}/data/plugin/custom_scalars/scalars?{asked}")
    assert found["regex_valid"]
    return found["tag_to_events"]


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome to look at the page with")
def test_browser_shows_the_page_without_an_error(served: str, tmp_path: Path) -> None:
    ask(f"{served}/data/plugin/custom_scalars/layout", until_there_is="section_outside_steps_mean")
    image = pytest.importorskip("PIL.Image")
    picture = tmp_path / "page.png"
    subprocess.run(
        [
            str(BROWSER),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1500,2800",
            "--virtual-time-budget=30000",
            f"--user-data-dir={tmp_path / 'browser'}",
            f"--screenshot={picture}",
            f"{served}/?darkMode=false#custom_scalars",
        ],
        check=True,
        capture_output=True,
        timeout=280,
    )
    with image.open(picture) as opened:
        pixels = opened.convert("RGB")
        colors = {color: count for count, color in pixels.getcolors(pixels.width * pixels.height)}
    assert colors.get(ERROR_RED, 0) == 0
    assert len(colors) > 100  # an empty page has a handful
