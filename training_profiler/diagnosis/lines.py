"""Rules that name lines of the user's code, and the lines and calls that other findings name."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Final

from training_profiler.base.sections import BACKWARD_PASS, DATA_LOADING, FIRST_FETCH, FORWARD_PASS, OF_PASSES, WITHIN
from training_profiler.base.units import ms_text
from training_profiler.diagnosis.device import IDLE_AT_LEAST, host_runs_ahead, trains_on_cpu, waited_s
from training_profiler.diagnosis.finding import Action, Change, Evidence, Finding, Fix
from training_profiler.diagnosis.loader_fixes import slowest_loader
from training_profiler.diagnosis.places import (
    COPYING,
    COPYING_S,
    LINES_A_FUNCTION,
    activities,
    fix_of,
    lines_of,
    may_be_a_quarter,
    of_it,
    places_named,
    places_text,
    spent_text,
    with_a_quarter,
    without_losses,
)
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, found, has_enough_steps, row_of, section_of
from training_profiler.diagnosis.worker_plan import MOSTLY_WAITS, waiting_share
from training_profiler.model.lines import BETWEEN, NEARLY_ALL, WorkerLineStats
from training_profiler.model.loader_workers import LOCK, SHARED_LOCK, THREADS
from training_profiler.model.program import LOADER, OPTIMIZER
from training_profiler.model.snapshot import OTHER, LineStats, LoaderStats, Snapshot

IN_WORKERS: Final = "line_in_workers"  # of the evidence
BACKWARD_TAKES: Final = 3.0  # times the forward passes of modules, at most: more is of what is computed beside them
UNKNOWN_S: Final = "unknown_s"  # of the evidence: time without a cause, so whether it can be saved is not known
OWN_FROM: Final = 0.25  # of the lines' time: with less in the program's own, a library's loop is what takes it
NEEDED: Final = re.compile(r"\bopt\w*\.step$|\b(backward|zero_grad)$")  # no training leaves it out, whatever wraps it
SHOWN_FROM: Final = 0.05  # of the unattributed time: less is not worth a word
OWN_SECTIONS: Final = Fix(
    'Wrap the parts of the loop that have no section yet in profile_section("..."); if a library runs the loop, try '
    "without some of its callbacks",
    (Change.SECTIONS, Change.FEWER_CALLBACKS),
)
MORE_STEPS: Final = Fix("Train for longer, to learn which lines take it")
OF_TRAINER: Final = ("num_workers=", "pin_memory=", "persistent_workers=", "prefetch_factor=")
CHEAPER_LINES: Final = Fix(
    'Make these lines cheaper, or wrap them in profile_section("...") to measure them separately',
    (Change.CHEAPER_LINES,),
)
IN_A_LIBRARY: Final = Fix(
    "It lies in a library's own loop: try its cheaper options, as fewer callbacks, less logging or a looser tolerance",
    (Change.FEWER_CALLBACKS,),
    (Action("Try cheaper options of the library: callbacks, logging, a looser tolerance", (Change.FEWER_CALLBACKS,)),),
)


@RULES.rule("waits-for-device", 0.05, label="SYNC-BOUND", explains_idle=True)
def waits_for_device(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag calls such as ``.item()`` in which Python waits for the device, for over 5 % of step time.

    The saving is at most the device's idle time: a host that does not wait here for a busy device waits elsewhere. If
    it waits in some steps only, the device has work in the others.
    """
    step = snapshot.step
    # What makes a batch reads numbers of samples in memory, and each needs its own.
    waiting = [
        line
        for name, section_lines in snapshot.lines.items()
        if name == OTHER or (name not in (DATA_LOADING, FIRST_FETCH) and snapshot.sections[name].step_total_s > 0)
        for line in section_lines
        if line.waiting_share > 0
    ]
    waiting.sort(key=lambda line: -line.waiting_share)
    if step is None or not has_enough_steps(snapshot) or not step.total_s or not waiting or host_runs_ahead(snapshot):
        return None
    seconds = sum(line.waiting_share for line in waiting) * snapshot.wall_s
    idle_s = snapshot.idle_device_s()
    potential_saving_s = min(seconds, step.settled_s, seconds if idle_s is None else idle_s)
    share = seconds / step.total_s
    samples = sum(line.samples for line in waiting)
    if share <= threshold or samples < 10:  # fewer may be chance
        return None
    if potential_saving_s < max(MIN_SAVING_S, IDLE_AT_LEAST * seconds):
        return None
    line_texts = ", ".join(
        f"{line.place} {line.what} ({line.waits_text}, {line.waiting_share * snapshot.wall_s / seconds:.0%} of it)"
        for line in waiting[:3]
    )
    evidence: Evidence = {"share_of_step": share, "threshold": threshold, "seconds": seconds, "lines": line_texts}
    what = f"Python waits for the device for {share:.1%} of step time"
    why = ".item(), .cpu(), .numpy(), float() and conditions wait until the device has done all work queued before"
    if trains_on_cpu(snapshot):
        what = f"Reading numbers out of tensors takes {share:.1%} of step time"
        why = "each .item() reads one number, .tolist() all of them at once"
    fix = _reading_fix(waiting[0])
    return found(
        f"{what} ({ms_text(seconds / step.count)} per step): {line_texts}",
        evidence,
        Fix(f"{fix}: {why}", fix.changes),
        saving_s=potential_saving_s,
    )


