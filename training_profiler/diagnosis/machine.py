"""Rules about CPU time that the training needed and did not get, and what that does to the other findings."""

from dataclasses import dataclass, replace
from typing import Final

from training_profiler.base.units import duration_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, row_of, threshold_of
from training_profiler.findings.finding import Finding, Fix
from training_profiler.findings.losses import Change
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.machine import Level, MachineStats
from training_profiler.snapshot.program import THREADS
from training_profiler.snapshot.snapshot import Snapshot

MACHINE_BUSY: Final = "machine-busy"
THE_MACHINE: Final = "the machine"  # as the cause of uneven time, where others have a section
THROTTLED_FROM: Final = 0.05  # of the periods of the quota: then waiting is mostly the quota's doing
NEARLY_ALL: Final = 0.9  # of the run
SAMPLES_NEEDED: Final = 3  # of the system monitor, with CPU times
MANY_THREADS: Final = 1.5  # times the CPUs
EXPLAINS: Final = 2.0  # times the time lost: uneven time that it may be the cause of

OTHERS, QUOTA, HYPERVISOR, MEMORY = "other programs", "quota", "hypervisor", "memory"
_FIXES: Final = {
    OTHERS: Fix(
        "Run it again on a quiet machine, or give it CPUs of its own, before changing code: all times contain the "
        "waiting",
        (Change.OTHER_MACHINE,),
    ),
    QUOTA: Fix(
        "Raise the container's CPU limit (docker --cpus, Kubernetes limits.cpu), or use fewer threads and workers",
        (Change.OTHER_MACHINE, Change.NUM_THREADS, Change.FEWER_WORKERS),
    ),
    HYPERVISOR: Fix("Use a machine with dedicated CPUs: all times contain the waiting", (Change.OTHER_MACHINE,)),
    MEMORY: Fix("Free memory on this machine: programs that wait for memory pages make no progress"),
}


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
    if _mean(machine.cpu_throttled) >= THROTTLED_FROM:
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


@RULES.rule(
    "machine-busy", 0.10, saving=Saving.RUN, saves=_saves, is_of_host=True, has_loss=True, is_first=True
)  # of the run
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
        OTHERS: f"Other programs kept this machine's CPUs busy: {waited} for one{own}{of}",
        QUOTA: f"The CPU quota of its container stopped the training: {waited}{own}{of}",
        HYPERVISOR: f"The hypervisor gave this machine's CPUs to others: {waited}{own}{of}",
        MEMORY: f"This machine ran short of memory: {waited} for memory pages",
    }[cause]
    return Finding(
        code="machine-busy",
        message=message,
        evidence={
            "lost_share": loss.to_others,
            "threshold": threshold,
            "lost_s": lost_s,
            "cause": cause,
            "of_other_programs": loss.others,
            "of_quota": loss.quota,
            "of_hypervisor": loss.hypervisor,
            "of_memory": loss.memory,
        },
        potential_saving_s=lost_s,
        fix=_FIXES[cause],
    )


