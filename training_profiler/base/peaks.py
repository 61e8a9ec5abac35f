"""The table of peak rates of accelerators, each with its source; and where rates are that were measured."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Final


@dataclass(frozen=True, slots=True)
class Peak:
    """Dense peak rates of one accelerator, without sparsity."""

    words: tuple[str, ...]  # all of them occur in the device's name, as torch reports it
    tflops: Mapping[str, float]  # by dtype, in 1e12 per second
    source: str
    memory_tb_s: float | None = None  # 1e12 bytes per second; None where the name stands for several


def _rates(
    half: float, tf32: float | None, float32: float, float64: float | None = None, float8: float | None = None
) -> dict[str, float]:
    rates = {"float16": half, "bfloat16": half, "tf32": tf32, "float32": float32, "float64": float64}
    rates |= {"float8_e4m3fn": float8, "float8_e5m2": float8}
    return {dtype: rate for dtype, rate in rates.items() if rate is not None}


_HOPPER: Final = _rates(989.4, 494.7, 66.9, 66.9, 1978.9)
_HOPPER_PCIE: Final = _rates(756.0, 378.0, 51.0, 51.0, 1513.0)
# Half of the printed figure, which is with sparsity according to its footnote.
_HOPPER_NVL: Final = _rates(835.5, 417.5, 60.0, 60.0, 1670.5)

_AMPERE: Final = _rates(312.0, 156.0, 19.5, 19.5)

# Words in the names of variants whose peak rate the name does not determine.
ANOTHER: Final = ("mig", "laptop", "ti", "d", "max", "mi250")

# The first entry whose words all occur in the name applies.
PEAKS: Final = (
    Peak(("B200",), _rates(2250.0, 1125.0, 75.0, 37.0, 4500.0), "NVIDIA Blackwell (HGX B200) data sheet", 8.0),
    Peak(("H200", "NVL"), _HOPPER_NVL, "NVIDIA H200 data sheet", 4.8),
    Peak(("H200",), _HOPPER, "NVIDIA H200 data sheet", 4.8),
    Peak(("H100", "NVL"), _HOPPER_NVL, "NVIDIA H100 data sheet", 3.9),
    Peak(("H100", "PCIe"), _HOPPER_PCIE, "NVIDIA H100 data sheet", 2.0),
    # The GPU of an H100 SXM, with other memory.
    Peak(("GH200", "480GB"), _HOPPER, "NVIDIA GH200 Grace Hopper Superchip data sheet", 4.0),
    Peak(("GH200", "144G"), _HOPPER, "NVIDIA GH200 Grace Hopper Superchip data sheet", 4.9),
    Peak(("GH200",), _HOPPER, "NVIDIA GH200 Grace Hopper Superchip data sheet"),
    Peak(("H100",), _HOPPER, "NVIDIA H100 data sheet", 3.35),
    Peak(("A100", "40GB"), _AMPERE, "NVIDIA A100 data sheet", 1.555),
    Peak(("A100", "80GB", "PCIe"), _AMPERE, "NVIDIA A100 data sheet", 1.935),
    Peak(("A100", "80GB"), _AMPERE, "NVIDIA A100 data sheet", 2.039),
    Peak(("A100",), _AMPERE, "NVIDIA A100 data sheet"),
    Peak(("A10",), _rates(125.0, 62.5, 31.2), "NVIDIA A10 data sheet", 0.6),
    Peak(("L4",), _rates(121.0, 60.0, 30.3), "NVIDIA L4 data sheet", 0.3),
    Peak(("T4",), {"float16": 65.0, "float32": 8.1}, "NVIDIA T4 data sheet", 0.32),
    Peak(("V100", "SXM2"), {"float16": 125.0, "float32": 15.7, "float64": 7.8}, "NVIDIA V100 data sheet", 0.9),
    Peak(("V100", "PCIE"), {"float16": 112.0, "float32": 14.0, "float64": 7.0}, "NVIDIA V100 data sheet", 0.9),
    # With float32 accumulation, as in torch; that is half the printed rate.
    Peak(("RTX", "4090"), _rates(165.2, 82.6, 82.6), "NVIDIA Ada GPU architecture white paper", 1.008),
    Peak(("RTX", "3090"), _rates(71.0, 35.6, 35.6), "NVIDIA Ampere GA102 GPU architecture white paper", 0.936),
    # torch reports each of the two dies as one device.
    Peak(("MI250X",), _rates(191.5, None, 47.9, 47.9), "AMD MI250X data sheet", 1.638),
    Peak(("MI300X",), _rates(1307.4, 653.7, 163.4, 163.4), "AMD MI300X data sheet", 5.3),
)


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """What one accelerator can send to the others of its node, while it receives as much."""

    words: tuple[str, ...]  # all of them occur in the device's name
    gb_s: float  # 1e9 bytes per second, half of the printed figure, which adds both directions
    source: str


# Only where the name says how devices are connected: those on PCIe may have bridges.
LINKS: Final = (
    DeviceLink(("B200",), 900.0, "NVIDIA Blackwell (HGX B200) data sheet, NVLink"),
    DeviceLink(("H200",), 450.0, "NVIDIA H200 data sheet, NVLink"),
    DeviceLink(("H100", "HBM3"), 450.0, "NVIDIA H100 data sheet, NVLink"),
    DeviceLink(("A100", "SXM4"), 300.0, "NVIDIA A100 data sheet, NVLink"),
    DeviceLink(("V100", "SXM2"), 150.0, "NVIDIA V100 data sheet, NVLink"),
    DeviceLink(("MI300X",), 448.0, "AMD MI300X data sheet, seven Infinity Fabric links"),
)
BRIDGED: Final = ("nvl", "pcie")  # words of variants without a switch between all devices


def link_of(device: str) -> DeviceLink | None:
    """Return the link between the named devices of a node; None if the name does not show it."""
    words = _words(device)
    if any(word in (*ANOTHER, *BRIDGED) for word in words):
        return None
    return next((link for link in LINKS if all(word.casefold() in words for word in link.words)), None)


def peak_of(device: str, dtype: str) -> tuple[float, str] | None:
    """Return the dense peak of the named device in 1e12 per second, and its source; None if unknown."""
    peak = _peak(device)
    rate = None if peak is None else peak.tflops.get(dtype)
    return None if peak is None or rate is None else (rate, peak.source)


def peak_memory_of(device: str) -> float | None:
    """Return the peak bandwidth of the named device's memory in 1e12 bytes per second; None if unknown."""
    peak = _peak(device)
    return None if peak is None else peak.memory_tb_s


