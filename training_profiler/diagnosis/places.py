"""Places in the user's code as findings name them, what their lines call, and what time in no section is spent on."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from training_profiler.base.sections import FORWARD_PASS
from training_profiler.diagnosis.finding import Change, Fix, action_of, joined
from training_profiler.model.lines import PARAMETERS, READ_BY_FUNCTION, hottest_functions, hottest_places
from training_profiler.model.snapshot import CHECKS, HOT_PLACES, HOT_SHARE, PYTHON, LineStats, Snapshot

EACH_FROM: Final = 0.1


def named(names: str) -> frozenset[str]:
    """Return the names that stand in one text."""
    return frozenset(names.split())


class Activity(NamedTuple):
    """A row of the table: functions that cost time and train nothing."""

    text: str  # "most of it spent ..."
    functions: frozenset[str]  # a name with a dot is meant with what stands before it: ``log`` may be a logarithm
    fix: Fix
    of: tuple[str, ...]  # all functions of these objects and modules
    exactly: frozenset[str]  # functions, and no methods of these names

    def matches(self, name: str) -> bool:
        """Return whether a function of this name is one of these."""
        plain_name = name.rpartition(".")[2]
        return name in self.exactly or bool(self.functions & {name, plain_name}) or name.startswith(self.of)


def _activity(
    text: str,
    functions: str,
    advice: str,
    *changes: Change,
    of: tuple[str, ...] = (),
    exactly: frozenset[str] = frozenset(),
) -> Activity:
    return Activity(text, named(functions), Fix(advice, changes), of, exactly)


ONE_HOT: Final = _activity(
    "making one-hot vectors",
    "one_hot",
    "Take rows of the weight by index, as nn.Embedding does, instead of multiplying one-hot vectors with it",
    Change.ROWS_BY_INDEX,
)
MAKING_TENSORS: Final = _activity(
    "making tensors of lists and arrays",
    "torch.tensor torch.as_tensor FloatTensor LongTensor np.array numpy.array",
    "Make tensors of the data once, ahead of time, and take batches of them by index",
    Change.AHEAD_OF_TIME,
)
COPYING_S: Final = "copying_s"  # of the evidence: time spent copying objects
COPYING: Final = _activity(
    "copying objects",
    "deepcopy clone state_dict load_state_dict",
    "Copy only what is kept, or update one copy in place: torch._foreach_lerp_ for a moving average of weights, "
    "Tensor.copy_ for a backup",
    Change.FOREACH_AVERAGE,
)
TO_WRITE: Final = "_to_write"  # of calls of ``open`` in functions that write
WRITING: Final = _activity(
    "printing and writing",
    "print write writelines writerow flush fsync dump dumps save savez savetxt to_csv commit executemany info "
    "debug warning add_scalar add_scalars add_histogram add_image log_metric log_metrics wandb.log run.log "
    f"format repr str open{TO_WRITE}",
    "Write every n-th step, and only what is new",
    Change.LESS_OUTPUT,
)
READING: Final = _activity(
    "opening and reading files",
    "open read readline readlines read_text read_bytes read_csv loadtxt imread json.load torch.load np.load "
    "numpy.load pickle.load yaml.safe_load",
    "Open and read files once, before the loop",
)
DRAWING: Final = _activity(
    "drawing figures",
    "savefig tight_layout imshow add_figure",
    "Draw every n-th step, or from kept numbers after the loop; plt.pause(s) also waits for s seconds each time",
    Change.LESS_OFTEN,
    of=("plt.", "pyplot.", "pylab.", "ax.", "axes.", "fig.", "sns.", "canvas."),
)
PAUSING: Final = _activity("pausing", "sleep", "Remove the pauses, or pause in a thread of its own")
METRICS: Final = _activity(
    "computing metrics",
    "roc_auc_score f1_score accuracy_score balanced_accuracy_score precision_score recall_score "
    "average_precision_score confusion_matrix classification_report roc_curve precision_recall_curve "
    "top_k_accuracy_score r2_score cohen_kappa_score pearsonr spearmanr matthews_corrcoef "
    "precision_recall_fscore_support",
    "Collect outputs (.detach()), and compute metrics of them every n-th step or once in each pass over the data",
    Change.LESS_OFTEN,
    Change.DETACH,
)
NETWORK: Final = _activity(
    "waiting for the network",
    "recv_into sendall create_connection urlopen getresponse requests.get requests.post requests.put "
    "session.get session.post client.get client.post",
    "Send and ask every n-th step, or in a thread of its own that the training does not wait for",
    Change.LESS_OFTEN,
)
IN_PLACE: Final = _activity(
    "changing tensors one by one",
    f"mul_ add_ sub_ div_ lerp_ addcmul_ addcdiv_ {PARAMETERS}",
    "Use torch._foreach functions instead of a loop over tensors: torch._foreach_lerp_ for a moving average of "
    "weights, torch._foreach_mul_ to clip gradients, torch._foreach_add_ for an update",
    Change.FOREACH,
    Change.FOREACH_AVERAGE,
)
# An own optimizer of one tensor after the other on the CPU, by a fused one of torch: Adam 57 to 89 %, SGD with momentum
# 34 to 82 %, of 8 to 40 tensors of 1,024 to a million numbers. torch._foreach functions save as much of small tensors,
# and nothing of 65,000 numbers each.
OWN_SAVES: Final = 0.7
UPDATING: Final = _activity(
    "updating parameters one by one",
    "",
    "Let torch.optim update them, with fused=True, or torch._foreach functions",
    Change.FUSED,
    Change.FOREACH,
)
ACTIVITIES: Final = (
    _activity(
        "in loops and functions of Python",
        f"{PYTHON} get setdefault items append extend sorted isinstance join lower strip shuffle choice randrange",
        "Replace loops in Python by operations on whole tensors, do once what is the same each time, or move them to "
        "where data is made: the data set",
        Change.WHOLE_TENSORS,
        of=("random.", "re.", "itertools.", "collections.", "heapq.", "bisect."),
    ),
    DRAWING,
    PAUSING,
    COPYING,
    WRITING,
    READING,
    METRICS,
    MAKING_TENSORS,
    ONE_HOT,
    _activity(
        "making optimizers and schedulers",
        "Adam AdamW SGD RMSprop Adagrad NAdam RAdam Adadelta LambdaLR StepLR CosineAnnealingLR OneCycleLR "
        "ReduceLROnPlateau LinearLR SequentialLR",
        "Make the optimizer and its scheduler once, before the loop: a new optimizer also forgets its averages",
        Change.ONE_OPTIMIZER,
    ),
    _activity(
        "checking the arguments of probability distributions",
        CHECKS,
        "torch.distributions.Distribution.set_default_validate_args(False) leaves these checks out",
        Change.NO_ARGUMENT_CHECKS,
    ),
    _activity(
        "making and asking probability distributions",
        "Categorical Normal Bernoulli Beta OneHotCategorical MultivariateNormal Dirichlet Independent "
        "TransformedDistribution log_prob kl_divergence",
        "Where a step makes several, make one distribution for a whole batch",
        Change.ONE_DISTRIBUTION,
    ),
    _activity(
        "filling tensors with zeros",
        "zeros_like zero_",
        "If these are gradients: optimizer.zero_grad(set_to_none=True) drops them instead of filling them with zeros",
        Change.SET_TO_NONE,
    ),
    IN_PLACE,
    _activity(
        "emptying the cache of torch's allocator",
        "empty_cache",
        "Leave empty_cache() out of the loop: what it gives back has to be allocated again by the driver",
        Change.KEPT_CACHE,
    ),
    NETWORK,
    _activity(
        "reading numbers out of tensors",
        "item tolist numpy cpu",
        "Keep tensors (.detach()) and read them every n-th step",
        Change.LESS_OFTEN,
        Change.DETACH,
        exactly=READ_BY_FUNCTION,
    ),
    _activity(
        "computing norms and statistics of tensors",
        "norm isnan isfinite isinf histc histogram quantile allclose std var median",
        "Where they are only logged or checked, compute them every n-th step; clip_grad_norm_(foreach=True) clips "
        "all gradients at once and returns their norm",
        Change.FOREACH,
        Change.LESS_OFTEN,
    ),
)


IN_NO_MODEL: Final = (DRAWING, PAUSING, WRITING, READING, METRICS, NETWORK, ONE_HOT)  # no forward pass needs them
# A training needs these: functions of torch.nn.functional, their like in libraries, and a module without its call.
LOSSES: Final = named("cross_entropy binary_cross_entropy binary_cross_entropy_with_logits kl_div forward")


class Spent(NamedTuple):
    """An activity in the unattributed time."""

    activity: Activity
    part: float  # of the time
    lines_part: float  # of the time, with the rest of lines that mostly do this, such as the loop around a call
    names: tuple[str, ...]  # of its functions with most of it, such as "copy.deepcopy()"


def activities(share: float, lines: Sequence[LineStats], has_forward: bool, has_optimizer: bool = True) -> list[Spent]:
    """Return what a good part of ``share`` of the run is spent on, the largest first; empty where that is not known.

    ``has_forward``: it includes a forward pass, whose short operators may be taken for the loop around them.
    """
    called: Counter[str] = Counter()
    lines = _with_writers(lines)
    for line in lines:
        if not line.inside:  # the line only calls a library's loop, whose calls are not known
            called.update(line.called)
    if not has_optimizer:  # then it is this loop that updates
        del called[PARAMETERS]
    spent = []
    for activity in ACTIVITIES:
        if has_forward and PYTHON in activity.functions:
            continue
        its = Counter({name: its_share for name, its_share in called.items() if activity.matches(name)})
        whole = its.total()
        if share and whole >= EACH_FROM * share:
            names = [name.removesuffix(TO_WRITE) for name, part in its.most_common(2) if part >= 0.2 * whole]
            shown = tuple(f"{name}()" for name in names if not name.startswith("<"))
            with_rest = float(whole)
            for line in lines:
                of_line = sum(part for name, part in line.called.items() if activity.matches(name) and not line.inside)
                with_rest += max(0.0, line.share - of_line) if of_line > 0.5 * line.share else 0.0  # all of it
            with_rest *= OWN_SAVES if activity is IN_PLACE else 1.0
            spent.append(Spent(activity, min(1.0, whole / share), min(1.0, with_rest / share), shown))
    spent = sorted(spent, key=lambda each: -each.part)[:2]
    if sum(each.part for each in spent) >= 0.3:  # less is mostly something else
        return spent
    return [] if has_optimizer else _updating(share, lines)


def fix_of(spent: Sequence[Spent]) -> Fix:
    """Return the fixes as one, each as an action with its own part of the saving."""
    first, *others = (each.activity.fix for each in spent)
    parts = sum(each.lines_part for each in spent)
    actions = [action_of(each.activity.fix, each.activity.fix.changes, each.lines_part / parts) for each in spent]
    return joined([first, *(other.as_next for other in others)], tuple(actions))


def _with_writers(lines: Sequence[LineStats]) -> list[LineStats]:
    """Return the lines; where a function also writes, its ``open`` is one for writing."""
    writers = {(line.file, line.function) for line in lines if any(map(WRITING.matches, line.called))}
    return [
        replace(line, called={name + TO_WRITE * name.endswith("open"): share for name, share in line.called.items()})
        if (line.file, line.function) in writers
        else line
        for line in lines
    ]


def lines_of(spent: Sequence[Spent], lines: Sequence[LineStats]) -> Sequence[LineStats]:
    """Return the lines that do what the time is spent on; all where none does."""
    activities_of = [each.activity for each in spent]
    return [
        line for line in lines if any(each.matches(name) for each in activities_of for name in line.called)
    ] or lines


def without_losses(lines: Sequence[LineStats]) -> list[LineStats]:
    """Return the lines with what they do beside calling functions that compute a loss."""
    others = []
    for line in lines:
        plain_names = {name: name.rpartition(".")[2] for name in line.called}
        losses = {name for name, plain in plain_names.items() if plain in LOSSES or plain.endswith("_loss")}
        called = {name: share for name, share in line.called.items() if name not in losses}
        share = line.share - (sum(line.called.values()) - sum(called.values()))
        if share >= EACH_FROM * line.share:
            others.append(line if len(called) == len(line.called) else replace(line, share=share, called=called))
    return others


def spent_text(spent: Sequence[Spent]) -> str:
    """Return "most of it spent copying objects (copy.deepcopy(), 60%)"."""
    much = "most of it" if sum(each.part for each in spent) >= 0.5 else "much of it"
    parts = [f"{each.activity.text} ({', '.join((*each.names, f'{each.part:.0%}'))})" for each in spent]
    return f"{much} spent {' and '.join(parts)}"


NAMED_FROM: Final = 0.25  # of a section, for a function to be named as its cause
SURE_FROM: Final = 100  # samples; the error of a part of a quarter is then 0.09, and fewer name no more functions
LINES_A_FUNCTION: Final = 3  # named, of a function whose time is spread over many
SAY_NOTHING: Final = ("step", "backward")  # calls that are a section
# By the names under which programs import them.
OTHER_LIBRARIES: Final = named(
    "random np numpy re json itertools copy bisect heapq collections string nx networkx sp scipy sklearn pd pandas cv2 "
    "Image PIL nltk tokenizer"
)
OF_EITHER: Final = ("numpy", "from_numpy", "detach", "cpu")  # between tensors and arrays
LOOPS: Final = 0.15  # of a function's time between calls, at the turns of its loops
SAMPLES_NEEDED: Final = 40  # of lines in the forward pass; the error of a part of 0.3 is then below 0.08


def _updating(share: float, lines: Sequence[LineStats]) -> list[Spent]:
    """Return the part of ``share`` in functions that change tensors in place, where no optimizer of torch updates."""
    in_place = {name for line in lines for name in line.called if name.endswith(".copy_") or IN_PLACE.matches(name)}
    changing = [line for line in lines if in_place & line.called.keys() and line.function != "<module>"]
    names = {(line.file, line.function) for line in changing if not line.inside}
    part = sum(line.share for line in lines if (line.file, line.function) in names) / share if share else 0.0
    return [Spent(UPDATING, min(1.0, part), OWN_SAVES * min(1.0, part), ())] if part >= NAMED_FROM else []


def may_be_a_quarter(part: float, samples: int) -> bool:
    """Return whether a part of so many samples is a quarter within two standard errors, which chance seldom denies."""
    return part >= NAMED_FROM - 2 * math.sqrt(NAMED_FROM * (1 - NAMED_FROM) / max(SURE_FROM, samples))


def with_a_quarter(places: Sequence[LineStats], lines: Sequence[LineStats], of: float) -> list[LineStats]:
    """Return the places that have a quarter of the share ``of``, whose samples are those of ``lines``."""
    samples = sum(line.samples for line in lines)
    return [place for place in places if of and may_be_a_quarter(place.share / of, samples)]


def places_named(lines: Sequence[LineStats], of: float) -> list[LineStats]:
    """Return every function with a quarter of the share ``of``, then the largest others, 3 in all, or where these call.

    Functions that have less than half of what the loops and functions that call them have are not named.
    """
    functions, coarser = hottest_functions(lines), hottest_places(lines)
    many = max(len(with_a_quarter(functions, lines, of)), HOT_PLACES)
    functions = [each for each in functions[:many] if each.share >= HOT_SHARE]
    is_spread = 2 * sum(each.share for each in functions) < sum(each.share for each in coarser)
    return coarser if is_spread else functions


def places_text(places: Sequence[LineStats], share: float) -> str:
    """Return the places with their parts of the time that is ``share`` of the run; "" for none."""
    if not share:
        return ""
    texts = [f"{place.place} {place.what} ({of_it(place, share)})" for place in places]
    callers = list(dict.fromkeys(place.caller for place in places if place.caller))
    return ", ".join(texts) + (f"; called at {', '.join(callers)}" if callers else "")


def of_it(place: LineStats, of: float) -> str:
    """Return a place's part of the share ``of``, with the function that a line calls, or the hottest lines of one."""
    text = f"{min(1.0, place.share / of):.0%} of it"
    name, called = max(place.called.items(), key=lambda item: item[1], default=("", 0.0))
    is_named = called >= 0.5 * place.share and not name.startswith("<") and name.rpartition(".")[2] not in SAY_NOTHING
    if called and is_named and not place.inside:
        mostly = "" if called >= 0.9 * place.share else "mostly "
        text += f", {mostly}in {name}{'' if ' ' in name else '()'}"
    if place.lines > 1 and not place.inside:
        parts = sorted(place.parts, key=lambda part: -part[1])[:LINES_A_FUNCTION]
        text += ": " + ", ".join(f"line {line} {min(1.0, share / of):.0%}" for line, share in parts)
    return text


