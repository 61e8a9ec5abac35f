"""How many workers a loader needs, and what they can bring at most, from what making a batch takes now."""

from math import ceil
from typing import Final, NamedTuple

from training_profiler.base.framework_frames import SAMPLER
from training_profiler.base.sections import DATA_LOADING, FIRST_FETCH, WORKER_START
from training_profiler.base.units import ms_text
from training_profiler.diagnosis.finding import Action, Change, Evidence, Fix
from training_profiler.model.loader_workers import IDLE, SHARED_LOCK
from training_profiler.model.snapshot import LoaderStats, Snapshot, WorkerStats

BATCHES_NEEDED: Final = 16  # of the workers: the first ones open files and fill caches
PREPROCESS_LESS: Final = "Preprocess less per sample"
MOSTLY_TAKEN: Final = 0.8  # of the time, a lock: it is what holds workers up, whatever else would
MOSTLY_WAITS: Final = 0.5  # of the time of making a batch
LESS_LOCKED: Final = "Do less while the lock is held, or give each worker a file or connection of its own"
FREE_CPUS: Final = 0.5  # from here on another worker has something to run on
MOST_WORKERS: Final = 64
UNEVEN_FROM: Final = 4.0  # the longest batch over the mean
A_PART: Final = 0.2  # of the lines' time
OFTEN_QUEUED: Final = 0.1  # of the training's time: then a batch made in it takes longer, up to so many times
QUEUED: Final = 3
CLEARLY_FEWER: Final = 0.9  # times the time of a batch as it is now


class SharedLock(NamedTuple):
    """A lock at which the workers of a loader wait for each other; shares are 0 to 1."""

    place: str  # the line that waits longest, and its function
    taken: float  # of the time, at least: one of them has it, and some other one waits
    waiting: float  # of the time of making a batch, in which a worker waits for it


