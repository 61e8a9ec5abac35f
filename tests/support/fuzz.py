"""Reads damaged files of each kind and checks that nothing bad follows. ``make fuzz`` runs many of them.

    python -m tests.support.fuzz --cases 10000 --kind journal --seed 7

Whatever a file holds, a command ends with status 0, or with 2 and one line; it takes bounded time and memory; what it
prints has no control characters, and its JSON is JSON.
"""

import argparse
import contextlib
import functools
import gzip
import io
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.support.every_field import filled, full_journal
from tests.support.mutations import mutated
from tests.support.traces import Trace, gpu
from training_profiler.base.errors import RunFolderError
from training_profiler.cli import compare, html, list_runs, main, report, timeline, trace, watch
from training_profiler.model.ranks import RankStacks, StackFrame, ThreadStack
from training_profiler.ranks.comparison import all_ranks_stats
from training_profiler.ranks.message import unpack
from training_profiler.ranks.summary import RankSummary, rank_summary_from_data
from training_profiler.reports.hang import render_stacks
from training_profiler.reports.report_json import as_data
from training_profiler.storage import stack_files
from training_profiler.storage.run_reader import read_run
from training_profiler.torch_capture.request import REQUEST, Request, RequestBox
from training_profiler.trials import results, state
from training_profiler.trials.results import LossComparison
from training_profiler.trials.state import Identity
from training_profiler.trials.statistics import Effect

JOURNALS = Path(__file__).parents[1] / "storage" / "journals"
# Imported before memory is limited: libraries reserve a lot.
READERS = (compare, report, html, timeline, trace, watch, list_runs)
MOST_WORK = 600  # of `_work` in one case: some 20 s; most take a hundredth of a second
MORE_BYTES = 500 * 10**6
A_CHILD = 200  # cases that one process reads
META = {
    "host": "node0", "command": "python train.py --lr 0.1",
    "settings": {"flush_s": 5.0, "thresholds": {"warm-up": 0.2}},
    "attempts": [{"number": 0, "begin_wall_ns": 10**15}], "launched": {"host": "node0", "parent_pid": 41},
}  # fmt: skip


class TooLongError(BaseException):
    """A case took more processor time than it may."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: examples of it, and what reads it."""

    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[Path, bytes], None]  # in an empty folder
    lines: bool = False
    pack: Callable[[bytes], bytes] = bytes  # the file around what is damaged


def command(*words: str) -> None:
    """Run a command and check how it ends and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        status = main(words)
    text, errors = out.getvalue(), err.getvalue()
    assert not seen, seen[0]
    assert status in (0, 2), status
    assert errors.count("\n") <= 1, errors
    assert bool(errors) == (status == 2), errors
    assert "not enough memory" not in errors, errors
    assert errors.removesuffix("\n").isprintable(), repr(errors)
    assert (status == 2) == (not text), text[:200]
    if "--json" in words:
        for line in text.splitlines() if words[0] == "trace" else [text] * (not status):
            check_data(json.loads(line, parse_constant=_refuse))
    else:
        assert text.replace("\n", "").isprintable(), next(repr(c) for c in text if not c.isprintable() and c != "\n")


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def check_data(value: Any) -> None:
    """Check that all texts in ``value`` are fit for a terminal."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += [*part.keys(), *part.values()]
        elif isinstance(part, list):
            waiting += part
        elif isinstance(part, str):
            assert part.isprintable(), repr(part)[:200]


def commands(*lines: str, file: str = "rank0.jsonl", others: Mapping[str, bytes] = {}) -> Callable[[Path, bytes], None]:
    """Return what reads a file by commands, in which RUN is its folder; ``others`` lie beside it, by their names."""

    def read(folder: Path, data: bytes) -> None:
        for name, content in {file: data, **others}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        for line in lines:
            command(*(word.replace("RUN", str(folder)).replace("JOURNALS", str(JOURNALS)) for word in line.split()))

    return read


