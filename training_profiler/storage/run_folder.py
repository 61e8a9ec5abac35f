"""A run's folder: its name, and the content of meta.json."""

import json
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from training_profiler.base.text import printable
from training_profiler.model.bounds import MOST_META_BYTES
from training_profiler.safety.files import is_folder, is_readable, read_file, replace_file
from training_profiler.sampling.user_code import SPAWNED
from training_profiler.settings.settings import Settings, launch_id
from training_profiler.storage.journal_lines import as_object
from training_profiler.torch_capture.request import FOLDER

MOST_CAPTURES: Final = 50


def captures_of(folder: Path) -> list[str]:
    """Return the paths of the traces below the run folder, by name."""
    try:
        names = sorted(
            path.name for path in (folder / FOLDER).iterdir() if ".trace.json" in path.name and is_readable(path)
        )
    except OSError:
        return []
    return [f"{FOLDER}/{name}" for name in names[:MOST_CAPTURES]]


MASK: Final = "***"
# Names are compared in lower case with "-" between words: apiKey and API_KEY become api-key.
_NAME: Final = re.compile(
    r"pass(word|wd|phrase)|secret|credential|(api|access|private|account|storage|signing|encryption)-?key"
    r"|(^|-)(pwd|pw|auth|authorization|bearer|cookies?|sas|session-id)(-|$)|(access|api|auth|refresh)-?token"
    r"|token\d*$|signature$|(^|-)(sig|key|dsn|webhook)$|(^|(db|user|admin|root|smtp|proxy|redis|mysql|pg)-)pass$"
)
# Harmless names in trainings: --pad-token, --sort-key.
_HARMLESS_NAME: Final = re.compile(
    r"(^|-)(pad|eos|bos|unk|mask|sep|cls|class|special|stop|start|end|image|prompt|per|max|num)-token$"
    r"|(^|-)(sort|order|group|image|label|text|caption|data|batch|metric|monitor)-key$"
)
_KNOWN: Final = re.compile(
    r"(hf_\w{10,}|gh[pousr]_\w{10,}|github_pat_\w+|glpat-[\w-]+|sk-[\w-]{10,}|[rs]k_(live|test)_\w+|xox[a-z]-[\w-]+"
    r"|(AKIA|ASIA)[A-Z0-9]{12,}|npm_\w{20,}|pypi-\w{20,}|SG\.[\w-]{10,}\.[\w-]{10,}|(?<=hooks\.slack\.com/services/)\S+"
    r"|ya29\.[\w-]+|AIza[\w-]{20,}|eyJ[\w-]+\.[\w-]+\.[\w-]*|-----BEGIN [A-Z ]+-----.*)",
    re.DOTALL,
)
_IN_ADDRESS: Final = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+\S+")
# Long mixes of letters and digits, without a slash or dot as in a path or module.
_RANDOM: Final = re.compile(r"(?<![\w/.-])(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[\w-]{32,}(?![\w/.-])")
# Parts of run names and options: words, numbers, resnet50, lr1e, 4x8.
_SPOKEN: Final = re.compile(r"[A-Za-z]{0,20}\d{0,8}[a-z]?|\d{1,8}[A-Za-z]{1,20}|\d{1,4}[A-Za-z]\d{1,4}")
# As in code, JSON and JSON within JSON: a=b, "a": "b", \\"a\\": \\"b\\", environ["a"] = "b".
_PAIR: Final = re.compile(r"(?<![\w.-])([\w.-]+)\\*[\"']?\]?\s*[=:]\s*(\\*[\"'])?(?=[^&\s\"',;}\\])")
_VALUE: Final = re.compile(r"[^&\s\"',;}\\]+")
_QUOTED: Final = re.compile(r"[^\"'\\]+")  # may contain spaces
_HEADER: Final = re.compile(r"(?i)(proxy-)?authorization|(set-)?cookie")  # the whole line is secret
_LINE: Final = re.compile(r"[^\r\n\"'\\]+")
# The form of a secret key of AWS: 40 letters and digits, also with slashes.
_AWS_KEY: Final = re.compile(
    r"(?<![A-Za-z0-9/+.])(?=\S{0,39}[a-z])(?=\S{0,39}[A-Z])(?=\S{0,39}\d)[A-Za-z0-9+][A-Za-z0-9/+]{39}(?![A-Za-z0-9/+.=])"
)
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_MOST_WORDS: Final = 10  # in 40 characters of a path; random ones have 20


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with values that look like secrets replaced by ``***``."""
    shown, hide_next = [], False
    for word in words:
        if hide_next and not word.startswith("--"):
            shown.append(MASK)
            hide_next = False
            continue
        name, equals, value = word.partition("=")
        names_secret = _is_secret(name) and (bool(equals) or word.startswith("-"))
        hide_next = names_secret and not equals
        shown.append(f"{name}={MASK}" if names_secret and equals and value else _mask_within(word))
    return shown


def _is_secret(name: str) -> bool:
    """Return whether ``name`` is a typical name of an option, variable or field that holds a secret."""
    if "/" in name or " " in name:  # an address or code; its parts are checked one by one
        return False
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "-", name).strip("-").lower()
    return bool(_NAME.search(plain)) and not _HARMLESS_NAME.search(plain)


def _mask_within(word: str) -> str:
    word = _IN_ADDRESS.sub(MASK, word)
    word = _BEARER.sub(lambda match: f"{match[1]} {MASK}", word)
    word = _KNOWN.sub(MASK, _mask_pairs(word))
    word = _AWS_KEY.sub(lambda match: MASK if len(_WORDS.findall(match[0])) > _MOST_WORDS else match[0], word)
    spoken = _SPOKEN.fullmatch
    return _RANDOM.sub(lambda match: match[0] if all(map(spoken, re.split("[-_]", match[0]))) else MASK, word)


def _mask_pairs(word: str) -> str:
    """Return ``word`` with ``name=value`` pairs inside it masked if the name is a secret's."""
    shown, at = "", 0
    # A harmless value may contain a secret: --url=https://host/?token=...
    while pair := _PAIR.search(word, at):
        shown += word[at : pair.end()]
        at = pair.end()
        form = _LINE if _HEADER.fullmatch(pair[1]) else _QUOTED if pair[2] else _VALUE
        value = form.match(word, at) if _is_secret(pair[1]) else None
        if value:
            shown, at = shown + MASK, value.end()
    return shown + word[at:]


