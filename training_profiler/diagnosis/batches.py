"""Rules about batches so small that more samples would take hardly longer, and about those that are mostly padding."""

from typing import Any, Final

from training_profiler.base.sections import (
    BACKWARD_PASS,
    DATA_LOADING,
    FORWARD_PASS,
    OPTIMIZER_STEP,
    VALIDATION_EPOCH,
    WITHIN,
)
from training_profiler.base.units import ms_text
from training_profiler.diagnosis.finding import Action, Change, Finding, Fix
from training_profiler.diagnosis.program import NEARLY_EMPTY, is_on_cpu
from training_profiler.diagnosis.registry import RULES, Saving, cost_of_run, cost_of_steps, has_enough_steps, per_step
from training_profiler.model.program import IMAGE_ENDS, LOADER, RowFacts
from training_profiler.model.snapshot import LoaderStats, Snapshot

TINY: Final = 4.0  # samples
LARGER: Final = 8.0  # times, with which it is compared
MANY_SLICES: Final = 4.0  # a step; fewer may be parts that fit in memory
CLOSE: Final = 0.25


@RULES.rule(
    "tiny-batches", 0.25, claims=(FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP), saves=(0.5, 1.1)
)  # of step time
def tiny_batches(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training on the CPU with at most 4 samples, or parts of a batch, at once, whose operators hardly compute.

    The shortest passes count: others may have been delayed. None where operators were not counted, or where each has
    much to do, as with one long sequence or one large graph.
    """
    parts, cpu, step = _of_slices(snapshot) or _of_batches(snapshot), snapshot.program.cpu, snapshot.step
    if parts is None or cpu is None or step is None:
        return None
    evidence, times, update_s, text, effect, fix = parts
    # Of a step's forward and backward passes if none is delayed.
    passes = [(snapshot.sections.get(name), per_step(snapshot, name)) for name in (FORWARD_PASS, BACKWARD_PASS)]
    shortest = [each.min_s * count for each, count in passes if each is not None and each.min_s]
    operators, shortest_s = snapshot.program.operators, sum(shortest)
    if not operators or len(shortest) < len(passes) or not shortest_s:
        return None
    if shortest_s > NEARLY_EMPTY * cpu.operator_s * operators:
        return None
    # Longer passes than the shortest may have more to compute: more samples would take as much longer.
    spent_s = min(snapshot.computing_s(), shortest_s * step.settled_count) + update_s
    cost = cost_of_steps(snapshot, threshold, spent_s * (1 - 1 / min(LARGER, times)))
    operator_s = shortest_s / operators
    lines = evidence.pop("lines")
    return cost.finding(
        f"{text}: an operator takes {operator_s * 1e6:.1f} us, and starting one {cpu.operator_s * 1e6:.1f} us, so "
        f"{effect}",
        fix,
        **evidence,
        seconds_per_operator=operator_s,
        least_seconds_per_operator=cpu.operator_s,
        lines=lines,
    )


# Evidence, how many times the samples could go through the model at once, the time of updates if fewer of these are
# part of the fix, what is too small, what as many samples would take, and the fix.
_Parts = tuple[dict[str, Any], float, float, str, str, Fix]


def _of_slices(snapshot: Snapshot) -> _Parts | None:
    """Return a batch that goes through the model in slices; None without."""
    facts = snapshot.program.slices
    if facts is None or facts.steps < 5 or facts.slices < MANY_SLICES * facts.steps:
        return None
    slices, times = facts.slices / facts.steps, facts.of_rows / facts.rows
    at = f" ({facts.place})" if facts.place else ""
    return (
        {"samples": facts.rows, "slices": slices, "lines": facts.place},
        times,
        0.0,
        f"A batch of {facts.of_rows} goes through the model in {slices:.3g} calls of {_samples(facts.rows)} each{at}",
        f"one call with {min(LARGER, times):.3g} times the samples would take about as long",
        Fix(
            "Compute a whole batch or sequence at once instead of looping over it in Python: torch.func.vmap where "
            "each sample needs a gradient of its own",
            (Change.WHOLE_TENSORS,),
        ),
    )


def _of_batches(snapshot: Snapshot) -> _Parts | None:
    """Return small batches; None for others, and where several loaders make them."""
    loaders = [loader for loader in snapshot.loaders if loader.phase == "train"]
    loader = max(loaders, key=lambda loader: loader.batches, default=None)
    least = max(10, 0.9 * sum(each.batches for each in loaders))  # one loader makes nearly all batches
    if loader is None or loader.batches < least or not loader.samples or loader.samples > TINY * loader.batches:
        return None
    samples = loader.samples / loader.batches
    return (
        {"samples": samples, "slices": 1.0, "lines": loader.made_at},
        LARGER,
        snapshot.total_of_step_s(OPTIMIZER_STEP) or 0.0,
        f"Batches of {_samples(samples)}" + (f" ({loader.made_at})" if loader.made_at else ""),
        f"a step with {LARGER:.0f} times the samples would take about as long",
        Fix(
            "Use larger batches if the training allows them: the same samples then make fewer updates, usually with "
            "another learning rate",
            (Change.OTHER_BATCHES,),
        ),
    )


def _samples(count: float) -> str:
    return "1 sample" if count == 1 else f"{count:.2g} samples"


@RULES.rule(
    "validation-tiny-batches",
    threshold=0.05,  # of the run
    saving=Saving.RUN,
    label="TINY VALIDATION BATCHES",
    claims=(VALIDATION_EPOCH,),
    saves=(0.5, 1.1),
    changes=(Change.LARGER_EVALUATION,),
)
def validation_tiny_batches(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag validations whose forward passes get at most 4 samples, where those of the training get many times that.

    The saving compares a sample with one of the training. None where samples are larger than there, and without a
    loader: then it may be one sample that is made step by step, as a text or an image.
    """
    facts, whole = snapshot.program.rows, snapshot.sections.get(VALIDATION_EPOCH)
    loaders = [loader for loader in snapshot.loaders if loader.phase == "val" and loader.samples]
    if facts is None or whole is None or not loaders or not has_enough_steps(snapshot):
        return None
    batches, samples = sum(loader.batches for loader in loaders), sum(loader.samples or 0 for loader in loaders)
    passes = snapshot.sections.get(f"{VALIDATION_EPOCH}{WITHIN}{FORWARD_PASS}")
    rows = 0.0 if passes is None else passes.count * facts.rows
    training_s = _training_s(snapshot, facts)
    if passes is None or not rows or training_s is None or batches < 2 * whole.count or not _is_one_by_one(facts):
        return None
    now_s = passes.total_s / rows
    if abs(facts.calls / facts.batches * batches / passes.count - 1) > CLOSE or training_s > now_s / 2:
        return None
    # A pass with many rows takes at least as long as one with few.
    passes_s = rows * (training_s + now_s * facts.rows / facts.training_rows)
    saving_s = max(0.0, passes.total_s - passes_s) + whole.self_s * (1 - facts.rows / facts.training_rows)
    times, many, loader = rows / samples, f"{facts.training_rows:.0f}", ""
    again, fix_again = "", ""
    if samples <= 4 * batches:
        saving_s += _saved_loading_s(snapshot, loaders)
        most = max(loaders, key=lambda loader: loader.batches)
        loader = f": batch_size={many} for its DataLoader{f' ({most.made_at})' if most.made_at else ''}"
    if times > 1.5:  # such as one for each token
        again = f", {times:.3g} times for each"
        fix_again = "; go through all samples of a batch together, until the last of them has ended"
    at_once = "1 sample" if round(facts.rows, 1) == 1 else f"{facts.rows:.2g} samples"
    return cost_of_run(snapshot, threshold, saving_s).finding(
        f"Validation calls the model on {at_once} at a time{again}: a forward pass takes {ms_text(now_s)} a "
        f"sample, and {ms_text(training_s)} in the training, on {many}",
        f"Compute as many samples at once in validation as in the training{loader}{fix_again}; pad samples of other "
        "lengths",
        rows=facts.rows,
        training_rows=facts.training_rows,
        seconds_per_sample=now_s,
        training_seconds_per_sample=training_s,
        calls_per_sample=times,
    )


def _is_one_by_one(facts: RowFacts) -> bool:
    return (
        facts.calls >= 32
        and facts.batches > 0
        and facts.few >= 0.9 * facts.calls
        and facts.few_batches >= 0.8 * facts.batches  # else it may be one sample that is made, as a text
        and facts.most * facts.batches <= 4 * facts.calls  # evenly: 4 times the mean, at most, after one batch
        and facts.training_rows >= 8 * facts.rows
        and facts.elements <= 1.5 * facts.training_elements
    )


def _training_s(snapshot: Snapshot, facts: RowFacts) -> float | None:
    """Return the time of a forward pass of the training for each sample; None if its batches are not known."""
    step, total_s = snapshot.step, snapshot.total_of_step_s(FORWARD_PASS)
    loaders = [loader for loader in snapshot.loaders if loader.phase == "train" and loader.samples]
    batches = sum(loader.batches for loader in loaders)
    if step is None or not step.settled_count or not total_s or not batches:
        return None
    loaded = sum(loader.samples or 0 for loader in loaders) / batches
    if abs(facts.training_rows / loaded - 1) > CLOSE:  # the first dimension may be another one
        return None
    return total_s / step.settled_count / (max(1.0, per_step(snapshot, FORWARD_PASS)) * facts.training_rows)


def _saved_loading_s(snapshot: Snapshot, loaders: list[LoaderStats]) -> float:
    """Return what loading as large batches as the training has would save, without workers."""
    loading = snapshot.sections.get(f"{VALIDATION_EPOCH}{WITHIN}{DATA_LOADING}")
    training = [loader for loader in snapshot.loaders if loader.phase == "train" and loader.samples]
    if loading is None or any(loader.num_workers != 0 for loader in (*loaders, *training)):
        return 0.0
    waited_s, samples = sum(loader.wait_s for loader in training), sum(loader.samples or 0 for loader in training)
    loaded = sum(loader.samples or 0 for loader in loaders)
    return max(0.0, loading.total_s - waited_s / samples * loaded)


@RULES.rule(
    "padding",
    threshold=0.10,  # of step time
    claims=(FORWARD_PASS, BACKWARD_PASS),
    saves=(0.6, 1.1),
    call=LOADER,
)
def padding(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag sequences whose padding takes over 10 % of step time, as far as shorter rows would save it.

    What operators of fixed size, starting operators and an idle device take stays as it is. None where nothing says
    which positions are padding, and where operators cannot be followed, as in compiled code.
    """
    facts, program, step = snapshot.program.padding, snapshot.program, snapshot.step
    if facts is None or step is None or not facts.padding:
        return None
    fixed_s = snapshot.idle_device_s() or 0.0
    if is_on_cpu(program) and program.cpu is not None:
        fixed_s = program.cpu.operator_s * program.operators * step.settled_count
    computing_s = facts.part * max(0.0, snapshot.computing_s() - fixed_s)
    is_whole = facts.to_longest >= 0.5 * facts.grouped  # rows are as long as the longest of all
    is_wider = facts.to_longest >= 0.1 * facts.grouped  # than the longest of their batch: the data set pads
    is_of_trainer = facts.package == "transformers" or snapshot.has_hugging_face_trainer
    has_loader = bool(snapshot.loaders) or program.places_of(LOADER) != ""
    removed, change = (facts.to_longest, Change.LESS_PADDING) if is_whole else (facts.grouped, Change.OTHER_ORDER)
    cost = cost_of_steps(snapshot, threshold, computing_s * facts.padding, saved=removed / facts.padding)
    if facts.what == IMAGE_ENDS:
        alike = "" if is_whole else "images of similar size together, and "
        text, change = f"DataLoader(..., collate_fn=...): {alike}pad to the largest of the batch", Change.OTHER_BATCHES
    elif is_whole and is_of_trainer:
        text = "Trainer(..., data_collator=DataCollatorWithPadding(tokenizer)), and tokenize without padding"
    elif is_whole:
        text = "DataLoader(..., collate_fn=...): pad to the longest of the batch"
        text = text if has_loader else "cut each batch to its longest sequence: ids[:, :longest]"
    elif is_of_trainer:
        text = 'TrainingArguments(..., train_sampling_strategy="group_by_length") (before 5: group_by_length=True)'
        text += ", and tokenize without padding" if is_wider else ""
    else:
        text = "DataLoader(..., batch_sampler=...): sequences of similar length together"
        text += ", and a collate_fn that pads to the longest of the batch" if is_wider else ""
    rest = "or pack several sequences into one row"
    if facts.what == IMAGE_ENDS:
        rest = f"batches of images of similar size leave out {facts.grouped:.0%}"
    elif is_whole:
        rest = f"batches of similar length (group_by_length) or packing leave out {facts.grouped:.0%} of positions"
    return cost.finding(
        f"{facts.padding:.0%} of the positions are padding ({facts.what}; worst batch {facts.worst:.0%}): "
        f"computing them takes {cost.per_step} per step, {removed:.0%} of all positions can go",
        Fix(f"{text}; {rest}", (change,), (Action(text, (change,)),)),
        padding=facts.padding,
        worst_batch=facts.worst,
        to_longest=facts.to_longest,
        grouped=facts.grouped,
        part_of_forward=facts.part,
        lines=facts.place,
    )