class WorkerPlan(NamedTuple):
    """Times are for one batch."""

    now: int  # workers that there are; 0 where the training makes its batches itself
    needed: int  # workers that make batches as fast as a training without waiting uses them
    useful: int  # as many of them as there are CPUs for
    making_s: float  # in a worker that always has a CPU, or in the training where there is none
    cpu_s: float  # for making one
    using_s: float  # of the training beside waiting
    now_s: float  # of the training
    at_best_s: float  # of the training, with any number of workers
    is_uneven: bool  # single batches take much longer than the mean
    lock: SharedLock | None = None  # where it is what allows no more workers
    waits: bool = False  # the workers compute less than they wait, for a disk, a network or another program
    handing_over_s: float = 0.0  # the median wait for a batch of workers that are mostly idle; 0 if they are not
    with_queue_s: float = 0.0  # making it in the training, which may use it for longer then, where it waits for CPUs

    @property
    def is_better_without(self) -> bool:
        """Whether the training would make its batches itself in less time than it takes them over from workers."""
        without_s = self.using_s + self.with_queue_s
        return self.handing_over_s > self.with_queue_s and without_s < CLEARLY_FEWER * self.now_s

    @property
    def saved(self) -> float:
        """The part of the waiting that as many workers as are useful save; 1 where the work itself has to shrink."""
        if self.is_better_without:
            return (self.now_s - self.using_s - self.with_queue_s) / (self.now_s - self.using_s)
        if self.now_s <= self.using_s:
            return 1.0
        if self.useful <= self.now:  # each batch is still handed over
            return max(0.0, 1 - self.handing_over_s / (self.now_s - self.using_s))
        return (self.now_s - self.at_best_s) / (self.now_s - self.using_s)

    @property
    def wanted(self) -> int | None:
        """How many workers to set; None where another number brings nothing."""
        if self.is_better_without:
            return 0
        return min(self.useful, self.needed) if min(self.useful, self.needed) > self.now else None

    def saved_by_less_work(self, share: float) -> float:
        """Return the part of the waiting that goes where ``share`` of the work for a batch is not done, at most 1."""
        waiting_s = self.now_s - self.using_s
        return min(1.0, share * self.making_s / max(1, self.now) / waiting_s) if waiting_s > 0 else 0.0

    @property
    def evidence(self) -> Evidence:
        """The figures that the advice is from."""
        return {
            "num_workers": self.now,
            "workers_needed": self.needed,
            "workers_useful": self.useful,
            "batch_s": self.making_s,
            "batch_cpu_s": self.cpu_s,
            "using_s": self.using_s,
            "least_batch_s": self.at_best_s,
            **({} if self.lock is None else {"lock": self.lock.place, "lock_taken": self.lock.taken}),
            **({"handing_over_s": self.handing_over_s} if self.handing_over_s else {}),
        }

    @property
    def fix(self) -> Fix:
        """What to do with the number of workers."""
        where = " in a worker" if self.now else f" ({ms_text(self.cpu_s)} of CPU time)"
        times = f"making a batch takes {ms_text(self.making_s)}{where}, using it {ms_text(self.using_s)}"
        computes = (
            f". They compute for {ms_text(self.cpu_s)} of that: it helps if what they wait for serves more at a time"
        )
        unknown = computes if self.waits else ""
        if self.is_better_without:
            return Fix(
                f"Set DataLoader(num_workers=0), now {self.now}: the training waits {ms_text(self.handing_over_s)} to "
                f"take a batch over from workers that are mostly idle, and {times}",
                (Change.NUM_WORKERS,),
                (Action("DataLoader(..., num_workers=0)", (Change.NUM_WORKERS,)),),
            )
        if self.needed <= self.now:
            why = ", but some take much longer" if self.is_uneven else ""
            workers = "One worker is" if self.now == 1 else f"The {self.now} workers are"
            return Fix(f"{workers} enough for batches of mean length{why}: {times}")
        if self.lock is not None and self.useful <= self.now:
            return Fix(
                f"More workers would not help: they wait for each other at a shared lock, {self.lock.place}. It is "
                f"taken in at least {self.lock.taken:.0%} of the time, so a batch takes at least "
                f"{ms_text(self.at_best_s)} with any number of workers. {LESS_LOCKED}"
            )
        if self.useful <= self.now:
            workers = "More workers" if self.now else "Workers"
            return Fix(
                f"{workers} would not help: all CPUs are busy, and making a batch takes {ms_text(self.cpu_s)} of "
                f"CPU time, using it {ms_text(self.using_s)}. {PREPROCESS_LESS}",
                (Change.LESS_PREPROCESSING,),
            )
        if self.useful < self.needed:
            why = (
                "find no free CPU" if self.lock is None else f"wait for each other at a shared lock, {self.lock.place}"
            )
            return Fix(
                f"Set DataLoader(num_workers={self.useful}), now {self.now}: more would {why}, so a batch "
                f"takes at least {ms_text(self.at_best_s)}; without waiting {self.needed} would be needed: {times}"
                f"{unknown}",
                (Change.NUM_WORKERS,),
            )
        text = f"Set DataLoader(num_workers={self.needed}), now {self.now}: {times}{unknown}"
        return Fix(text, (Change.NUM_WORKERS,))


def worker_plan(snapshot: Snapshot, loader: LoaderStats, free_cpus: float | None) -> WorkerPlan | None:
    """Return the plan for a loader of the training; None where it was not measured.

    Needs the times of the workers, or those of the training where that makes its batches itself. ``free_cpus`` could
    be used beside those that are used; None does not limit them.
    """
    workers, times = loader.workers, batch_times(snapshot, loader)
    if loader.num_workers == 0:
        return None if times is None else _plan_without_workers(snapshot, loader, free_cpus, *times)
    if workers is None or times is None or not loader.num_workers or workers.batches < BATCHES_NEEDED:
        return None
    now_s, using_s = times
    making_s = max(0.0, workers.batch_avg_s - workers.cpu_wait_avg_s)
    if using_s <= 0 or not making_s:
        return None
    at_best_s, has_room = using_s, free_cpus is None or free_cpus >= FREE_CPUS
    if free_cpus is not None and workers.cpu_avg_s:
        cpus = workers.cpu_avg_s / now_s + (free_cpus if has_room else 0.0)
        at_best_s = max(using_s, workers.cpu_avg_s / cpus)
    lock = shared_lock(workers, loader.num_workers)
    if lock is not None and lock.taken < MOSTLY_TAKEN and lock.taken * now_s <= at_best_s:
        lock = None  # something else allows no more
    work_s = making_s
    if lock is not None:
        at_best_s, work_s = max(at_best_s, lock.taken * now_s), making_s * (1 - lock.waiting)
    ahead = loader.num_workers * (loader.prefetch_factor or 1)
    return WorkerPlan(
        now=loader.num_workers,
        needed=_count(work_s / using_s),
        # Where no CPU is free, no more than now; batches may have taken longer in other steps than those that count.
        useful=min(_count(work_s / at_best_s), MOST_WORKERS if has_room else loader.num_workers),
        making_s=making_s,
        cpu_s=workers.cpu_avg_s,
        using_s=using_s,
        now_s=now_s,
        at_best_s=at_best_s,
        # Longer than the mean, and than using the batches that are made ahead of it.
        is_uneven=workers.batch_max_s > max(UNEVEN_FROM * workers.batch_avg_s, ahead * using_s),
        lock=lock,
        waits=lock is None and waiting_share(workers) >= MOSTLY_WAITS,
        handing_over_s=_handing_over_s(snapshot, workers),
        with_queue_s=max(QUEUED * workers.batch_avg_s, using_s) if _is_queued(snapshot) else workers.batch_avg_s,
    )