def runs_python(name: str) -> bool:
    """Return whether a called function is Python, of a library that does not use torch, or makes tensors of lists."""
    return name == PYTHON or name.split(".")[0] in OTHER_LIBRARIES or MAKING_TENSORS.matches(name)


def in_python(lines: Sequence[LineStats]) -> list[LineStats]:
    """Return the lines that run Python or other libraries, with the time in these.

    In ``a ** 3`` no function is called, and ``a`` may be a tensor. It counts beside a call of NumPy in its line, in
    a function that hardly calls anything else.
    """
    of_arrays = _functions_of_arrays(lines)
    found = []
    for line in lines:
        share = sum(its_share for name, its_share in line.called.items() if runs_python(name))
        if (line.file, line.function) in of_arrays and not line.inside and any(map(_takes_arrays, line.called)):
            share += max(0.0, line.share - sum(line.called.values()))
        if share:
            found.append(replace(line, share=min(line.share, share)))
    return found


def _takes_arrays(name: str) -> bool:
    library, *path = name.split(".")
    return library in ("np", "numpy", "scipy", "sp") and "random" not in path  # np.random takes no arrays


def _functions_of_arrays(lines: Sequence[LineStats]) -> set[tuple[str, str]]:
    """Return the functions, by file and name, that call NumPy and hardly anything else."""
    arrays, others, samples = (defaultdict[tuple[str, str], float](float) for _ in range(3))
    for line in lines:
        function = line.file, line.function
        for name, share in line.called.items():
            if _takes_arrays(name):
                arrays[function] += share
                samples[function] += line.samples * share / line.share if line.share else 0.0
            elif not runs_python(name) and name.rpartition(".")[2] not in OF_EITHER:
                others[function] += share
    known = (each for each, number in samples.items() if number >= 3)  # fewer may be chance
    return {each for each in known if arrays[each] >= 0.8 * (arrays[each] + others[each])}


