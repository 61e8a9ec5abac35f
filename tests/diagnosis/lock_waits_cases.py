"""Workers that wait for each other at a lock: what more of them bring."""

from dataclasses import replace

from tests.support.loader_workers import WORKERS, waiting_run
from training_profiler.model.snapshot import LineStats, Snapshot, WorkerLineStats, WorkerStats

READ = WorkerLineStats("data.py", 12, "Pictures.__getitem__", 0.5, 400, "shared lock")


def locked(share: float, **values: object) -> WorkerStats:
    """Return workers that wait for a shared lock for this share of their time, and use a CPU for a tenth of a batch."""
    phases = {"fetch": 0.97 - share, "shared lock": share, "idle": 0.03}
    return replace(WORKERS, cpu_avg_s=0.008, phases=phases, lines=(READ,), samples=830, **values)  # type: ignore[arg-type]


def in_line(share: float = 0.9, **values: float) -> Snapshot:
    line = WorkerLineStats("data.py", 9, "fetch", share, 720, "fetch")
    return waiting_run(replace(WORKERS, lines=(line,), **values))  # type: ignore[arg-type]


def loading(phase: str, part: float) -> Snapshot:
    """Return a run without workers that loads in 75% of its time, a part of it in one line."""
    line = LineStats("data.py", 7, "Pictures.__getitem__", part * 0.75, 90, phase=phase)
    return replace(waiting_run(None, num_workers=0), lines={"data_loading": (line,)})


SAYS = {
    "data-loading-bound": {
        # Of two workers, one has the lock while the other one waits: with 0.49 of the time of each it is always taken.
        "workers take turns at a lock": waiting_run(locked(0.49)),
        "a lock that is mostly free": waiting_run(locked(0.05)),
        # Each of two waits in a quarter: the lock is taken in 44% to 50%, so about twice as many batches are possible.
        # Of the 80 ms, 59 ms are work without the wait: 4 workers make a batch each 17.6 ms.
        "a lock allows some more": waiting_run(locked(0.25)),
        "a lock before busy CPUs": waiting_run(locked(0.49), busy=7.9),
        # Half a CPU is enough for 8 workers, each of which computes for a tenth of its time.
        "workers mostly wait, on busy CPUs": waiting_run(replace(WORKERS, cpu_avg_s=0.008), busy=7.9),
        "one worker waits for others": waiting_run(locked(0.8), num_workers=1),
        "no phases": waiting_run(replace(locked(0.49), phases={})),
        "a lock of its own": waiting_run(replace(locked(0.49), phases={"fetch": 0.5, "lock": 0.5})),
        # 8 ms of the 80 ms are CPU time, so at least 0.9 - 0.1 of the work is waiting in a line that has 0.9 of it.
        "a line waits for storage": in_line(cpu_avg_s=0.008),
        "a line computes": in_line(cpu_avg_s=0.08),
        "a line computes for more than half": in_line(cpu_avg_s=0.05),
        "other lines may be what waits": in_line(0.15, cpu_avg_s=0.008),
        "a line waits for a CPU": in_line(batch_avg_s=0.160, cpu_avg_s=0.02, cpu_wait_avg_s=0.120),
        "itself at a lock": loading("lock", 0.8),
        "itself at a shared lock": loading("shared lock", 0.8),
        "itself at a lock for less than half": loading("lock", 0.4),
        "itself at no lock": loading("fetch", 0.8),
    }
}