def _handing_over_s(snapshot: Snapshot, workers: WorkerStats) -> float:
    """Return the median wait for a batch, if the workers are mostly idle and it is not the first of a pass; else 0.

    A sampler runs in the training process with any number of workers, which are idle if it is slow. A wait that is no
    longer than a batch with its waiting for a CPU may be for its making, where passes are short.
    """
    fetches, first = snapshot.sections.get(DATA_LOADING), snapshot.sections.get(FIRST_FETCH)
    if fetches is None or fetches.p50_s is None or workers.phases.get(IDLE, 0.0) < 0.5:
        return 0.0
    lines = snapshot.lines.get(DATA_LOADING, ())
    in_sampler = sum(line.share for line in lines if line.phase == SAMPLER) > A_PART * sum(line.share for line in lines)
    is_first = first is not None and first.count > 0.25 * fetches.count
    return 0.0 if is_first or in_sampler or fetches.p50_s <= workers.batch_avg_s else fetches.p50_s


def _is_queued(snapshot: Snapshot) -> bool:
    """Return whether the training often waits for a CPU: more processes of its own get more of these then."""
    queued = None if snapshot.machine is None else snapshot.machine.cpu_wait_own or snapshot.machine.cpu_wait
    return queued is not None and queued.mean > OFTEN_QUEUED


def waiting_share(workers: WorkerStats) -> float:
    """Return the share of the time of making a batch in which a worker neither computes nor waits for a CPU, at least.

    At least, because all CPU time of the worker is taken as that of batches.
    """
    if not workers.batch_avg_s:
        return 0.0
    return max(0.0, 1 - (workers.cpu_avg_s + workers.cpu_wait_avg_s) / workers.batch_avg_s)


def mostly_waits(snapshot: Snapshot, loader: LoaderStats) -> bool:
    """Return whether making a batch is mostly waiting, such as for a disk or a network; False where that is unknown.

    Where the training makes its batches, all of its waiting for a CPU is taken as that of batches.
    """
    if loader.workers is not None and loader.num_workers:
        return waiting_share(loader.workers) >= MOSTLY_WAITS
    making_s, cpu_s, whole_s = loader.data_avg_s, loader.batch_cpu_avg_s, loader.batch_wait_avg_s
    queued = None if snapshot.machine is None else snapshot.machine.cpu_wait_own or snapshot.machine.cpu_wait
    if loader.num_workers or not making_s or cpu_s is None or whole_s is None or queued is None:
        return False
    return making_s - cpu_s - queued.mean * whole_s >= MOSTLY_WAITS * making_s


def shared_lock(workers: WorkerStats, count: int) -> SharedLock | None:
    """Return the lock at which ``count`` workers wait for each other; None where they do not, or it is not known.

    While some wait, at most all but one of them do, because one has the lock. So it is taken at least in their mean
    number over the others' number. Of the share of samples, two standard errors are left out.
    """
    share = workers.phases.get(SHARED_LOCK, 0.0)
    waits = next((line for line in workers.lines if line.phase == SHARED_LOCK), None)
    if waits is None or count < 2 or not workers.samples:
        return None
    error = 2 * (share * (1 - share) / workers.samples) ** 0.5
    taken = min(1.0, count / (count - 1) * (share - error))
    of_work = share / (1 - workers.phases.get(IDLE, 0.0)) if share < 1 else 1.0
    return SharedLock(f"{waits.place} {waits.what}", taken, min(1.0, of_work)) if taken > 0 else None


