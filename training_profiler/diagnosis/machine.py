"""Rules about CPU time that the training did not get, about threads, and about accelerators that have a fault."""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from training_profiler.base.sections import (
    BACKWARD_PASS,
    DATA_TRANSFER,
    FORWARD_PASS,
    INPUT_SECTIONS,
    OPTIMIZER_STEP,
    SYNCHRONIZATION,
)
from training_profiler.base.units import counted, duration_text, ms_text
from training_profiler.diagnosis.finding import Change, Evidence, Finding, Fix
from training_profiler.diagnosis.registry import (
    MIN_SAVING_S,
    RULES,
    Saving,
    cost_of_steps,
    found,
    has_enough_steps,
    row_of,
    threshold_of,
)
from training_profiler.diagnosis.worker_plan import free_cpus
from training_profiler.model.program import THREADS
from training_profiler.model.snapshot import OTHER, GpuStats, Level, MachineStats, Snapshot

MACHINE_BUSY: Final = "machine-busy"
THE_MACHINE: Final = "the machine"  # as the cause of uneven time, where others have a section
SAMPLES_NEEDED: Final = 3  # of the system monitor, with CPU times
EXPLAINS: Final = 2.0  # times the time lost: uneven time that it may be the cause of

OTHERS, QUOTA, HYPERVISOR, MEMORY = "other programs", "quota", "hypervisor", "memory"
_FIXES: Final = {
    OTHERS: Fix(
        "Run it again on an idle machine, or with reserved CPUs, before changing code: all times include this waiting",
        (Change.OTHER_MACHINE,),
    ),
    QUOTA: Fix(
        "Raise the container's CPU limit (docker --cpus, Kubernetes limits.cpu), or use fewer threads and workers",
        (Change.OTHER_MACHINE, Change.NUM_THREADS, Change.FEWER_WORKERS),
    ),
    HYPERVISOR: Fix("Use a machine with dedicated CPUs: all times include this waiting", (Change.OTHER_MACHINE,)),
    MEMORY: Fix("Free memory on this machine: programs that wait for memory pages make no progress"),
}
ONE_THREAD: Final = (
    "only one thread runs Python code at a time. Without the profiler's faster hand-over of the lock, each wait may "
    "take up to 5 ms"
)
QUEUE: Final = "multiprocessing/queues.py:"  # where the thread of a queue runs that sends what is put into it
SAID_FROM: Final = 0.1  # of the wait: the part for a CPU


@dataclass(frozen=True, slots=True)
class CpuLoss:
    """Parts of the run in which the training could not run; each is 0 to 1."""

    others: float = 0.0  # waiting for a CPU that processes of others had
    quota: float = 0.0  # stopped by the container's CPU quota
    hypervisor: float = 0.0  # the CPU was taken from this machine
    memory: float = 0.0  # every program waited for memory pages
    own: float = 0.0  # waiting for a CPU that the training's own threads and processes had

    @property
    def to_others(self) -> float:
        """The part that is not the training's own doing."""
        return min(1.0, self.others + self.quota + self.hypervisor + self.memory)

    @property
    def all(self) -> float:
        """The part in which the training could not run, whatever the reason."""
        return min(1.0, self.to_others + self.own)

    @property
    def cause(self) -> str:
        """The largest part of ``to_others``."""
        parts = {OTHERS: self.others, QUOTA: self.quota, HYPERVISOR: self.hypervisor, MEMORY: self.memory}
        return max(parts, key=lambda name: parts[name])


def cpu_loss(machine: MachineStats | None) -> CpuLoss:
    """Return what the training lost of its time on the CPU; unknown parts are 0."""
    if machine is None or machine.samples < SAMPLES_NEEDED:
        return CpuLoss()
    waited, stolen, stalled = _mean(machine.cpu_wait), _mean(machine.cpu_steal), _mean(machine.memory_stall)
    # A CPU that is taken away counts as busy. The training loses that part of the time in which it would have run.
    hypervisor = stolen * min(1.0, _mean(machine.cpu_process))
    if _mean(machine.cpu_throttled) >= 0.05:  # then waiting is mostly the quota's doing
        return CpuLoss(quota=waited, hypervisor=hypervisor, memory=stalled)
    part = _part_of_others(machine)
    return CpuLoss(others=part * waited, own=(1 - part) * waited, hypervisor=hypervisor, memory=stalled)