def loops(snapshot: Snapshot) -> list[LineStats]:
    """Return the lines of forward passes in functions that loop in Python: without calls, with operators in between."""
    lines = [line for line in snapshot.lines_of_steps(FORWARD_PASS) if not line.inside]
    whole, turns = (defaultdict[tuple[str, str], float](float) for _ in range(2))
    for line in lines:
        whole[line.file, line.function] += _without_calls(line)
        turns[line.file, line.function] += line.called.get(PYTHON, 0.0)
    return [
        replace(line, share=_without_calls(line))
        for line in lines
        if _without_calls(line) and turns[line.file, line.function] >= LOOPS * whole[line.file, line.function]
    ]


def _without_calls(line: LineStats) -> float:
    """Return the share of a line without the functions that it calls: ``mask[i, j] = 0`` calls none."""
    return max(0.0, line.share - sum(share for name, share in line.called.items() if name not in (PYTHON, PARAMETERS)))


def place_of_most(lines: Sequence[LineStats], snapshot: Snapshot) -> dict[str, str]:
    """Return the place with most of these lines' time, as evidence; empty where they have little time."""
    section = snapshot.sections.get(FORWARD_PASS)
    samples = sum(line.samples for line in snapshot.lines_of_steps(FORWARD_PASS))
    if section is None or samples < SAMPLES_NEEDED or sum(line.share for line in lines) < 0.2 * section.share:
        return {}
    places = [f"{place.place} {place.what}" for place in hottest_places(sorted(lines, key=lambda line: -line.share))]
    return {"lines": places[0]} if places else {}