def read_state(folder: Path, data: bytes) -> None:
    """Read how far a session of trials has come."""
    (folder / state.FILE).write_bytes(data)
    with contextlib.suppress(RunFolderError):
        state.load_state(folder)


def read_stacks(folder: Path, data: bytes) -> None:
    """Show the stacks that ranks have written, ``data`` among them."""
    (folder / stack_files.FOLDER).mkdir()
    (folder / stack_files.FOLDER / "rank0.json").write_bytes(data)
    (folder / stack_files.FOLDER / stack_files.REQUEST).write_bytes(data)
    stack_files.read_request(folder)
    text = render_stacks(list(stack_files.read_stacks(folder).values()), 2, [], 0.0)
    assert text.replace("\n", "").isprintable()


def read_request(folder: Path, data: bytes) -> None:
    """Read a request for a window."""
    (folder / REQUEST).write_bytes(data)
    request = RequestBox(0).read_new(str(folder))
    assert request is None or isinstance(request, Request)


def read_message(folder: Path, data: bytes) -> None:
    """Read a rank's message as rank 0 does."""
    try:
        message = unpack(data)
        check_data([*message.heartbeat.inside, message.heartbeat.host])
        summary = rank_summary_from_data(json.loads(message.data))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        all_ranks_stats([summary], 2)


def _traces() -> list[bytes]:
    trace = Trace(deviceProperties=[gpu()], distributedInfo={"rank": 0, "world_size": 2})
    for number in range(4):
        begin = 1_000 * number
        trace.step(number, begin, 900).mark("forward_pass", begin + 10, 200).op("aten::mm", begin + 20, 50)
        trace.kernel("sm90_gemm", begin + 60, 100, launched=(begin + 30, 5), **{"est. achieved occupancy %": 40})
        trace.kernel("ncclDevKernel_AllReduce", begin + 200, 60, stream=9, launched=(begin + 170, 5), dtype="Float")
        trace.copy("HtoD (Pageable -> Device)", begin + 300, 40, launched=(begin + 290, 60), bytes=4096)
        trace.call("cudaStreamSynchronize", begin + 400, 300).memory(begin + 50, 512, **{"Total Allocated": 512})
    trace.events.append({"ph": "B", "name": "old", "pid": 7, "tid": 1, "ts": 5})
    trace.events.append({"ph": "E", "name": "old", "pid": 7, "tid": 1, "ts": 9})
    host = Trace().step(1, 0, 100).op("aten::add", 1, 50).op("aten::mul", 60, 30)
    return [trace.text().encode(), host.text().encode()]


def _snapshots() -> list[bytes]:
    frames = [{"filename": "/home/me/train.py", "line": 3, "name": "main"}] * 2
    blocks = [
        {"size": 1024, "state": state, "requested_size": 1000, "address": 1 << 30, "frames": frames}
        for state in ("active_allocated", "inactive", "active_awaiting_free")
    ]
    history = [
        {"action": action, "addr": 5, "size": 512, "time_us": i, "frames": frames}
        for i, action in enumerate(("alloc", "free_requested", "alloc", "oom"))
    ]
    data = {
        "segments": [{"device": 0, "address": 1 << 30, "total_size": 4096, "blocks": blocks}],
        "device_traces": [history],
    }
    return [pickle.dumps(data, protocol) for protocol in (2, 4, 5)]


def _trials() -> list[bytes]:
    effect = Effect(-0.395, -0.41, -0.381, 0.001, 30, -0.4)
    losses = LossComparison("apart", 1e-7, 300)
    label = "DataLoader(num_workers=2)"
    row = results.Row("num_workers=2", "num_workers", label, results.FASTER, "", 0.0249, effect, losses, "a.py:4")
    noise = results.Row("again", "", "unchanged again", results.NOT_SHOWN, step_s=0.04, effect=effect)
    found = results.Results("train.py", 252.0, (row, noise), 0.0412, noise, row, ("num_workers=2",), 300, 12_000)
    line = json.dumps(results.as_data(found)).encode() + b"\n"
    return [line, line * 2, json.dumps({"schema": 1, **filled(results.Results)}).encode() + b"\n"]