def _part_of_others(machine: MachineStats) -> float:
    """Return which part of the competition for CPUs came from processes of others, 0 to 1.

    The training thread competes with all that runs beside it on the CPUs it may use: its own threads, workers and
    ranks, and others. It cannot have run itself while it waited.
    """
    shared = machine.shared_cpus
    if shared is None or machine.cpu_process is None:
        return 0.0
    own = machine.cpu_process.mean * machine.local_ranks
    others = max(0.0, shared[1] - own)
    beside = max(0.0, own - (1.0 - _mean(machine.cpu_wait_own or machine.cpu_wait)))
    return others / (others + beside) if others else 0.0


def _mean(level: Level | None) -> float:
    return 0.0 if level is None else level.mean


def _saves(finding: Finding, snapshot: Snapshot) -> tuple[float, float]:
    """Return the range: threads of an operation wait for one without a CPU, which no counter shows."""
    step = snapshot.step
    longer_s = 0.0 if step is None else (step.avg_s - step.median_s) * step.settled_count
    return 0.7, max(1.1, longer_s / finding.potential_saving_s)


@RULES.rule("machine-busy", 0.10, saving=Saving.RUN, saves=_saves, is_of_host=True, is_first=True)  # of the run
def machine_busy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a run that lost over 10 % of its time to other programs, a CPU quota, a hypervisor or memory pressure."""
    machine, loss = snapshot.machine, cpu_loss(snapshot.machine)
    lost_s = loss.to_others * _known_s(snapshot)
    if machine is None or loss.to_others <= threshold or lost_s < MIN_SAVING_S:
        return None
    cause = loss.cause
    waited = f"the training waited {_lost_text(snapshot, loss.to_others)}"
    own = "" if machine.cpu_process is None else f"; it got {machine.cpu_process.mean:.2f}"
    of = "" if machine.cores is None or not own else f" of {_cpus(machine.cores)}"
    message = {
        OTHERS: f"Other programs kept this machine's CPUs busy: {waited} for a CPU{own}{of}",
        QUOTA: f"The container's CPU quota stopped the training: {waited}{own}{of}",
        HYPERVISOR: f"The hypervisor gave this machine's CPUs to others: {waited}{own}{of}",
        MEMORY: f"This machine ran short of memory: {waited} for memory pages",
    }[cause]
    return found(
        message,
        {
            "lost_share": loss.to_others,
            "threshold": threshold,
            "lost_s": lost_s,
            "cause": cause,
            "of_other_programs": loss.others,
            "of_quota": loss.quota,
            "of_hypervisor": loss.hypervisor,
            "of_memory": loss.memory,
        },
        _FIXES[cause],
        saving_s=lost_s,
    )


@RULES.rule(
    "cpu-oversubscribed",
    threshold=0.20,  # of the run
    saving=Saving.UNKNOWN,
    label="TOO FEW CPUS",
    try_=("num_threads", "num_workers"),
    is_of_host=True,
)
def cpu_oversubscribed(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training that waited over 20 % of the run for CPUs that its own threads and processes had."""
    machine, loss = snapshot.machine, cpu_loss(snapshot.machine)
    lost_s = loss.own * _known_s(snapshot)
    if machine is None or machine.cores is None or loss.own <= threshold or lost_s < MIN_SAVING_S:
        return None
    waited = f"the training thread waited {_lost_text(snapshot, loss.own)} for one"
    evidence: Evidence = {"lost_share": loss.own, "threshold": threshold, "lost_s": lost_s, "cores": machine.cores}
    threads, places = snapshot.program.threads, snapshot.program.places_of(THREADS)
    is_alone = machine.local_ranks == 1 and not any(loader.num_workers for loader in snapshot.loaders)
    if is_alone and threads > 1.5 * machine.cores:  # fewer threads of torch save what is lost
        where = f" (set at {places})" if places else ""
        return found(
            f"An operation of torch uses up to {threads} threads{where}, with {_cpus(machine.cores)}: {waited}",
            {**evidence, "threads": threads, "lines": places},
            Fix(
                f"Use fewer threads: torch.set_num_threads({max(1, int(machine.cores))}), OMP_NUM_THREADS; small "
                "operations are fastest with one",
                (Change.NUM_THREADS,),
            ),
            saving_s=lost_s,
        )
    each = f", in each of the {machine.local_ranks} processes" if machine.local_ranks > 1 else ""
    return found(
        f"The training's own threads and processes compete for {_cpus(machine.cores)}: {waited}",
        evidence,
        Fix(
            "Run it with more CPUs; where there are none, try fewer threads (torch.set_num_threads, OMP_NUM_THREADS) "
            f"or fewer workers{each}",
            (Change.OTHER_MACHINE, Change.NUM_THREADS, Change.FEWER_WORKERS),
        ),
    )


