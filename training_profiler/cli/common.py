"""What commands have in common: RUN and --attempt, where runs are, and how they print."""

import argparse
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, Final

from training_profiler.base.text import encodable, one_line
from training_profiler.base.units import read_seconds
from training_profiler.cli import say as say
from training_profiler.reports.card import render_card
from training_profiler.reports.console import Origin
from training_profiler.reports.layout import TABLE, Layout
from training_profiler.safety.files import replace_file, write_output
from training_profiler.settings.settings import read_settings
from training_profiler.sinks.console import stream_layout
from training_profiler.storage.run_folder import earlier_run, program_in, read_meta, typed_path, typed_program

NEWEST: Final = "the newest run"
DATE: Final = slice(len("2026-"), len("2026-11-21T14:25"))


def runs_folder() -> Path:
    """Return the folder of runs by the settings."""
    return Path(read_settings().dir)


def layout_of_stdout(form: str = TABLE) -> Layout:
    """Return the layout of text on standard output."""
    return stream_layout(sys.stdout, form)


def origin_of(folder: Path) -> Origin:
    """Return where the report of a run folder comes from."""
    command, earlier = read_meta(folder).get("command", ""), earlier_run(folder)
    before = None if earlier is None else typed_path(earlier)
    return Origin(program_in(command), typed_path(folder), typed_program(command), before)


def add_run(parser: argparse.ArgumentParser, default: str = NEWEST) -> None:
    """Add RUN, which ``choose_run`` takes; ``default`` says what it is where none is given."""
    parser.add_argument(
        "run",
        type=Path,
        nargs="?",
        metavar="RUN",
        help=f"a run folder, such as runs/20261121-142530, a folder of runs, or the name of a run (default: {default})",
    )


def add_attempt(parser: argparse.ArgumentParser, default: str = "the last") -> None:
    """Add the attempt of a restarted run."""
    parser.add_argument(
        "--attempt",
        type=whole_number("an attempt number (0, 1, ...); example: 1"),
        metavar="N",
        help=f"for restarted runs (torchrun --max-restarts): attempt number, counted from 0 (default: {default})",
    )


def whole_number(what: str, least: int = 0, most: float = inf) -> Callable[[str], int]:
    """Return what reads the number of an option; where a word is none, the error says that it is not ``what``."""

    def read(word: str) -> int:
        digits = re.sub(r"(?<=\d)[_,](?=\d{3}(?!\d))", "", word)  # 12,000 as tables print it
        if not digits.isdecimal() or not least <= int(digits) <= most:
            raise argparse.ArgumentTypeError(f"{word!r} is not {what}")
        return int(digits)

    return read


def time_in(what: str, least_s: float = 1e-9, most_s: float = 1e9) -> Callable[[str], float]:
    """Return what reads a time in s, such as 90 or 90s; the error for another word says that it is not ``what``."""

    def read(word: str) -> float:
        found = read_seconds(f"{word}s" if re.fullmatch(r"[\d.]+", word.strip()) else word)
        if found is None or not least_s <= found <= most_s:
            raise argparse.ArgumentTypeError(f"{word!r} is not {what}")
        return found

    return read


def percentage(word: str) -> float:
    """Return the part that an argument such as 3% names."""
    try:
        part = float(word.removesuffix("%")) / 100
    except ValueError:
        part = -1.0
    if not 0 <= part < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} is not a percentage; example: 3%")
    return part


def write(text: str) -> None:
    """Write ``text``, which is fit for a terminal, to standard output at once."""
    sys.stdout.write(encodable(text, sys.stdout.encoding))
    sys.stdout.flush()


def write_file(text: str, given: Path | None, usual: Path) -> None:
    """Write ``text`` to the file that the user has given, or else to the usual one, and print its name.

    Raises:
        OSError: the file cannot be written.
    """
    content = text.encode("utf-8", "backslashreplace")
    write_output(given, content) if given else replace_file(usual, content)
    write(f"{one_line(given or usual)}\n")


def as_markdown(headline: str, text: str, folder: Path) -> str:
    """Return a comparison for a pull request: its headline, its table, and the machine of a run, as Markdown."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=2))
    bold = re.sub(r"([\\`*_<>|\[\]])", r"\\\1", headline)
    return f"**{bold}**\n\n{fence}text\n{text.strip()}\n{fence}\n\n{_machine_of(folder)}\n"


def add_forms(parser: Any, json_help: str) -> None:
    """Add the forms of a comparison: JSON, ``as_markdown`` and the file for ``write_card``."""
    parser.add_argument("--json", action="store_true", help=f"print {json_help} instead of text")
    parser.add_argument("--markdown", action="store_true", help="print it for a pull request")
    help = "write a picture of the result as well: .svg, or .png with pip install 'training-profiler[png]'"
    parser.add_argument("--card", type=_card, metavar="FILE", help=help)


def _card(word: str) -> Path:
    if word.lower().endswith(".png") and find_spec("resvg_py") is None:
        raise argparse.ArgumentTypeError("a PNG needs pip install 'training-profiler[png]'; an SVG needs nothing")
    return Path(word)


def write_card(
    path: Path, headline: str, before: tuple[str, float | None], after: tuple[str, float], facts: list[str], run: Path
) -> None:
    """Write a comparison as a picture; ``after`` has the relative change of the time.

    Raises:
        OSError: it cannot be written.
    """
    times = [] if before[1] is None else [(before[0], before[1]), (after[0], before[1] * (1 + after[1]))]
    data = render_card(headline, times, [*facts, _machine_of(run)]).encode("utf-8", "backslashreplace")
    if path.suffix.lower() == ".png":
        from resvg_py import svg_to_bytes

        data = bytes(svg_to_bytes(svg_string=data.decode()))
    write_output(path, data)


def _machine_of(folder: Path) -> str:
    meta = read_meta(folder)
    facts = [meta.get("platform"), f"{meta['cpus']} CPUs" if meta.get("cpus") else None]
    facts += [f"{name} {version}" for name, version in dict(meta.get("versions") or {}).items() if version]
    return ", ".join(str(fact) for fact in facts if fact)
