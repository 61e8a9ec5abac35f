"""Workers that wait for each other at a lock: what more of them bring."""

from dataclasses import replace

import pytest

from tests.support.loader_workers import WORKERS, waiting_run
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.loader_fixes import waiting_fix
from training_profiler.snapshot.snapshot import LineStats, WorkerLineStats, WorkerStats

READ = WorkerLineStats("data.py", 12, "Pictures.__getitem__", 0.5, 400, "shared lock")


def locked(share: float, **values: object) -> WorkerStats:
    """Return workers that wait for a shared lock for this share of their time, and use a CPU for a tenth of a batch."""
    phases = {"fetch": 0.97 - share, "shared lock": share, "idle": 0.03}
    return replace(WORKERS, cpu_avg_s=0.008, phases=phases, lines=(READ,), samples=830, **values)  # type: ignore[arg-type]


def test_workers_that_take_turns_at_a_lock_are_not_multiplied() -> None:
    # Of two workers, one has the lock while the other one waits: with 0.49 of the time of each it is always taken.
    fix = waiting_fix(waiting_run(locked(0.49)))
    assert fix.startswith(
        "More workers would not help: they wait for each other at a shared lock, data.py:12 Pictures.__getitem__. It "
        "is taken in at least 91% of the time, so a batch takes at least 36.4 ms with any number of workers. Do less "
        "while the lock is held, or give each worker a file or connection of its own"
    )
    assert "Set DataLoader" not in fix


def test_a_lock_that_is_free_most_of_the_time_does_not_hold_workers_up() -> None:
    assert waiting_fix(waiting_run(locked(0.05))).startswith("Set DataLoader(num_workers=8), now 2")


def test_a_lock_allows_some_workers_more() -> None:
    # Each of two waits in a quarter: the lock is taken in 44% to 50%, so about twice as many batches are possible. Of
    # the 80 ms, 59 ms are work without the wait: 4 workers make a batch each 17.6 ms.
    fix = waiting_fix(waiting_run(locked(0.25)))
    assert fix.startswith(
        "Set DataLoader(num_workers=4), now 2: more would wait for each other at a shared lock, data.py:12 "
        "Pictures.__getitem__, so a batch takes at least 17.6 ms; without waiting 6 would be needed"
    )


def test_a_lock_that_is_nearly_always_taken_is_named_before_busy_cpus() -> None:
    assert waiting_fix(waiting_run(locked(0.49), busy=7.9)).startswith(
        "More workers would not help: they wait for each"
    )


def test_workers_that_mostly_wait_find_a_cpu_on_a_busy_machine_too() -> None:
    # Half a CPU is enough for 8 workers, each of which computes for a tenth of its time.
    fix = waiting_fix(waiting_run(replace(WORKERS, cpu_avg_s=0.008), busy=7.9))
    assert fix.startswith("Set DataLoader(num_workers=7), now 2: more would find no free CPU")
    assert "They compute for 8.00 ms of that: it helps if what they wait for serves more at a time" in fix


def test_workers_that_compute_need_more_workers_without_a_condition() -> None:
    assert "it helps if" not in waiting_fix(waiting_run())


def test_one_worker_that_waits_for_others_says_nothing_about_more_workers() -> None:
    one = waiting_run(locked(0.8), num_workers=1)
    assert "lock" not in waiting_fix(one)


@pytest.mark.parametrize("phases", [{}, {"fetch": 0.5, "lock": 0.5}])
def test_without_waiting_for_a_shared_lock_nothing_is_said(phases: dict[str, float]) -> None:
    run = waiting_run(replace(locked(0.49), phases=phases))
    assert "lock" not in waiting_fix(run)


def test_the_lines_say_which_of_them_waits() -> None:
    finding = next(each for each in diagnose(waiting_run(locked(0.49))) if each.code == "data-loading-bound")
    assert "data.py:12 Pictures.__getitem__ (50% of their work: shared lock)" in finding.message


def test_a_line_that_waits_for_storage_is_said_to_wait() -> None:
    # 8 ms of the 80 ms are CPU time, so at least 0.9 - 0.1 of the work is waiting in a line that has 0.9 of it.
    line = WorkerLineStats("data.py", 9, "fetch", 0.9, 720, "fetch")
    waits = replace(WORKERS, cpu_avg_s=0.008, lines=(line,))
    finding = next(each for each in diagnose(waiting_run(waits)) if each.code == "data-loading-bound")
    assert "data.py:9 fetch (90% of their work: fetch; it waits there, a batch uses 8.00 ms of CPU)" in finding.message


@pytest.mark.parametrize(
    ("cpu_s", "share"),
    [(0.08, 0.9), (0.05, 0.9), (0.008, 0.15)],  # it computes; for more than half; other lines may be what waits
)
def test_a_line_that_may_compute_is_not_said_to_wait(cpu_s: float, share: float) -> None:
    line = WorkerLineStats("data.py", 9, "fetch", share, 720, "fetch")
    finding = next(
        each
        for each in diagnose(waiting_run(replace(WORKERS, cpu_avg_s=cpu_s, lines=(line,))))
        if each.code == "data-loading-bound"
    )
    assert "it waits there" not in finding.message


def test_waiting_for_a_cpu_does_not_count_as_waiting_of_the_line() -> None:
    line = WorkerLineStats("data.py", 9, "fetch", 0.9, 720, "fetch")
    crowded = replace(WORKERS, batch_avg_s=0.160, cpu_avg_s=0.02, queued_avg_s=0.120, lines=(line,))
    finding = next(each for each in diagnose(waiting_run(crowded)) if each.code == "data-loading-bound")
    assert "it waits there" not in finding.message


@pytest.mark.parametrize(
    ("phase", "part", "is_named"),
    [("lock", 0.8, True), ("shared lock", 0.8, True), ("lock", 0.4, False), ("fetch", 0.8, False)],
)
def test_a_training_that_waits_for_a_lock_while_it_loads_is_named_the_line(
    phase: str, part: float, is_named: bool
) -> None:
    run = waiting_run(None, num_workers=0)  # it loads in 75% of its time
    line = LineStats("data.py", 7, "Pictures.__getitem__", part * 0.75, 90, phase=phase)
    fix = waiting_fix(replace(run, lines={"data_loading": (line,)}))
    assert (fix == "Shorten what holds the lock that data.py:7 waits for") == is_named