def _reading_fix(line: LineStats) -> Fix:
    """Return how fewer numbers are read at a line; in a library it is not the user's own."""
    if not line.inside:
        return Fix("Keep the tensor (.detach()) and read it every n-th step", (Change.LESS_OFTEN, Change.DETACH))
    text = "Let the library that reads numbers there log every n-th step"
    if not line.inside.startswith("transformers/"):  # the trainer of Hugging Face
        return Fix(text, (Change.LESS_OUTPUT,))
    return Fix(
        f"{text}, and pass logging_nan_inf_filter=False to TrainingArguments, else it asks of each loss if it is "
        "finite",
        (Change.LESS_OUTPUT, Change.NAN_FILTER),
    )


def _saves(finding: Finding, _: Snapshot) -> tuple[float, float]:
    """Return the range: lines without a known activity may do what a step needs, other time may have a remedy, too."""
    if "spent_on" not in finding.evidence:
        return 0.0, 1.1
    return 0.5, max(1.1, float(finding.evidence["seconds"]) / finding.potential_saving_s)


@RULES.rule(
    "unexplained", 0.10, label="UNATTRIBUTED", says_where=True, claims=(OTHER,), saves=_saves, explains_idle=True
)
def unexplained(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag step time that no section covers, above 10 %; None below 10 steps.

    Time that ``waits-for-device`` reports does not count, nor do computing the loss and recording sections. Functional
    code has its forward pass there: as much time as the backward pass takes is none that could be saved, beside modules
    as much as that takes longer than theirs. Without a line it is not known whether anything can be.
    """
    other = snapshot.sections.get(OTHER)
    if other is None or snapshot.step is None or not has_enough_steps(snapshot) or not snapshot.step.settled_s:
        return None
    total_s = other.settled_total_s
    if host_runs_ahead(snapshot) or waits_for_device(snapshot, snapshot.thresholds) is not None:
        total_s -= waited_s(snapshot, OTHER)
    counts = {name: section.count for name, section in snapshot.sections.items()}
    has_forward = counts.get(BACKWARD_PASS, 0) > 0 and not counts.get(FORWARD_PASS)  # of what no module computed
    all_lines = snapshot.lines_of_steps(OTHER)
    its_lines = all_lines if has_forward else without_losses(all_lines)
    loss = sum(line.share for line in all_lines) - sum(line.share for line in its_lines)
    loss_s = loss / other.share * other.settled_total_s if other.share else 0.0
    if loss_s < SHOWN_FROM * total_s:  # the figure is the one of the bar
        loss, loss_s = 0.0, 0.0
    idle_s = snapshot.idle_device_s()  # waiting for a busy device makes no step longer
    total_s = total_s - loss_s if idle_s is None else min(total_s - loss_s, idle_s)
    share = total_s / snapshot.step.settled_s
    spans = sum(section.spans_in_steps for section in snapshot.sections.values()) / max(1, snapshot.step.count)
    recording_s = snapshot.health.span_s * spans * snapshot.step.settled_count  # at most
    total_s -= recording_s
    if total_s <= threshold * snapshot.step.settled_s or total_s < MIN_SAVING_S or not any(counts.values()):
        return None
    per_step_s = (total_s + recording_s) / snapshot.step.settled_count
    evidence: dict[str, float | int | str] = {"share_of_step": share, "threshold": threshold, "seconds": total_s}
    few = bool(snapshot.lines) and sum(line.samples for line in all_lines) < 10
    fix, recording = IN_A_LIBRARY if _has_trainer(snapshot) else MORE_STEPS if few else OWN_SECTIONS, ""
    if recording_s >= SHOWN_FROM * total_s:
        evidence["recording_s"] = recording_s
        recording = f", up to {ms_text(recording_s / snapshot.step.settled_count)} of it the profiler's own"
    beside = f", beside {loss_s / snapshot.step.settled_s:.1%} in which the loss is computed" if loss_s else ""
    message = f"{share:.1%} of step time is in no section (it takes {ms_text(per_step_s)} per step{recording}){beside}"
    of_run = max(0.0, other.share - loss)
    if spent := activities(of_run, its_lines, has_forward, has_optimizer=snapshot.program.optimizer is not None):
        evidence["spent_on"] = ", ".join(each.activity.text for each in spent)
        message += f", {spent_text(spent)}"
    named = places_named(lines_of(spent, its_lines), of_run)
    lines, own = places_text(named, of_run), sum(line.share for line in named if not line.inside)
    is_of_library = own < OWN_FROM * sum(line.share for line in named) or not own
    if lines:
        evidence["lines"], fix = lines, IN_A_LIBRARY if is_of_library else CHEAPER_LINES
        message += f": {lines}"
    message += "; it includes the forward pass, because no call of a module was seen" if has_forward else ""
    saving_s = max(0.0, total_s - _computed_beside_s(snapshot)) if has_forward or not spent else total_s
    if spent:
        fix, parts = fix_of(spent), sum(each.lines_part for each in spent)
        saving_s = min(saving_s, parts * (total_s + recording_s))
        if copying := sum(each.part for each in spent if each.activity is COPYING):
            evidence[COPYING_S] = copying * total_s
    else:  # a saving needs a cause
        if not (known_s := _known_s(named, of_run, total_s, is_of_library)):
            evidence[UNKNOWN_S] = saving_s * (saving_s > threshold * snapshot.step.settled_s)
        saving_s = min(saving_s, known_s)
    return None if 0 < saving_s < MIN_SAVING_S else found(message, evidence, fix, saving_s=saving_s)


def _has_trainer(snapshot: Snapshot) -> bool:
    return any(set(OF_PASSES).isdisjoint(phase.split(BETWEEN)) for phase in snapshot.phases)


def _known_s(named: Sequence[LineStats], of_run: float, total_s: float, is_of_library: bool) -> float:
    """Return the time of lines of the program, and of callbacks, which can be left out; 0 for a trifle of it."""
    known = sum(
        line.share - sum(share for name, share in line.called.items() if NEEDED.search(name))
        for line in named
        if line.phase or not (line.inside or is_of_library)
    )
    least = MIN_SAVING_S * of_run if is_of_library else OWN_FROM * sum(line.share for line in named) * total_s
    return known * total_s / of_run if of_run and known * total_s >= least else 0.0


def _computed_beside_s(snapshot: Snapshot) -> float:
    """Return how much longer backward passes take than those of modules: as long as what they compute gradients of."""
    backward_s, forward_s = (snapshot.total_of_step_s(name) or 0.0 for name in (BACKWARD_PASS, FORWARD_PASS))
    return max(0.0, backward_s - BACKWARD_TAKES * forward_s)


def with_lines(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding; one about a section with the lines that its time goes to."""
    name = section_of(finding)
    section = None if name is None else snapshot.sections.get(name)
    if name is None or section is None or "lines" in finding.evidence:
        return finding
    places, whole = _with_nested(name, snapshot)
    if not whole:
        return finding
    if row_of(finding).is_of_workers and (in_workers := _lines_in_workers(finding, snapshot)):
        return in_workers
    named = with_a_quarter(places_named(places, whole), places, whole)
    called = [f", called at {place.caller}" if place.caller else "" for place in named]
    texts = [f"{place.place} {place.what} ({of_it(place, whole)}{by})" for place, by in zip(named, called, strict=True)]
    if not texts:
        return finding
    evidence = {**finding.evidence, "lines": ", ".join(texts)}
    return replace(finding, message=f"{finding.message}; above all in {' and '.join(texts)}", evidence=evidence)


def _with_nested(name: str, snapshot: Snapshot) -> tuple[Sequence[LineStats], float]:
    """Return a section's lines and its share, with those of what has its own name there: validation's passes."""
    names = [each for each in snapshot.sections if each == name or each.startswith(name + WITHIN)]
    whole = sum(snapshot.sections[each].share for each in names)
    if len(names) == 1:
        return snapshot.lines_of_steps(name), whole
    lines = tuple(line for each in names for line in snapshot.lines.get(each, ()))
    return tuple(sorted(lines, key=lambda line: -line.share)), whole


def _lines_in_workers(finding: Finding, snapshot: Snapshot) -> Finding | None:
    """Return the finding with the lines in the workers of its loader; None where it has none."""
    loader = _loader(finding, snapshot)
    if loader is None or loader.workers is None or not loader.workers.lines:
        return None
    workers, texts = loader.workers, []
    functions = defaultdict[tuple[str, str, str], list[WorkerLineStats]](list)
    for line in workers.lines:
        functions[line.file, line.function, line.inside.rpartition(" ")[2]].append(line)
    sums = [(sum(line.share for line in lines), lines) for lines in functions.values()]
    whole = sorted(sums, key=itemgetter(0), reverse=True)
    for share, lines in [each for each in whole if may_be_a_quarter(each[0], workers.samples)] or whole[:1]:
        # It waits there if all that they compute, even in this function, leaves most of its time over.
        line, waits = lines[0], share - (1 - waiting_share(workers)) >= MOSTLY_WAITS * share
        is_lock = line.phase in (LOCK, SHARED_LOCK, THREADS)
        text = f"{line.place} {line.what} ({share:.0%} of their work: {line.phase}"
        if line.share < NEARLY_ALL * share:
            text += f", {', '.join(f'line {each.line} {each.share:.0%}' for each in lines[:LINES_A_FUNCTION])}"
        of_cpu = f"; it waits there, a batch uses {ms_text(workers.cpu_avg_s)} of CPU" if waits and not is_lock else ""
        texts.append(f"{text}{of_cpu})")
    evidence = {**finding.evidence, "lines": ", ".join(texts), IN_WORKERS: texts[0]}
    number = loader.num_workers or 0
    who = "the workers" if not number else "its only worker" if number == 1 else f"its {number} workers"
    message = f"{finding.message}; in {who} above all {' and '.join(texts)}"
    return replace(finding, message=message, evidence=evidence)


def with_call(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding; its fix ends with the call that has to change, if exactly one call is meant.

    Where a trainer makes the loader, its actions have the arguments of the trainer.
    """
    row, facts = row_of(finding), snapshot.program.optimizer
    kind = row.call(finding) if callable(row.call) else row.call
    calls = [call for call in snapshot.program.calls if call.kind == kind]
    loader = _loader(finding, snapshot) if kind == LOADER else None
    if loader is not None and loader.made_at:
        calls = [call for call in calls if call.site.place == loader.made_at]
    if kind == LOADER and snapshot.has_hugging_face_trainer and all(call.site.inside for call in calls):
        finding = replace(finding, fix=Fix(finding.fix, finding.changes, tuple(map(_of_trainer, finding.actions))))
    if kind == OPTIMIZER:  # that with the most parameters, as far as its class shows
        calls = [call for call in calls if facts is not None and call.function == facts.name]
    if len(calls) != 1 or not finding.fix:
        return finding
    text = calls[0].text
    fix = Fix(f"{finding.fix} ({text})", finding.changes, finding.actions)
    return replace(finding, fix=fix, evidence={**finding.evidence, "call": text})


def _of_trainer(action: Action) -> Action:
    """Return what has the effect of an argument of ``DataLoader`` where Hugging Face's trainer calls that."""
    call, _, arguments = action.text.removesuffix(")").partition("(..., ")
    named = [each for each in arguments.split(", ") if each.startswith(OF_TRAINER)]
    text = action.text.replace(" in worker_init_fn", " in the data set's __getitem__")  # which it has an own one for
    if call == "DataLoader" and arguments and named == arguments.split(", "):
        text = f"TrainingArguments(..., {', '.join(f'dataloader_{each}' for each in named)})"
    return action._replace(text=text)


def _loader(finding: Finding, snapshot: Snapshot) -> LoaderStats | None:
    named = [loader for loader in snapshot.loaders if loader.name == finding.evidence.get("loader")]
    return named[0] if named else slowest_loader(snapshot)