def _known_s(snapshot: Snapshot) -> float:
    """Return the time that a loss is of: the run, or as much of it as the waiting for a CPU was measured in."""
    known_s = None if snapshot.machine is None else snapshot.machine.cpu_wait_known_s
    return snapshot.wall_s if known_s is None else min(snapshot.wall_s, known_s)


def _lost_text(snapshot: Snapshot, part: float) -> str:
    """Return "2m 5s (40% of the run)", or the part of the time that is known where that is clearly less."""
    known_s = _known_s(snapshot)
    of = "the run" if known_s >= 0.9 * snapshot.wall_s else f"the {duration_text(known_s)} that were measured"
    return f"{duration_text(part * known_s)} ({part:.0%} of {of})"


def _cpus(count: float) -> str:
    return "1 CPU" if count == 1 else f"{count:g} CPUs"


def without_lost_time(findings: list[Finding], snapshot: Snapshot) -> list[Finding]:
    """Return the findings with the savings that are left without the time lost to others.

    A fix that spares work also spares the waiting in it, and saves the same part of the training time as on an idle
    machine; but not where the host waits for other ranks, or works beside a device, which a busy machine slows less. A
    rule about uneven time needs more than that loss could explain: where the CPU is taken away, steps vary, grow and
    shrink whatever the program does. The loss counts twice there: the threads of an operation wait for one without a
    CPU, which looks like computing. A rule that names the machine as the cause stays, with what the loss leaves.
    """
    lost, least = cpu_loss(snapshot.machine).all, threshold_of(MACHINE_BUSY, snapshot)
    found = []
    for finding in findings:
        row = row_of(finding)  # steps vary on a busy machine also where no finding about it is wanted
        its_least = min(least, RULES[MACHINE_BUSY].threshold) if row.is_uneven and not row.is_rise else least
        left = finding if lost <= its_least else _without(finding, lost, snapshot)
        found += [] if left is None else [left]
    return found


def _without(finding: Finding, lost: float, snapshot: Snapshot) -> Finding | None:
    row, saving_s = row_of(finding), finding.potential_saving_s
    if row.is_uneven:
        is_named = finding.evidence.get("moves_with") == THE_MACHINE
        left_s = saving_s - (1.0 if is_named else EXPLAINS) * lost * _known_s(snapshot)
        return replace(finding, potential_saving_s=max(0.0, left_s)) if is_named or left_s >= MIN_SAVING_S else None
    waits = row.saving is Saving.STEPS and row.sections_of(finding)[:1] in ((), (SYNCHRONIZATION,))
    if "lost_s" in finding.evidence or not (waits or (row.is_of_host and snapshot.device is not None)):
        return finding
    return replace(finding, potential_saving_s=saving_s * (1 - lost))


class LockWait(NamedTuple):
    """What the training waits within steps while a thread of the program runs Python code."""

    seconds: float  # for the lock
    cpu_s: float  # for the CPU that the thread has; 0 where other threads or processes of the training may have it
    samples: int
    place: str  # of the thread's line that runs the longest