META: Final = "meta.json"
REPORT_TEXT: Final = "report.txt"
REPORT_DATA: Final = "report.json"
PAGE: Final = "report.html"
TIME_FORMAT: Final = "%Y%m%d-%H%M%S"
OWN_NAME: Final = "-rank{rank}"  # ending of the folder name of a rank that knew no run folder
_OWN_NAME: Final = re.compile(r"\d{8}-\d{6}-rank\d+(-\d+)?")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_JOURNAL_NAME: Final = re.compile(r"rank(\d{1,7})(?:-attempt(\d{1,7}))?(?:-\d+)?\.jsonl")
_VERSION: Final = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_PACKAGES: Final = ("training-profiler", "torch", "numpy")


def journal_name(rank: int, attempt: int = 0, number: int = 1) -> str:
    """Return a journal's name: ``rank3.jsonl``, ``rank3-attempt1.jsonl``; ``rank3-2.jsonl`` if the first is taken."""
    of_attempt = f"-attempt{attempt}" if attempt else ""
    return f"rank{rank}{of_attempt}{f'-{number}' if number > 1 else ''}.jsonl"


def read_journal_name(name: str) -> tuple[int, int] | None:
    """Return rank and attempt from a journal's file name; None for other names."""
    match = _JOURNAL_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def is_plain_name(name: object) -> bool:
    """Return whether ``name``, received from another process, is a plain folder name and not a path."""
    return isinstance(name, str) and bool(_PLAIN_NAME.fullmatch(name)) and name not in (".", "..")


def is_own_name(name: str) -> bool:
    """Return whether a folder is named like that of a rank that knew no run folder."""
    return bool(_OWN_NAME.fullmatch(name))


def run_ending(name: str | None) -> str:
    """Return how the folder of a run of that name ends; nothing for a run without a name."""
    return f"-{name}" if name else ""


def renamed_run(folder: str, name: str | None) -> str:
    """Return the name of a run's folder after its run got another name."""
    return folder[: len(time.strftime(TIME_FORMAT))] + run_ending(name)


def make_run_folder(parent: str | Path, ending: str = "") -> Path:
    """Make and return a new folder named after the time, such as ``runs/20261121-142530``.

    Raises:
        OSError: it cannot be made.
    """
    stem = time.strftime(TIME_FORMAT) + ending
    for number in range(1, 10_000):
        folder = Path(parent) / (stem if number == 1 else f"{stem}-{number}")
        try:
            if make_folder(folder):
                return folder.absolute()
        except FileExistsError:
            if not os.path.lexists(folder):
                raise
    raise FileExistsError(f"{parent} holds 9999 runs that began in this second")


