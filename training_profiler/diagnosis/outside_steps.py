"""Rules about time outside of training steps: before the first one, and between them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from training_profiler.base.framework_frames import CALLBACK
from training_profiler.base.sections import (
    CHECKPOINTING,
    DATA_LOADING,
    FIRST_FETCH,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    WITHIN,
)
from training_profiler.base.startup_frames import DATA_SET, IMPORT, IMPORTS, MODEL, REST, UNUSED_IMPORT
from training_profiler.base.units import duration_text, time_text
from training_profiler.diagnosis.finding import Action, Change, Finding, Fix, joined
from training_profiler.diagnosis.places import activities, places_named, places_text, spent_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, Saving, cost_of_run, found, has_enough_steps
from training_profiler.model.snapshot import OTHER, OUTSIDE_STEPS, PROFILER, LineStats, Snapshot

# Imports, compiling and the start of workers, devices and process groups do not get shorter by keeping a result.
AS_LONG: Final = 10  # times: epochs after the change, or between two checkpoints
PREPARED: Final = (DATA_SET, MODEL, REST)
DO_ONCE: Final = (
    "Make these lines cheaper, above all by doing once what is the same each time, or wrap them in "
    'profile_section("...") to measure them separately'
)
SAVED_OF_IMPORTS: Final = 0.8  # measured: the rest is imported by others then
LEAST_START_S: Final = {DATA_SET: 3}
INSTEAD: Final = {DATA_SET: "; or do it for each sample in __getitem__, in workers of its DataLoader"}
PURPOSES: Final = {DATA_SET: " on its data set", MODEL: " on its model"}


@RULES.rule(
    "slow-startup", 0.10, saving=Saving.RUN, label="SLOW START", changes=(Change.KEPT_RESULTS,), is_before_training=True
)  # share of the run
def slow_startup(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag preparations before the first step that take a tenth of the run: over 10 s, or 3 s on a loader's data set.

    Only lines of the program count, up to three of one kind of preparation.
    """
    startup = snapshot.startup
    if startup is None or not startup.has_steps:
        return None
    classes = {loader.data_set for loader in snapshot.loaders} - {""}
    prepared = defaultdict[str, list[tuple[str, float]]](list)
    for part in startup.parts:
        for line, seconds in part.lines if part.name in PREPARED else ():
            is_of_data = line.partition(" ")[2].partition(".")[0] in classes
            prepared[DATA_SET if is_of_data else part.name].append((line, seconds))
    name, lines = max(prepared.items(), key=lambda each: sum(line[1] for line in each[1]), default=("", []))
    cost = cost_of_run(snapshot, threshold, sum(line[1] for line in lines))
    if cost.seconds <= LEAST_START_S.get(name, 10):  # a trial of a few steps has it, too
        return None
    text = ", ".join(line for line, _ in lines)
    purpose, fix = (
        PURPOSES.get(name, ""),
        f"If each run repeats it, keep its result in a file and load that{INSTEAD.get(name, '')}",
    )
    in_steps = {line.place for section in (DATA_LOADING, OTHER) for line in snapshot.lines_of_steps(section)}
    if sum(seconds for line, seconds in lines if line.partition(" ")[0] in in_steps) > 0.5 * cost.seconds:
        purpose = " where its steps take their data from"
        fix = Fix(
            "If a resume skips what it was trained on, let what makes it begin there, by an argument; else keep the "
            "result in a file",
            (Change.SKIPPED_BY_INDEX, Change.KEPT_RESULTS),
        )
    return cost.finding(
        f"Before its first step the program spends {duration_text(cost.seconds)}{purpose}, {cost.share:.0%} of the run "
        f"so far: {text}",
        fix,
        seconds=cost.seconds,
        lines=text,
        part=name,
    )


