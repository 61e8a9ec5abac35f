"""The rule about a training on the CPU whose operators use fewer threads than there are free CPUs."""

from typing import Final

from training_profiler.diagnosis.loader_fixes import free_cpus
from training_profiler.diagnosis.machine import SAMPLES_NEEDED
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.program import THREADS, ProgramFacts
from training_profiler.snapshot.snapshot import MachineStats, Snapshot

FEW_THREADS: Final = "few-threads"
LONG_OPERATOR_S: Final = 100e-6  # on average: torch divides shorter ones among threads with little gain, or not at all
UNLIKE: Final = 2.0  # x the counted step's operators: where all steps take longer on average, they are others
PARALLEL: Final = 0.8  # of what twice the threads could save at best; products of matrices reach 0.9
# torch's own choice is one thread for each core, and a core has at most two CPUs here: with three, one was asked for.
CHOSEN_FROM: Final = 3


@RULES.rule(FEW_THREADS, threshold=0.15)  # of step time
def few_threads(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training on the CPU that was set to few threads and leaves CPUs free; over 15 % of step time.

    None where operators are short on average, or were not counted, and where torch has chosen the number of threads.
    """
    machine, step, threads = snapshot.machine, snapshot.step, snapshot.program.threads
    if machine is None or step is None or machine.cores is None or snapshot.device is not None or machine.gpus:
        return None
    free = _free(snapshot, machine)
    if free is None or machine.samples < SAMPLES_NEEDED or not threads or not has_enough_steps(snapshot):
        return None
    places = snapshot.program.places_of(THREADS)
    wanted = _wanted(machine, threads, free)
    if wanted < 2 * threads or not (places or (threads == 1 and machine.cores / machine.local_ranks >= CHOSEN_FROM)):
        return None
    computing_s = snapshot.computing_s()
    if not step.settled_s or not _has_long_operators(snapshot.program, computing_s / step.settled_count):
        return None
    potential_saving_s = PARALLEL * (1 - threads / wanted) * computing_s
    share = potential_saving_s / step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    where = f" (set at {places})" if places else ""
    return Finding(
        code=FEW_THREADS,
        message=f"torch computes with {'1 thread' if threads == 1 else f'{threads} threads'}{where}, and {free:.1f} of "
        f"{machine.cores:g} CPUs are free: forward and backward passes take {computing_s / step.settled_s:.0%} of step "
        "time",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "threads": threads,
            "free_cpus": free,
            "lines": places,
        },
        potential_saving_s=potential_saving_s,
        fix=f"Use more threads: torch.set_num_threads({wanted}) or OMP_NUM_THREADS={wanted}",
    )


def _has_long_operators(program: ProgramFacts, computing_s: float) -> bool:
    """Return whether the operators of a step, in which computing takes ``computing_s``, are long on average.

    Those of the counted step are known. Other steps may do something else as well, such as an agent's whole episode.
    """
    counted_s = program.long_forward.all_s + program.long_backward.all_s
    return program.operators > 0 and (
        counted_s >= program.operators * LONG_OPERATOR_S and computing_s <= UNLIKE * counted_s
    )


def _free(snapshot: Snapshot, machine: MachineStats) -> float | None:
    """Return how many CPUs neither the training nor other programs used on average; None if unknown."""
    free = free_cpus(snapshot)
    if free is None or machine.cpu_host is None or machine.host_cores is None:
        return free
    return min(free, machine.host_cores * (1 - machine.cpu_host.mean))


def _wanted(machine: MachineStats, threads: int, free: float) -> int:
    """Return how many threads a rank can have."""
    cores = 0.0 if machine.cores is None else machine.cores
    return min(int(cores / machine.local_ranks), threads + round(free / machine.local_ranks))
