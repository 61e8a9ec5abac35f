"""Check this machine: versions, settings in force, trackers, patches, what profiling costs here, where runs go.

Put its output into a report of a problem. It exits with 1 if something would keep the profiler from working.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from training_profiler.base.peaks import cpu_name, measured_file
from training_profiler.base.text import one_line, printable, printable_data
from training_profiler.cli.common import write
from training_profiler.reports.layout import Layout
from training_profiler.runtime.checkup import CheckupPart, check_up

MOST_CALL_S: Final = 0.1  # of a product; larger ones are no faster
MEASURE_S: Final = 0.5  # for each size
MOST_ROWS: Final = 16_384  # of a matrix; three of them in float32 take 3 GiB
COPIED: Final = 1 << 28  # bytes
DTYPES: Final = ("float32", "bfloat16", "float16")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")
    parser.add_argument(
        "--measure-peak",
        action="store_true",
        help="also measure how fast each GPU and the CPU multiply matrices and copy memory, and keep it for MFU",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the checkup; return 1 if there is a problem, else 0."""
    sections = [*check_up(), *(_measured() if arguments.measure_peak and "torch" in sys.modules else ())]
    problems = [one_line(problem) for section in sections for problem in section.problems]
    if arguments.json:
        data = {section.title: dict(section.rows) for section in sections}
        text = json.dumps(printable_data(data) | {"problems": problems}, indent=1) + "\n"
    else:
        summary = (
            f"{len(problems)} problem{'s' * (len(problems) != 1)} found, marked with an exclamation mark.\n"
            if problems
            else "No problem found. If something is wrong all the same, put these lines into your\nreport of it.\n"
        )
        text = "\n".join([*map(_text, sections), summary])
    write(text)
    return 1 if problems else 0


def _measured() -> Iterator[CheckupPart]:
    """Yield the rates of each device, and keep them where runs look for them."""
    torch = sys.modules["torch"]
    gpus = {torch.cuda.get_device_name(at): f"cuda:{at}" for at in range(torch.cuda.device_count())}
    for name, device in {**gpus, cpu_name(torch.get_num_threads()): "cpu"}.items():
        rates, rows, problem = {}, [], ""
        for dtype in DTYPES:
            try:
                rates[dtype], how = _matmul_tflops(torch, device, dtype)
            except RuntimeError as error:  # a type in which it does not compute, or no memory
                rows.append((dtype, f"not measured: {one_line(error)}"))
                continue
            rows.append((dtype, f"{rates[dtype]:.3g} TFLOP/s, {how}"))
        source, target = (torch.ones(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
        copy_s, _ = _fastest_s(torch, device, target.copy_, source)
        rows.append(("memory", f"{2 * COPIED / copy_s / 1e9:.4g} GB/s read and written, copying {COPIED >> 20} MiB"))
        if device == "cpu" and hasattr(os, "getloadavg") and os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1):
            rows.append(("too low", "other programs took CPU time meanwhile: measure again when they do not"))
        path = measured_file(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({"device": name, "tflops": rates}))
            part.replace(path)
            rows.append(("kept in", str(path)))
        except OSError as error:
            problem = f"the rates could not be kept ({error.strerror}); XDG_CACHE_HOME names another folder"
        yield CheckupPart(f"Peak of {name}", tuple(rows), (problem,) if problem else ())


def _matmul_tflops(torch: Any, device: str, dtype: str) -> tuple[float, str]:
    best, rows, call_s = (0.0, ""), 256, 0.0
    while call_s < MOST_CALL_S and rows < MOST_ROWS:
        rows *= 2
        # Random, as that of a training: multiplying ones takes less power.
        random = torch.Generator(device).manual_seed(0)
        matrix = torch.randn(rows, rows, device=device, generator=random).to(getattr(torch, dtype))
        call_s, calls = _fastest_s(torch, device, torch.mm, matrix, matrix)
        best = max(best, (2 * rows**3 / call_s / 1e12, f"the fastest of {calls} products of {rows} x {rows}"))
    return best


def _fastest_s(torch: Any, device: str, work: Callable[..., object], *arguments: object) -> tuple[float, int]:
    """Return the time of the fastest of several calls, at least two, and how many there were."""
    fastest_s, calls, until_s = math.inf, 0, time.perf_counter() + MEASURE_S
    while calls < 2 or time.perf_counter() < until_s:
        begin_s = time.perf_counter()
        work(*arguments)
        if device != "cpu":
            torch.cuda.synchronize(device)
        fastest_s, calls = min(fastest_s, time.perf_counter() - begin_s), calls + 1
    return fastest_s, calls


def _text(section: CheckupPart) -> str:
    names = [f"  {printable(name)}" for name, _ in section.rows]
    width = max(map(len, names), default=0) + 2
    lines = [section.title]
    for name, (_, value) in zip(names, section.rows, strict=True):
        lines += Layout().wrap(one_line(value), first=f"{name:<{width}}", rest=" " * width)
    for problem in section.problems:
        lines += Layout().wrap(one_line(problem), first="  ! ", rest="    ")
    return "\n".join(lines) + "\n"