@cache
def _peak(device: str) -> Peak | None:
    words = _words(device)
    if any(word in ANOTHER for word in words):
        return None
    return next((peak for peak in PEAKS if all(word.casefold() in words for word in peak.words)), None)


def _words(device: str) -> list[str]:
    return device.replace("-", " ").replace("_", " ").casefold().split()


HOME_S: Final = 0.2
MEASURED: Final = "measured by training-profiler doctor --measure-peak"


def measured_file(device: str) -> Path:
    """Return where the rates that were measured on the named device are kept, below XDG_CACHE_HOME or ~/.cache."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(folder, "training-profiler", "peaks", re.sub(r"\W+", "_", device) + ".json")


def measured_peak(device: str, dtype: str) -> float | None:
    """Return the rate that was measured on the named device, in 1e12 per second; None if it was not.

    Reads on a thread, and waits for it at most ``HOME_S``: a home folder may lie on a file server that hangs.
    """
    rates: list[float] = []

    def read() -> None:
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            rates.append(float(json.loads(measured_file(device).read_bytes())["tflops"][dtype]))

    with suppress(RuntimeError):  # there are too many threads
        reader = Thread(target=read, daemon=True, name="training_profiler peaks")
        reader.start()
        reader.join(HOME_S)
    return next((rate for rate in rates if 0 < rate < float("inf")), None)


def cpu_name(threads: int) -> str:
    """Return the name under which rates of this CPU are kept; they are of so many threads."""
    with suppress(OSError, ValueError), open("/proc/cpuinfo", encoding="utf-8") as file:
        if found := re.search(r"model name\s*:\s*(.+)", file.read(4096)):
            return f"{found[1]}, {threads} threads"
    return f"CPU, {threads} threads"