def _states() -> list[bytes]:
    found = json.loads(_trials()[0])
    progress = state.Progress(["a", "b"], ["a"], ["a"], 0.01)
    words = ["python", "train.py"]
    one = state.SessionState(1, Identity(), words, True, state.Wishes(60.0, ("a",)), 10**9, True, found, progress)
    return [msgspec.json.encode(one), json.dumps(filled(state.SessionState) | {"results": found}).encode()]


def _reports() -> list[bytes]:
    return [json.dumps(as_data(read_run(JOURNALS), [])).encode()]


def _stacks() -> list[bytes]:
    frames = (StackFrame("train.py", 3, "main", True), StackFrame("torch/nn/modules/module.py", 9, "_call", False))
    thread = ThreadStack("MainThread", frames, True, ("forward_pass", "attention"), 1.5)
    return [stack_files.encode_stacks(RankStacks(10**15, 10**15 + 5, 0, "node0", 41, 300, (thread, thread)))]


def _journals() -> list[bytes]:
    data = (JOURNALS / "rank0.jsonl").read_bytes()
    begin, _, rest = data.partition(b"\n")
    sources = json.dumps({"kind": "sources", "files": {"train.py": "0" * 64, "data.py": ""}}).encode()
    return [data, b"\n".join([begin, sources, rest]), full_journal(begin)]


def _messages() -> list[bytes]:
    data = (JOURNALS / "message-summary.bin").read_bytes()
    head, _, _ = data.partition(b"\n")
    return [data, head + b"\n" + json.dumps({"schema": 1, **filled(RankSummary)}).encode()]


def _file(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(JOURNALS / name).read_bytes()]