def lock_wait(snapshot: Snapshot) -> LockWait | None:
    """Return how long the training waits for a thread that runs Python code; None with too few samples.

    A thread that waits uses no CPU, whatever it waits for. So the time in which the training waits for batches that
    others make, ranks, another program's CPU or the device is taken off.
    """
    step, samples = snapshot.step, 0
    seconds: dict[str, float] = {}
    if step is None or not has_enough_steps(snapshot) or not step.total_s:
        return None
    for name, lines in snapshot.lines.items():
        if name == OTHER or snapshot.sections[name].step_total_s > 0:
            for line in lines:
                samples += line.samples if line.held_by else 0
                for place, share in line.held_by.items():
                    seconds[place] = seconds.get(place, 0.0) + share * snapshot.wall_s
    if samples < 10:  # fewer may be chance
        return None
    makes_batches = bool(snapshot.loaders) and all(loader.num_workers == 0 for loader in snapshot.loaders)
    waiting = (SYNCHRONIZATION,) if makes_batches else (SYNCHRONIZATION, *INPUT_SECTIONS)
    in_steps = (section for name, section in snapshot.sections.items() if name in waiting)
    held_s, idle_s = sum(seconds.values()) - sum(section.step_self_s for section in in_steps), snapshot.idle_device_s()
    loss = cpu_loss(snapshot.machine)
    held_s -= loss.to_others * step.total_s
    lock_s = held_s - (loss.all - loss.to_others) * step.total_s
    if idle_s is not None:
        held_s, lock_s = min(held_s, idle_s), min(lock_s, idle_s)
    lock_s = max(0.0, lock_s)
    # As long as no workers, ranks or surplus threads of the training compete with it for CPUs.
    machine, cpu_s = snapshot.machine, 0.0
    if makes_batches and machine is not None and machine.cores is not None and machine.local_ranks <= 1:
        cpu_s = max(0.0, held_s - lock_s) if snapshot.program.threads <= machine.cores else 0.0
    return LockWait(lock_s, cpu_s, samples, max(seconds, key=lambda place: seconds[place]))