def make_folder(folder: Path) -> bool:
    """Make ``folder``; return whether it is new.

    Raises:
        OSError: it cannot be made, or a file or link is in its place.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if not is_folder(folder):
            raise
        return False
    return True


def describe_process(settings: Settings) -> dict[str, Any]:
    """Return the content of meta.json: time, host, command line without secrets, versions, settings."""
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "launch": launch_id(),
        "command": shlex.join(masked([Path(sys.executable).name, *command_words()])),
        "folder": os.getcwd(),
        "python": platform.python_version(),
        "platform": "-".join([platform.system(), platform.release(), platform.machine()]),  # without a subprocess
        "cpus": os.cpu_count(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "settings": asdict(settings),
    }


def command_words() -> list[str]:
    """Return the words of the command that started this process, after the interpreter; they may be secret.

    A process that ``multiprocessing`` has spawned has those of its parent: its own name no program.
    """
    if SPAWNED in sys.orig_argv:
        return list(sys.argv)
    # Unlike argv, orig_argv shows `-m package`.
    return list(sys.orig_argv[1:] or sys.argv)


def _version(package: str) -> str | None:
    try:
        installed = metadata.distribution(package)
        # The public ``version`` parses all of the package's description.
        found = _VERSION.search(installed.read_text("METADATA") or "")
        return installed.version if found is None else found[1]
    except metadata.PackageNotFoundError:  # run from a source tree, or not installed
        module = sys.modules.get(package.replace("-", "_"))
        return getattr(module, "__version__", None)


def describe_git(script: str | Path) -> dict[str, Any] | None:
    """Return commit and state of the work tree of ``script``, or of a folder; None outside of one, or without git."""
    where = Path(script)
    while not where.is_dir():  # the name of a script, of a module or of nothing, in its folder
        where = where.parent
    # By its path: subprocess would search for it with warnings.catch_warnings, after which Python repeats warnings that
    # it has already shown.
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*words: str) -> str | None:
        command = [git, "--no-optional-locks", "-C", str(where), *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=1, check=True, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    changes = ask("status", "--porcelain", "--untracked-files=no")  # may take too long in a large tree
    return {"commit": commit, "has_changes": None if changes is None else bool(changes)}


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` to ``path`` atomically: a reader finds the old file or the new one."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically; a link at ``path`` is replaced and not followed.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(path, text.encode("utf-8", "backslashreplace"))


MOST_COMMAND: Final = 10_000  # characters; the program is among the first


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the content of meta.json in ``folder``; empty if it cannot be read."""
    return read_object(folder / META, MOST_META_BYTES) or {}


def read_object(path: Path, most_bytes: int) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it cannot be read, is too large or is none."""
    with suppress(OSError, ValueError):
        return as_object(read_file(path, most_bytes))
    return None


def read_program(folder: Path) -> str | None:
    """Return the name of the script or module of the run in ``folder``; None where it is unknown."""
    return program_in(read_meta(folder).get("command", ""))


def program_in(command: object) -> str | None:
    """Return the name of the script or module in a command line; None where it is unknown."""
    words = _program_words(command)
    return printable(Path(words[words[0] == "-m"]).name) if words else None


def typed_program(command: object) -> str | None:
    """Return the program of a command line and its arguments, as they can be typed; None where they are unknown."""
    return printable(shlex.join(_program_words(command))) or None


NOTEBOOK: Final = "ipykernel_launcher"  # a module whose command cannot be typed


def _program_words(command: object) -> list[str]:
    """Return the script, or ``-m`` and the module, and the arguments in a command line; none where it has neither."""
    try:
        words = shlex.split(str(command)[:MOST_COMMAND])[1:]  # the first is the interpreter
    except ValueError:  # a quote without its end
        return []
    while words and words[0].startswith("-"):
        if words[0] == "-m":
            return words if len(words) > 1 and words[1] != NOTEBOOK else []
        if words[0] == "-c":
            return []
        words = words[2:] if words[0] in ("-W", "-X") else words[1:]  # the value of these is the next word
    return words


LOOKED_AT: Final = 8  # run folders, the newest first


def earlier_run(folder: Path) -> Path | None:
    """Return the newest of the last runs before ``folder`` in its folder of runs that has the same program."""
    program = read_program(folder)
    with suppress(OSError):
        before = sorted((each for each in folder.parent.iterdir() if each.name < folder.name), reverse=True)
        runs = (each for each in before[:LOOKED_AT] if (each / META).is_file())
        return next((each for each in runs if program is not None and read_program(each) == program), None)
    return None


def typed_path(folder: Path) -> str:
    """Return ``folder`` as it can be typed in a shell here: relative where it is below the current folder."""
    with suppress(OSError, ValueError):  # the current folder is gone, or is not above
        folder = folder.absolute().relative_to(Path.cwd())
    return shlex.quote(str(folder))


def run_named(name: str, parent: Path) -> Path | None:
    """Return the newest run in ``parent`` with that name, or whose folder is called so; None without one."""
    of_run = re.compile(rf"\d{{8}}-\d{{6}}{re.escape(run_ending(name))}(-\d+)?")
    try:
        folders = sorted(filter(of_run.fullmatch, os.listdir(parent)), reverse=True)
    except (OSError, ValueError):
        return None
    if is_plain_name(name) and is_folder(parent / name):
        return parent / name
    for folder in (parent / each for each in folders):
        # The folder of a second run of a name ends like that of another name.
        settings = read_meta(folder).get("settings")
        if not isinstance(settings, dict) or settings.get("name", name) == name:
            return folder
    return None
