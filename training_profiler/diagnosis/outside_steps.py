"""Rules about time outside of training steps: before the first one, and between them."""

from dataclasses import replace
from typing import Final

from training_profiler.base.sections import FORWARD_PASS, FORWARD_WITHOUT_GRAD
from training_profiler.base.startup_frames import DATA_SET, MODEL, REST
from training_profiler.base.units import duration_text
from training_profiler.diagnosis.finding import Change, Finding
from training_profiler.diagnosis.places import places_text
from training_profiler.diagnosis.registry import RULES, cost_of_run, found, has_enough_steps
from training_profiler.diagnosis.rule import Saving
from training_profiler.model.snapshot import OUTSIDE_STEPS, Snapshot

# Imports, compiling and the start of workers, devices and process groups do not get shorter by keeping a result.
PREPARED: Final = (DATA_SET, MODEL, REST)
PURPOSES: Final = {DATA_SET: " on its data set", MODEL: " on its model"}


@RULES.rule(
    "slow-startup",
    0.50,
    saving=Saving.RUN,
    label="SLOW START",
    changes=(Change.KEPT_RESULTS,),
    is_before_training=True,
)  # share of the run
def slow_startup(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag preparations that take half of the run before the first step; None for 10 s or less.

    Only lines of the program count, up to three of one kind of preparation.
    """
    startup = snapshot.startup
    if startup is None or not startup.has_steps:
        return None
    prepared = [(sum(each[1] for each in part.lines), part) for part in startup.parts if part.name in PREPARED]
    seconds, part = max(prepared, key=lambda each: each[0], default=(0.0, None))
    cost = cost_of_run(snapshot, threshold, seconds)
    if part is None or seconds <= 10:  # a trial of a few steps has it, too
        return None
    lines = ", ".join(line for line, _ in part.lines)
    return cost.finding(
        f"Before its first step the program spends {duration_text(seconds)}{PURPOSES.get(part.name, '')}, "
        f"{cost.share:.0%} of the run so far: {lines}",
        "If each run repeats it, keep its result in a file and load that",
        seconds=seconds,
        lines=lines,
        part=part.name,
    )


@RULES.rule(
    "outside-steps", 0.40, saving=Saving.RUN, saves=(0.0, 1.0), changes=(Change.CHEAPER_LINES,)
)  # share of the run
def mostly_outside(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag time after the first step in no section or in forward passes, but in no step: over 40 % of the run and 10 s.

    What is in no section alone counts from 15 % and 3 s on, with half of it as its saving. Time in no line of the
    program is left out, such as that of a notebook between two cells. None where no lines are known.
    """
    step, outside = snapshot.step, snapshot.sections.get(OUTSIDE_STEPS)
    if step is None or step.before_s is None or outside is None:
        return None
    if not snapshot.wall_s or not has_enough_steps(snapshot):
        return None
    passes: dict[str, float] = {
        name: section.self_s - section.step_self_s
        for name in (FORWARD_PASS, FORWARD_WITHOUT_GRAD)  # what has a name of its own there has rules of its own
        if (section := snapshot.sections.get(name)) is not None
    }
    lines = list(snapshot.settled_lines.get(OUTSIDE_STEPS, ()))
    seen_s = sum(line.share for line in lines) * snapshot.wall_s
    rest_s, passes_s = min(seen_s, max(0.0, outside.self_s - step.before_s)), sum(passes.values())
    share = (rest_s + passes_s) / snapshot.wall_s
    is_most = share > threshold and rest_s + passes_s > 10
    if not is_most:
        passes, passes_s, share = {}, 0.0, rest_s / snapshot.wall_s
        if share <= 0.15 or rest_s <= 3:
            return None
    for name, seconds in passes.items():
        if seconds >= 0.8 * snapshot.sections[name].self_s:  # outside steps: its lines are those of that time
            lines += snapshot.lines.get(name, ())
    if sum(line.samples for line in lines) < 30:
        return None
    ordered = tuple(sorted(lines, key=lambda line: -line.share))
    text = places_text(replace(snapshot, lines={OUTSIDE_STEPS: ordered}).hottest(OUTSIDE_STEPS), share)
    if not text:
        return None
    return found(
        f"{share:.1%} of the run lies outside its training steps{_of(passes_s, rest_s, snapshot.wall_s)}: {text}",
        {"share_of_run": share, "threshold": threshold, "seconds": rest_s + passes_s, "lines": text},
        "Make these lines cheaper, above all by doing once what is the same each time, or wrap them in "
        'profile_section("...") to measure them separately',
        saving_s=(rest_s + passes_s) * (1.0 if is_most else 0.5),  # as of other lines that are in no section
    )


def _of(passes_s: float, rest_s: float, wall_s: float) -> str:
    parts = {"in forward passes": passes_s, "in no section": rest_s}
    seen = {what: seconds / wall_s for what, seconds in parts.items() if seconds >= 0.01 * wall_s}
    if len(seen) == 1:
        return f", {next(iter(seen))}"
    return ": " + ", ".join(f"{share:.1%} {what}" for what, share in seen.items())
