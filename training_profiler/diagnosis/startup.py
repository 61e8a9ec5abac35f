"""Rules about what a program does before its first step."""

from typing import Final

from training_profiler.base.units import duration_text
from training_profiler.diagnosis.registry import RULES
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.sampling.startup_frames import DATA_SET, MODEL, REST
from training_profiler.snapshot.snapshot import Snapshot

SLOW_STARTUP: Final = "slow-startup"
SHORT_S: Final = 10.0  # a trial of a few steps has it, too
# Imports, compiling and the start of workers, devices and process groups do not get shorter by keeping a result.
PREPARED: Final = (DATA_SET, MODEL, REST)
PURPOSES: Final = {DATA_SET: " on its data set", MODEL: " on its model"}


@RULES.rule(SLOW_STARTUP, threshold=0.50, saving=Saving.RUN)  # share of the run
def slow_startup(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag preparations that take half of the run before the first step; None for 10 s or less.

    Only lines of the program count, up to three of one kind of preparation.
    """
    startup = snapshot.startup
    if startup is None or not startup.has_steps or not snapshot.wall_s:
        return None
    prepared = [(sum(each[1] for each in part.lines), part) for part in startup.parts if part.name in PREPARED]
    seconds, part = max(prepared, key=lambda each: each[0], default=(0.0, None))
    share = seconds / snapshot.wall_s
    if part is None or seconds <= SHORT_S or share <= threshold:
        return None
    lines = ", ".join(line for line, _ in part.lines)
    return Finding(
        SLOW_STARTUP,
        f"Before its first step the program spends {duration_text(seconds)}{PURPOSES.get(part.name, '')}, {share:.0%} "
        f"of the run so far: {lines}",
        {"share_of_run": share, "threshold": threshold, "seconds": seconds, "lines": lines, "part": part.name},
        seconds,
        "If each run repeats it, keep its result in a file and load that",
    )