def _plan_without_workers(
    snapshot: Snapshot, loader: LoaderStats, free_cpus: float | None, now_s: float, using_s: float
) -> WorkerPlan | None:
    """Return the plan for a training that makes its batches itself.

    Both times stretch alike where the training waits for a CPU, so their ratio holds. A batch needs as much CPU time of
    the process as now, whoever makes it: beside free CPUs there are those that the process has already. Where several
    threads compute meanwhile, what a worker of one thread needs is not known.
    """
    cpu_s, machine = loader.batch_cpu_avg_s, snapshot.machine
    if cpu_s is None or loader.batches < BATCHES_NEEDED or using_s <= 0 or now_s <= using_s:
        return None
    if cpu_s > 1.5 * (now_s - using_s):  # the profiler's own threads are in it as well
        return None
    at_best_s, has_room = using_s, free_cpus is None or free_cpus >= FREE_CPUS
    if free_cpus is not None and machine is not None and machine.cpu_process is not None and machine.cpu_process.mean:
        has = max(machine.cpu_process.mean, cpu_s / now_s)
        at_best_s = max(using_s, now_s * has / (has + free_cpus))
    return WorkerPlan(
        now=0,
        needed=_count((now_s - using_s) / using_s),
        useful=_count((now_s - using_s) / at_best_s) if has_room else 0,
        making_s=now_s - using_s,
        cpu_s=cpu_s,
        using_s=using_s,
        now_s=now_s,
        at_best_s=at_best_s,
        is_uneven=False,
    )


def batch_times(snapshot: Snapshot, loader: LoaderStats) -> tuple[float, float] | None:
    """Return the time of the training for each batch, and the same without waiting for it, in s.

    None where it was not measured. A batch of one of several loaders is used for as long as any other is.
    """
    step, waiting_s = snapshot.step, snapshot.total_of_step_s(DATA_LOADING)
    if step is None or waiting_s is None or not step.settled_count or not snapshot.steps or not loader.batches:
        return None
    batches = sum(each.batches for each in snapshot.loaders if each.phase == loader.phase)
    settled = step.settled_count / snapshot.steps
    others = 1 - part_of_waiting(snapshot, loader) * batches / loader.batches
    now_s, using_s = ((step.settled_s - part * waiting_s) / (settled * batches) for part in (others, 1.0))
    return now_s, using_s


def part_of_waiting(snapshot: Snapshot, loader: LoaderStats) -> float:
    """Return the loader's part of the waiting for all loaders of its phase."""
    waited_s = sum(each.wait_s for each in snapshot.loaders if each.phase == loader.phase)
    return loader.wait_s / waited_s if waited_s else 1.0


def _count(workers: float) -> int:
    return min(MOST_WORKERS, max(1, ceil(round(workers, 6))))  # 3.0000000001 are three


def free_cpus(snapshot: Snapshot) -> float | None:
    """Return how many CPUs were free on average; None if unknown."""
    machine = snapshot.machine
    if machine is None or machine.cores is None or machine.cpu_process is None:
        return None
    free = [machine.cores - machine.cpu_process.mean * machine.local_ranks]
    if machine.shared_cpus is not None:
        count, busy = machine.shared_cpus
        free.append(count - busy)
    return max(0.0, min(free))


def saved_by_keeping(snapshot: Snapshot, loader: LoaderStats) -> float:
    """Return the part of the waiting that kept workers save: their start, and the first batch beyond its making."""
    whole, (start, first) = snapshot.sections[DATA_LOADING], map(snapshot.sections.get, (WORKER_START, FIRST_FETCH))
    saved_s = 0.0 if start is None else start.step_total_s
    if first is not None and loader.workers is not None:
        saved_s += max(0.0, first.step_total_s - first.count * loader.workers.batch_avg_s)
    return min(1.0, saved_s / whole.step_total_s) if whole.step_total_s else 0.0