@RULES.rule(
    "unused-imports",
    threshold=0.10,  # share of the run
    saving=Saving.RUN,
    label="SLOW START",
    saves=(0.5, 1.2),
    changes=(Change.CHEAPER_LINES,),
    is_before_training=True,
)
def unused_imports(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag imports of the script that take a second each, a tenth of the run together, and that it never names.

    None of a package that ran in a sample of the run.
    """
    startup = snapshot.startup
    if startup is None or not has_enough_steps(snapshot):
        return None
    imports = [
        line for part in startup.parts if part.name == IMPORTS for line in part.lines if UNUSED_IMPORT in line[0]
    ]
    imports = [(line.replace(UNUSED_IMPORT, IMPORT), seconds) for line, seconds in imports if seconds > 1]
    whole_s = sum(seconds for _, seconds in imports)
    cost = cost_of_run(snapshot, threshold, whole_s, saving_s=SAVED_OF_IMPORTS * whole_s)
    text = ", ".join(f"{line} ({duration_text(seconds)})" for line, seconds in imports)
    return cost.finding(
        f"Before its first step the program spends {duration_text(cost.seconds)}, {cost.share:.0%} of the run so far, "
        f"on imports that nothing in it names: {text}",
        "Leave these imports out, unless something needs what they do as they run, such as registering its classes",
        seconds=cost.seconds,
        lines=text,
    )


@RULES.rule(
    "fetched-before-training",
    threshold=0.10,  # share of the run
    saving=Saving.RUN,
    label="BEFORE TRAINING",
    changes=(Change.KEPT_RESULTS,),
    is_before_training=True,
)
def fetched_before_training(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag batches fetched before the first step that nothing was computed of: over 10 % of the run.

    A resumed training skips those that it was trained on before, or something goes through the data first.
    """
    facts = snapshot.program.fetched_before
    if facts is None or not has_enough_steps(snapshot):
        return None
    cost, at = cost_of_run(snapshot, threshold, facts.seconds), f", at {facts.place}" if facts.place else ""
    does = f"goes through {facts.batches} batches of a loader without training"
    fix = "If it computes the same in each run, such as means of the data, keep the result in a file and load that"
    if facts.is_skipped:
        does = f"takes {facts.batches} batches from its loader, and trains on none of them"
        fix = _skipping(snapshot, facts.batches)
    return cost.finding(
        f"Before its first step the program {does}: {duration_text(facts.seconds)}, {cost.share:.0%} of the run{at}",
        fix,
        seconds=facts.seconds,
        batches=facts.batches,
        lines=facts.place,
    )


@RULES.rule(
    "stream-begins-late",
    threshold=0.10,  # of the training time
    saving=Saving.RUN,
    claims=(FIRST_FETCH,),
    saves=(0.5, 1.1),
    changes=(Change.SKIPPED_BY_INDEX,),
)
def stream_begins_late(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a stream that makes samples for over 3 s before it yields the first one, in its first pass alone.

    The line that makes the other samples, or the worker, has the time. A buffer that fills in each pass is none.
    """
    first, fetches = snapshot.sections.get(FIRST_FETCH), snapshot.sections.get(DATA_LOADING)
    training = [loader for loader in snapshot.loaders if loader.phase == "train"]
    if first is None or fetches is None or len(training) != 1 or training[0].is_map_style is not False:
        return None
    loader, seconds, median_s = training[0], first.max_s or 0.0, fetches.p50_s or 0.0
    lines, others = (places_named(snapshot.lines.get(each.name, ()), each.share)[:1] for each in (first, fetches))
    of_worker = loader.workers.lines[:1] if loader.workers is not None else ()
    if loader.workers is not None and of_worker and loader.workers.batch_max_s >= 0.8 * seconds:
        text = f"a worker makes it so long, as where a resume skips samples: {of_worker[0].place} {of_worker[0].what}"
    elif lines and others and (lines[0].file, lines[0].function) == (others[0].file, others[0].function):
        text = f"it makes samples that it does not yield, as where a resume skips: {places_text(lines, first.share)}"
    else:
        return None
    share = seconds / snapshot.training_s if snapshot.training_s else 0.0
    if (
        not has_enough_steps(snapshot)
        or share <= threshold
        or seconds <= 3
        or first.total_s > 1.2 * seconds
        or not median_s
    ):
        return None
    return found(
        f"The first batch of {loader.name} takes {duration_text(seconds)}, as long as {seconds / median_s:,.0f} "
        f"others; {text}",
        {"share_of_training": share, "threshold": threshold, "seconds": seconds, "lines": text.partition(": ")[2]},
        _skipping(snapshot, 0),
        saving_s=seconds - median_s,
    )


def _skipping(snapshot: Snapshot, batches: int) -> Fix:
    """Return how a resumed training begins where the one before has ended, by what fetches its batches."""
    text = f"accelerate.skip_first_batches(loader, {batches})"
    if not all(loader.is_map_style for loader in snapshot.loaders if loader.phase == "train"):
        text = "let the data set begin there: by an argument, or state_dict() with torchdata's StatefulDataLoader"
    actions = [Action(text, (Change.SKIPPED_BY_INDEX,))]
    if snapshot.has_hugging_face_trainer:
        actions.insert(0, Action("TrainingArguments(..., ignore_data_skip=True)", (Change.OTHER_ORDER,)))
    return _either(actions, "If these were trained on before a resume: ")


def _either(actions: Sequence[Action], when: str = "") -> Fix:
    text = when + " or ".join(action.text for action in actions)
    return Fix(text, tuple(action.changes[0] for action in actions), tuple(actions))


@RULES.rule(
    "short-epochs",
    threshold=0.15,  # of the training time
    saving=Saving.RUN,
    claims=(OUTSIDE_STEPS, CHECKPOINTING),
    saves=(0.8, 2.0),
)
def short_epochs(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag epochs with less than a second of steps, where ending and beginning them takes 15 % of the training time.

    That is a trainer's time between steps in no section, and saving. Validation has its own rule, and what the program
    does itself between its epochs may be different each time.
    """
    step, outside, saves = snapshot.step, snapshot.sections.get(OUTSIDE_STEPS), snapshot.sections.get(CHECKPOINTING)
    epochs = max(len(snapshot.epochs), snapshot.program.epochs)
    if step is None or outside is None or not has_enough_steps(snapshot):
        return None
    if epochs < 10 or step.total_s > 1.0 * epochs:  # s; between longer ones their number does not matter
        return None
    lines = snapshot.settled_lines.get(OUTSIDE_STEPS, ())
    seen_s = sum(line.share for line in lines if line.inside) * snapshot.wall_s
    saves_s = 0.0 if saves is None else max(0.0, saves.training_s - saves.step_self_s)
    between_s = min(seen_s, outside.training_s)
    seconds, phases = between_s + saves_s, snapshot.phases
    share, saved_s = seconds / snapshot.training_s, seconds * (1 - 1 / AS_LONG)
    if share <= threshold or saved_s < MIN_SAVING_S:
        return None
    in_phases_s = min(between_s, sum(part for phase, part in phases.items() if "saving" in phase) * snapshot.wall_s)
    is_hugging_face = snapshot.has_hugging_face_trainer
    longer = f"RandomSampler(data, num_samples={AS_LONG} * len(data))"
    longer = f"train_dataset=ConcatDataset({AS_LONG} * [data])" if is_hugging_face else longer
    actions = [Action(f"make epochs {AS_LONG} times as long: {longer}", (Change.OTHER_ORDER,))]
    if (part := (saves_s + in_phases_s) / seconds) >= 0.25:
        text = f"save each {AS_LONG}th epoch"
        if any("ModelCheckpoint" in phase for phase in phases):
            text = f"ModelCheckpoint(every_n_epochs={AS_LONG})"
        elif is_hugging_face:
            steps = round(AS_LONG * step.count / epochs)
            text = f'TrainingArguments(..., save_strategy="steps", save_steps={steps})'
        actions.insert(0, Action(text, (Change.LESS_OUTPUT,), part))
    parts = defaultdict[str, float](float, {CHECKPOINTING: saves_s})
    for line in lines:
        parts[line.phase] += line.share * snapshot.wall_s if line.inside and line.phase else 0.0
    ordered = sorted(parts.items(), key=lambda part: -part[1])[:3]
    named = ", ".join(f"{name} {min(1.0, its_s / seconds):.0%}" for name, its_s in ordered if its_s >= 0.1 * seconds)
    mostly = f": {named}" if named else ""
    return found(
        f"{share:.0%} of the training time lies between its steps; {epochs} epochs of {step.count / epochs:.3g} steps "
        f"take {time_text(seconds / epochs)} each to end and begin again{mostly}",
        {"share_of_training": share, "threshold": threshold, "seconds": seconds, "epochs": epochs},
        _either(actions),
        saving_s=saved_s,
    )


@RULES.rule(
    "outside-steps",
    threshold=0.10,  # of the training time
    saving=Saving.RUN,
    label="BETWEEN STEPS",
    saves=lambda finding, _: (0.0, 1.0) if Change.CHEAPER_LINES in finding.changes else (0.5, 1.1),
    changes=(Change.CHEAPER_LINES,),
)
def mostly_outside(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag time between steps in no section, by what it is spent on and where: over 10 % of the training time.

    Forward passes between steps count where both take over 40 % and 10 s, as of an agent that acts. Time in no line of
    the program is left out, such as that of a notebook between two cells. None where no lines are known.
    """
    step, outside = snapshot.step, snapshot.sections.get(OUTSIDE_STEPS)
    if step is None or step.before_s is None or outside is None:
        return None
    if not snapshot.training_s or not has_enough_steps(snapshot):
        return None
    passes: dict[str, float] = {
        name: section.self_s - section.step_self_s - section.after_s
        for name in (FORWARD_PASS, FORWARD_WITHOUT_GRAD)  # what has a name of its own there has rules of its own
        if (section := snapshot.sections.get(name)) is not None
    }
    lines = list(snapshot.settled_lines.get(OUTSIDE_STEPS, ()))
    if short_epochs(snapshot, snapshot.thresholds) is not None:  # it has those of trainers
        lines = [line for line in lines if not line.inside]
    seen_s = sum(line.share for line in lines) * snapshot.wall_s
    rest_s, passes_s = min(seen_s, max(0.0, outside.self_s - step.before_s - outside.after_s)), sum(passes.values())
    share = (rest_s + passes_s) / snapshot.training_s
    is_most = share > 0.40 and rest_s + passes_s > 10
    if not is_most:
        passes, passes_s, share = {}, 0.0, rest_s / snapshot.training_s
    for name, seconds in passes.items():
        if seconds >= 0.8 * snapshot.sections[name].self_s:  # outside steps: its lines are those of that time
            lines += snapshot.lines.get(name, ())
    if share <= threshold or sum(line.samples for line in lines) < 30:
        return None
    seconds, lines = rest_s + passes_s, sorted(lines, key=lambda line: -line.share)
    text = places_text(places_named(lines, seconds / snapshot.wall_s), seconds / snapshot.wall_s)
    if not text:
        return None
    spent, fix, part = _avoided(snapshot, lines, seconds / snapshot.wall_s)
    if (saving_s := seconds * (1.0 if is_most and not spent else part)) < MIN_SAVING_S:
        return None
    return found(
        f"{share:.1%} of the training time lies between its steps{_of(passes_s, rest_s, snapshot.training_s)}"
        f"{spent}: {text}{_beside(snapshot, (*passes, OUTSIDE_STEPS, PROFILER))}",
        {"share_of_training": share, "threshold": threshold, "seconds": seconds, "lines": text},
        fix,
        saving_s=saving_s,
    )


def _avoided(snapshot: Snapshot, lines: Sequence[LineStats], of: float) -> tuple[str, str, float]:
    """Return what the share ``of`` of the run is spent on, what to do about it, and the part that this saves."""
    callbacks = [line for line in lines if line.phase.startswith(CALLBACK) and "epoch" in line.phase]
    in_callbacks = sum(line.share for line in callbacks)
    spent, rarer_part = activities(of, lines, has_forward=True), 1 - 1 / AS_LONG
    text = f", {spent_text(spent)}" if spent else ""
    if in_callbacks > 0.5 * sum(line.share for line in lines):
        hook = callbacks[0].phase.removeprefix(f"{CALLBACK} ")  # of the line that takes the most
        fix = Fix(f"In {hook}, do it in each {AS_LONG}th epoch", (Change.LESS_OFTEN,))
        return text, fix, min(1.0, in_callbacks / of) * rarer_part
    epochs, steps = max(len(snapshot.epochs), snapshot.program.epochs), snapshot.step.count if snapshot.step else 0
    has_ends = AS_LONG <= epochs < steps
    if not spent:  # as of other lines that are in no section
        rarer = f"; where they only report, run them in each {AS_LONG}th epoch" if has_ends else ""
        return "", Fix(DO_ONCE + rarer, (Change.CHEAPER_LINES,)), 0.5
    fixes, part = [each.activity.fix for each in spent], min(1.0, sum(each.lines_part for each in spent))
    if has_ends and {Change.LESS_OFTEN, Change.LESS_OUTPUT} & set(fixes[0].changes):
        fix, part = (
            Fix(f"Do it in each {AS_LONG}th epoch, or once at the end", (Change.LESS_OUTPUT,)),
            part * rarer_part,
        )
        return text, fix, part
    return text, joined(fixes), part


def _beside(snapshot: Snapshot, known: Iterable[str]) -> str:
    """Return the other sections with 2 % of the training time between steps, largest first."""
    parts = defaultdict[str, float](float)
    for section in snapshot.sections.values():
        name = section.name.partition(WITHIN)[0]
        if name not in known:
            parts[name] += max(0.0, section.training_s - section.step_self_s) / snapshot.training_s
    ordered = sorted(parts.items(), key=lambda part: -part[1])[:4]
    named = [f"{name} {part:.0%}" for name, part in ordered if part >= 0.02]
    return f"; between steps are also {', '.join(named)}" if named else ""


def _of(passes_s: float, rest_s: float, of_s: float) -> str:
    parts = {"in forward passes": passes_s, "in no section": rest_s}
    seen = {what: f"{seconds / of_s:.1%} {what}" for what, seconds in parts.items() if seconds >= 0.01 * of_s}
    return f", {next(iter(seen))}" if len(seen) == 1 else f" ({', '.join(seen.values())})"