def members(data: bytes) -> bytes:
    """Return a chain of gzip files that unpacks to ``data``: many of few bytes, with empty ones between them."""
    random = Random(zlib.crc32(data))
    length = max(random.choice([1, 7, 100, 10_000]), len(data) // 10_000)
    empty = gzip.compress(b"", 1) * random.choice([0, 0, 1, 3])
    parts = [gzip.compress(data[at : at + length], 1) for at in range(0, len(data), length)]
    return empty.join(parts) + empty * random.choice([0, 0, 10_000])


RANK_0 = {"rank0.jsonl": (JOURNALS / "rank0.jsonl").read_bytes()}
MEMORY = "trace --memory-snapshot RUN/memory.pickle"
VIEWS = "--view overview --view trace --view operators --view kernels"
read_trace = commands(f"trace RUN/a.pt.trace.json {VIEWS}", "trace RUN/a.pt.trace.json --json", file="a.pt.trace.json")
KINDS = {
    "journal": Kind(
        _journals,
        commands(
            *("report RUN --checklist", "report RUN --json", "html RUN", "timeline RUN", "watch RUN --once"),
            "compare JOURNALS RUN --json",
        ),
        lines=True,
    ),
    "rank": Kind(
        _file("rank1.jsonl"),
        commands(
            *("report RUN", "report RUN --json", "html RUN", "timeline RUN --format collapsed"),
            file="rank1.jsonl",
            others=RANK_0,
        ),
        lines=True,
    ),
    "meta": Kind(
        lambda: [json.dumps(META).encode()], commands("report RUN", "html RUN", file="meta.json", others=RANK_0)
    ),
    "trials": Kind(
        _trials, commands("report RUN", "report RUN --json", "html RUN", file=results.FILE, others=RANK_0), lines=True
    ),
    "state": Kind(_states, read_state),
    "report": Kind(
        _reports,
        commands(
            *("list RUN", "list RUN --json --sort step"),
            file="20260101-000000/report.json",
            others={"20260101-000000/meta.json": json.dumps(META).encode()},
        ),
    ),
    "stacks": Kind(_stacks, read_stacks),
    "request": Kind(_file("capture-request.json"), read_request),
    "message": Kind(_messages, read_message, lines=True),
    "trace": Kind(_traces, read_trace),
    "trace.gz": Kind(_traces, read_trace, pack=lambda data: gzip.compress(data, 1)),
    "members.gz": Kind(_traces, read_trace, pack=members),
    "damaged.gz": Kind(lambda: [gzip.compress(trace) for trace in _traces()], read_trace),
    "snapshot": Kind(_snapshots, commands(MEMORY, f"{MEMORY} --json", file="memory.pickle")),
}


@dataclass(frozen=True)
class Failure:
    """A case that did not end well."""

    kind: str
    case: int
    why: str


def damaged(name: str, seed: int, cases: range) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of damaged files."""
    kind = KINDS[name]
    seeds = kind.seeds()
    for case in cases:
        random = Random(f"{name}:{seed}:{case}")
        yield case, kind.pack(mutated(random.choice(seeds), random, seeds, kind.lines))


def run_cases(name: str, files: Iterable[tuple[int, bytes]], folder: Path) -> Iterator[Failure]:
    """Read files in this process; yield those that fail."""
    kind = KINDS[name]
    limit_s = cpu_limit_s()
    signal.signal(signal.SIGVTALRM, _too_long)
    for case, data in files:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
            try:
                with little_memory():
                    kind.read(Path(own), data)
            except (Exception, TooLongError, SystemExit) as error:
                yield Failure(name, case, f"{type(error).__name__}: {error}"[:300])
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _too_long(*_: object) -> None:
    raise TooLongError(f"over {cpu_limit_s():.0f} s of processor time")


@functools.cache
def cpu_limit_s() -> float:
    """Return the processor time that one case may take, in seconds: machines differ by a factor of three and more."""
    durations = []
    for _ in range(5):
        begin = time.process_time()
        _work()
        durations.append(time.process_time() - begin)
    return MOST_WORK * sorted(durations)[2]


def _work() -> int:
    return sum(len(json.loads(json.dumps([i, {"a": i}]))) for i in range(6_000))


def fuzz(name: str, seed: int, cases: int, first: int = 0) -> list[Failure]:
    """Read damaged files in processes of their own; no case may take more memory than ``MORE_BYTES``."""
    failures: list[Failure] = []
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(first, first + cases, A_CHILD):
            some = range(begin, min(begin + A_CHILD, first + cases))
            failures += in_process(name, damaged(name, seed, some), Path(folder))
    return failures


def in_process(name: str, files: Iterable[tuple[int, bytes]], folder: Path) -> list[Failure]:
    """Read files in a process of their own; return those that fail."""
    reading, writing = os.pipe()
    cpu_limit_s()  # once, not in each child
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            with os.fdopen(writing, "w", encoding="utf-8") as results:
                for failure in run_cases(name, files, folder):
                    print(failure.case, failure.why.encode("unicode_escape").decode(), file=results, flush=True)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as results:
        rows = [line.rstrip("\n").partition(" ") for line in results]
    failures = [Failure(name, int(case), why) for case, _, why in rows]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        failures.append(Failure(name, -1, f"the process ended with {status}"))
    return failures


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Let this process take no more than ``MORE_BYTES`` of further memory; making a damaged file may take more."""
    if not os.path.exists("/proc/self/statm"):  # elsewhere only time is limited
        yield
        return
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))


def run(words: Sequence[str]) -> int:
    """Run the cases that the command line names; return 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="damaged files of each kind (default: 10000)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind; may be given several times")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other files (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to repeat one that failed")
    arguments = parser.parse_args(words)
    is_bad = False
    for name in arguments.kind or KINDS:
        begin_s = time.monotonic()
        failures = fuzz(name, arguments.seed, arguments.cases, arguments.first)
        print(
            f"{name}: {arguments.cases} cases, {len(failures)} failed, {time.monotonic() - begin_s:.0f} s", flush=True
        )
        for failure in failures[:20]:
            print(f"  case {failure.case}: {failure.why}", flush=True)
        is_bad |= bool(failures)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