@RULES.rule(
    "cpu-oversubscribed",
    threshold=0.20,  # of the run
    saving=Saving.UNKNOWN,
    label="TOO FEW CPUS",
    try_=("num_threads", "num_workers"),
    is_of_host=True,
    has_loss=True,
)
def cpu_oversubscribed(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training that waited over 20 % of the run for CPUs that its own threads and processes had."""
    machine, loss = snapshot.machine, cpu_loss(snapshot.machine)
    lost_s = loss.own * _known_s(snapshot)
    if machine is None or machine.cores is None or loss.own <= threshold or lost_s < MIN_SAVING_S:
        return None
    is_alone = machine.local_ranks == 1 and not any(loader.num_workers for loader in snapshot.loaders)
    if is_alone and snapshot.program.threads > MANY_THREADS * machine.cores:
        return _too_many_threads(snapshot, machine.cores, loss, threshold)
    each = f", in each of the {machine.local_ranks} processes" if machine.local_ranks > 1 else ""
    return Finding(
        code="cpu-oversubscribed",
        message=f"The training's own threads and processes compete for {_cpus(machine.cores)}: the training thread "
        f"waited {_lost_text(snapshot, loss.own)} for one",
        evidence={"lost_share": loss.own, "threshold": threshold, "lost_s": lost_s, "cores": machine.cores},
        fix=Fix(
            "Run it with more CPUs; where there are none, try fewer threads (torch.set_num_threads, OMP_NUM_THREADS) "
            f"or fewer workers{each}",
            (Change.OTHER_MACHINE, Change.NUM_THREADS, Change.FEWER_WORKERS),
        ),
    )


def _too_many_threads(snapshot: Snapshot, cores: float, loss: CpuLoss, threshold: float) -> Finding:
    """Return the finding where torch itself has more threads than there are CPUs: fewer save what is lost."""
    lost_s, threads = loss.own * _known_s(snapshot), snapshot.program.threads
    places = snapshot.program.places_of(THREADS)
    where = f" (set at {places})" if places else ""
    return Finding(
        code="cpu-oversubscribed",
        message=f"An operation of torch uses up to {threads} threads{where}, with {_cpus(cores)}: the "
        f"training thread waited {_lost_text(snapshot, loss.own)} for one",
        evidence={
            "lost_share": loss.own,
            "threshold": threshold,
            "lost_s": lost_s,
            "cores": cores,
            "threads": threads,
            "lines": places,
        },
        potential_saving_s=lost_s,
        fix=Fix(
            f"Use fewer threads: torch.set_num_threads({max(1, int(cores))}), OMP_NUM_THREADS; small operations are "
            "fastest with one",
            (Change.NUM_THREADS,),
        ),
    )


def _known_s(snapshot: Snapshot) -> float:
    """Return the time that a loss is of: the run, or as much of it as the waiting for a CPU was measured in."""
    known_s = None if snapshot.machine is None else snapshot.machine.cpu_wait_known_s
    return snapshot.wall_s if known_s is None else min(snapshot.wall_s, known_s)


def _lost_text(snapshot: Snapshot, part: float) -> str:
    """Return "2m 5s (40% of the run)", or the part of the time that is known where that is clearly less."""
    known_s = _known_s(snapshot)
    of = "the run" if known_s >= NEARLY_ALL * snapshot.wall_s else f"the {duration_text(known_s)} that were measured"
    return f"{duration_text(part * known_s)} ({part:.0%} of {of})"


def _cpus(count: float) -> str:
    return "1 CPU" if count == 1 else f"{count:g} CPUs"


def without_lost_time(findings: list[Finding], snapshot: Snapshot) -> list[Finding]:
    """Return the findings with the savings that are left without the time lost to others.

    A rule about uneven time needs more than that loss could explain: where the CPU is taken away, steps vary, grow and
    shrink whatever the program does. The loss counts twice there: the threads of an operation wait for one that has
    no CPU, and that wait looks like computing. A rule that names the machine as the cause stays, with what the loss
    leaves.
    """
    lost = cpu_loss(snapshot.machine).all
    if lost <= threshold_of(MACHINE_BUSY, snapshot):
        return findings
    left = [_without(finding, lost, lost * _known_s(snapshot)) for finding in findings]
    return [finding for finding in left if finding is not None]


def _without(finding: Finding, lost: float, lost_s: float) -> Finding | None:
    row = row_of(finding)
    if row.has_loss:
        return finding
    if not row.is_uneven:
        return replace(finding, potential_saving_s=finding.potential_saving_s * (1 - lost))
    if finding.evidence.get("moves_with") == THE_MACHINE:
        return replace(finding, potential_saving_s=max(0.0, finding.potential_saving_s - lost_s))
    left_s = finding.potential_saving_s - EXPLAINS * lost_s
    return replace(finding, potential_saving_s=left_s) if left_s >= MIN_SAVING_S else None