@RULES.rule(
    "lock-held-by-thread",
    threshold=0.10,  # of step time
    label="BUSY THREAD",
    claims=(FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP, OTHER),
    is_anywhere=True,
    saves=(0.7, 1.5),
    explains_idle=True,
)
def lock_held_by_thread(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a thread of the program that runs Python code while the training thread waits for Python's lock."""
    step, wait = snapshot.step, lock_wait(snapshot)
    if step is None or wait is None:
        return None
    held_s, place = wait.seconds + wait.cpu_s, wait.place
    share = held_s / step.total_s
    if share <= threshold or held_s < MIN_SAVING_S:
        return None
    how_long = f"for {share:.0%} of step time ({ms_text(held_s / step.count)} per step)"
    message = f"The training waits for Python's lock {how_long}, which another thread holds at {place}"
    changes = (Change.OTHER_PROCESS,)
    fix = f"Move that work to a process of its own (multiprocessing, DataLoader workers): {ONE_THREAD}"
    if wait.cpu_s > SAID_FROM * held_s:
        for_what = "Python's lock or for a CPU" if wait.seconds > SAID_FROM * held_s else "a CPU"
        message = f"The training waits for {for_what} {how_long}, while a thread of the program runs at {place}"
        fix = f"Do less of that work meanwhile; where a CPU is free, move it to a process of its own: {ONE_THREAD}"
    if place.startswith(QUEUE):
        message = f"{message}: the thread of a multiprocessing queue, which pickles what is put into it"
        changes = (Change.SMALLER_QUEUE,)
        fix = f"Put less into the queue, or tensors and arrays instead of many objects: {ONE_THREAD}"
    evidence: Evidence = {"share_of_step": share, "threshold": threshold, "seconds": held_s, "lines": place}
    return found(
        message, {**evidence, "cpu_s": wait.cpu_s}, Fix(fix, changes), saving_s=held_s * step.settled_s / step.total_s
    )


@RULES.rule(
    "few-threads",
    threshold=0.15,  # of step time
    label="TOO FEW THREADS",
    claims=(FORWARD_PASS, BACKWARD_PASS),
    saves=(0.2, 1.25),
    changes=(Change.NUM_THREADS,),
    try_=("num_threads",),
)
def few_threads(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training on the CPU that was set to few threads and leaves CPUs free; over 15 % of step time.

    None where operators are short on average, or were not counted, and where torch has chosen the number of threads.
    """
    machine, step, threads = snapshot.machine, snapshot.step, snapshot.program.threads
    if machine is None or step is None or machine.cores is None or snapshot.device is not None or machine.gpus:
        return None
    free = free_cpus(snapshot)
    if free is not None and machine.cpu_host is not None and machine.host_cores is not None:
        free = min(free, machine.host_cores * (1 - machine.cpu_host.mean))  # others use the machine, too
    if free is None or machine.samples < SAMPLES_NEEDED or not threads:
        return None
    places = snapshot.program.places_of(THREADS)
    wanted = min(int(machine.cores / machine.local_ranks), threads + round(free / machine.local_ranks))
    # torch takes one thread for each core, which has at most two CPUs here: with three, a single thread was asked for.
    is_set = bool(places) or (snapshot.program.has_omp_threads and threads == 1)
    if wanted < 2 * threads or not (is_set or (threads == 1 and machine.cores / machine.local_ranks >= 3)):
        return None
    # Operators have to be long on average. Those of the counted step are known; other steps may do something else as
    # well, such as an agent's whole episode.
    computing_s, program = snapshot.computing_s(), snapshot.program
    counted_s = program.long_forward.all_s + program.long_backward.all_s
    if not step.settled_s or not program.operators or counted_s < program.operators * 100e-6:
        return None  # torch divides shorter ones among threads with little gain, or not at all
    if computing_s / step.settled_count > 2 * counted_s:
        return None  # where all steps take longer on average, they have other operators
    cost = cost_of_steps(snapshot, threshold, 0.8 * (1 - threads / wanted) * computing_s)  # products reach 0.9
    by_variable = " (set by OMP_NUM_THREADS, as torchrun does)" if snapshot.program.has_omp_threads else ""
    where = f" (set at {places})" if places else by_variable
    return cost.finding(
        f"torch computes with {'1 thread' if threads == 1 else f'{threads} threads'}{where}, and {free:.1f} of "
        f"{machine.cores:g} CPUs are free: forward and backward passes take {computing_s / step.settled_s:.0%} of step "
        "time",
        f"Use more threads: torch.set_num_threads({wanted}) or OMP_NUM_THREADS={wanted}",
        threads=threads,
        free_cpus=free,
        lines=places,
    )


COPIES_FROM: Final = 0.05  # of step time; else a slow link costs little
WORKING_SAMPLES: Final = 5  # in which an accelerator was busy
HEAT, HARDWARE = "heat", "hardware"
_COOLER: Final = (
    "Cool it: clear its air flow or raise its fans (nvidia-smi -q -d TEMPERATURE,PERFORMANCE shows both); until then a "
    "power limit that it can hold keeps its clock even: sudo nvidia-smi -pl WATTS"
)
_POWERED: Final = (
    "Have its power supply and cables checked (nvidia-smi -q -d PERFORMANCE says which slowdown is active); until then "
    "train on another GPU: CUDA_VISIBLE_DEVICES"
)


def link_of(gpu: GpuStats) -> tuple[float, str]:
    """Return the part that a device's link to the host has of its most bandwidth, and its text; 1 if unknown."""
    levels = gpu.pcie_width, gpu.pcie_generation, gpu.pcie_most_width, gpu.pcie_most_generation
    lanes, generation, most_lanes, newest = (0 if level is None else round(level.max) for level in levels)
    if not (lanes and generation and most_lanes and newest):
        return 1.0, ""  # such as where a virtual machine hides it
    part = lanes / most_lanes * 2.0 ** (generation - newest)
    return part, f"generation {generation} x{lanes} instead of {newest} x{most_lanes}"


def _is_at_work(snapshot: Snapshot, gpu: GpuStats) -> bool:
    busy = gpu.loop_utilization or gpu.utilization
    return snapshot.machine is not None and busy is not None and snapshot.machine.samples * busy.mean >= WORKING_SAMPLES


def _throttled(gpu: GpuStats) -> dict[str, float]:
    """Return for which part of its samples with work each cause held the clock of a device down."""
    levels = {HEAT: gpu.throttled_heat, HARDWARE: gpu.throttled_hardware}
    return {cause: level.mean for cause, level in levels.items() if level is not None}


@RULES.rule(
    "gpu-throttled", 0.10, saving=Saving.UNKNOWN, label="GPU THROTTLED", changes=(Change.OTHER_GPU,), is_risk=True
)
def gpu_throttled(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a device whose clock heat or its power supply holds down in over 10 % of the samples with work.

    Full load reaches the power limit, and a clock is low without work: neither is a fault.
    """
    machine = snapshot.machine
    if machine is None or not has_enough_steps(snapshot):
        return None
    rows = [(part, cause, gpu) for gpu in machine.gpus for cause, part in _throttled(gpu).items()]
    rows = [row for row in rows if row[0] > threshold and _is_at_work(snapshot, row[2])]
    if not rows:
        return None
    # A slowdown by heat is one of the hardware as well.
    part, cause, gpu = max(rows, key=lambda row: (row[1] == HEAT, row[0]))
    mhz = gpu.clock_mhz
    clock = "" if mhz is None else f" ({mhz.mean:,.0f} MHz on average, {mhz.max:,.0f} at most)"
    hot = "" if cause != HEAT or gpu.temperature_c is None else f", at up to {gpu.temperature_c.max:.0f} degrees C"
    since, change = "", None if snapshot.step is None else snapshot.step.change
    before = None if change is None else change.machine[0]
    gpus = () if before is None else before.gpus
    was = [_throttled(each).get(cause, 1.0) for each in gpus if each.index == gpu.index]
    if change is not None and any(each <= threshold for each in was):
        since = f", since step {change.step}"
    what = "Heat" if cause == HEAT else "A slowdown of the hardware, such as by its power supply,"
    return found(
        f"{what} held the clock of GPU {gpu.index} down in {part:.0%} of the samples with work{since}{hot}{clock}",
        {"gpu": gpu.index, "cause": cause, "part": part, "threshold": threshold},
        _COOLER if cause == HEAT else _POWERED,
    )


@RULES.rule(
    "gpu-faults",
    threshold=0.6,  # of the bandwidth that the link to the host may have
    saving=Saving.UNKNOWN,
    label="GPU FAULT",
    changes=(Change.OTHER_GPU,),
    is_risk=True,
)
def gpu_faults(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag uncorrected memory errors, rows to be remapped, and a slow link to the host where steps copy to the device.

    An idle device lowers the generation of its link: the highest one of a device with work counts.
    """
    copies = (snapshot.share_of_step(DATA_TRANSFER) or 0.0) >= COPIES_FROM
    for gpu in () if snapshot.machine is None or not has_enough_steps(snapshot) else snapshot.machine.gpus:
        faults, fixes = [], []
        if gpu.ecc_errors is not None and gpu.ecc_errors.max:
            errors = counted(round(gpu.ecc_errors.max), "uncorrected memory error")
            faults.append(f"{errors} (ECC) since its driver was loaded")
        if gpu.rows_to_remap is not None and gpu.rows_to_remap.max:
            faults.append("rows of memory that are not remapped yet, or cannot be")
        if faults:
            fixes.append("reset it between trainings (sudo nvidia-smi --gpu-reset), and replace it if errors come back")
        part, text = link_of(gpu)
        if part < threshold and copies and _is_at_work(snapshot, gpu):
            faults.append(f"a PCIe link of {text}")
            fixes.append("reseat it, or use another slot (nvidia-smi -q -d PCIE; lspci -vv)")
        if faults:
            fix = "; ".join(fixes)
            evidence = {"gpu": gpu.index, "faults": len(faults), "threshold": threshold}
            return found(f"GPU {gpu.index} has {' and '.join(faults)}", evidence, fix[:1].upper() + fix[1:])
    return None
