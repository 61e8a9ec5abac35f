"""What each change that the advice names does to the losses: one table for fixes, trials and the guide."""

import re
from enum import Enum
from typing import Final, NamedTuple


class Losses(Enum):
    """What to expect of the losses after a change."""

    EXACT = "same bit for bit"
    EXACT_IF = "same bit for bit, under a condition"
    CLOSE = "differ by rounding"
    CHANGES = "differ"


class Price(NamedTuple):
    """A row of the table."""

    change: str  # as code and advice write it: "fused=True"
    losses: Losses
    condition: str = ""  # under which they stay the same, or how they differ
    words: str = ""  # a pattern of the texts that advise it; "" is the change itself

    @property
    def text(self) -> str:
        """What happens to the losses, such as "same bit for bit, if samples draw no random numbers"."""
        known = Losses.EXACT if self.losses is Losses.EXACT_IF else self.losses
        return f"{known.value}, {self.condition}" if self.condition else known.value


NO_RANDOM: Final = "if samples draw no random numbers"
NOT_DRAWING: Final = "if it draws no random numbers"
DROPOUT: Final = "and dropout draws other numbers"
UNUSED: Final = "if the training does not use its result"
KEPT: Final = "if you draw a number a pass, samples none"
EXACT, EXACT_IF, CLOSE, CHANGES = Losses
# What a trial can apply.
TRIED: Final = (
    Price("num_workers", EXACT_IF, NO_RANDOM, r"num_workers(=| from| and)|more workers(?! would)|in workers"),
    Price("persistent_workers", EXACT_IF, KEPT, "persistent_workers=True"),
    Price("prefetch_factor", EXACT),
    Price("pin_memory", EXACT, words=r"pin_memory(=True|\(\))|pinned memory"),
    Price("non_blocking", EXACT),
    Price("BatchSampler", EXACT),
    Price("set_num_threads", CLOSE, words="set_num_threads|(fewer|more) threads"),
    Price("foreach", EXACT_IF, "on the CPU", r"foreach=True|torch\._foreach(?!_lerp)"),
    Price("fused", CLOSE, words="fused=True|fused functions"),
    Price("set_to_none", EXACT_IF, "if the program does not read gradients that are zero"),
    Price("channels_last", CLOSE, DROPOUT),
    Price("torch.compile", CLOSE, DROPOUT),
    Price("set_float32_matmul_precision", CHANGES, "in the third digit of products"),
    Price("cudnn.benchmark", CLOSE, "and from run to run"),
    Price("autocast", CHANGES, words=r"(?<!without torch\.)autocast|mixed precision"),
    Price("gc.freeze", EXACT),
    Price("LD_PRELOAD", EXACT),
    Price("gradient_as_bucket_view", EXACT),
    Price("static_graph", EXACT_IF, "if each step uses the same parameters"),
    Price("bucket_cap_mb", CLOSE),
)
# What only an edit can bring.
ADVISED: Final = (
    Price("one loader for all passes", EXACT_IF, NO_RANDOM, "make the DataLoader once"),
    Price("fewer workers", EXACT_IF, NO_RANDOM, "fewer (DataLoader )?workers|threads (and|or fewer) workers"),
    Price("less preprocessing", EXACT_IF, "if samples stay the same", "preprocess less per|less work in"),
    Price("data made ahead of time", EXACT_IF, "if the data stays the same", "ahead of time"),
    Price("results kept in a file", EXACT_IF, NOT_DRAWING, "result in a file"),
    Price("data mapped into memory", EXACT, words="mmap"),
    Price("other batches", CHANGES, words=r"(larger|smaller) batch(?! size)|bucket them|pad batches"),
    Price("whole passes", CHANGES, "because batches come in another order", "all batches of a pass"),
    Price("another order of batches", CHANGES, words="in_order=False"),
    Price("accumulated gradients", CHANGES, words="accumulat"),
    Price("shorter history", CHANGES, words="history_size"),
    Price("another model", CHANGES, words=r"(smaller|faster) model|nn\.LSTM|fewer parameters|optimizer of torch"),
    Price("float32 instead of float64", CLOSE, words="use float32"),
    Price("float32 instead of half", CHANGES, "as they are rounded less", "train in float32"),
    Price("one forward pass", EXACT_IF, "if the model draws no random numbers", "call it once and|pass that is there"),
    Price("features computed once", CLOSE, "if inputs are the same in each epoch", "(outputs|features) once"),
    Price("one backward pass", CLOSE, words=r"backward\(\) once"),
    Price("whole batches instead of loops", CLOSE, words="a whole batch or sequence at once|operations on whole"),
    Price("no checks of arguments", EXACT, words="set_default_validate_args"),
    Price("one distribution for a batch", EXACT_IF, NOT_DRAWING, "one distribution for a whole batch"),
    Price("one optimizer for all steps", CHANGES, "because its averages are kept", "make the optimizer"),
    Price("larger evaluation batches", EXACT_IF, "but its own results differ by rounding", "at once in validation"),
    Price("no anomaly detection", EXACT, words="anomaly detection off"),
    Price("sparse gradients", CHANGES, "where the optimizer also moves rows that a batch does not use", "sparse=True"),
    Price("activation checkpointing", EXACT, words="(activation|gradient) checkpointing"),
    Price("less frequent work", EXACT_IF, UNUSED, r"(?<!average )(?<!write )(?<!log )every n-th step|often, async"),
    Price("less frequent output", EXACT, words="save less often|(log|write) every n-th step"),
    Price("one operation for all averages", EXACT_IF, "if no loss uses the average", "_foreach_lerp_"),
    Price("less frequent averaging", EXACT_IF, "if no loss uses the average", "average every n-th step"),
    Price("less validation or sampling", EXACT_IF, NOT_DRAWING, "(validate|samples|evaluate) less often"),
    Price("statistics of batch norms once", EXACT_IF, NOT_DRAWING, "update_bn once"),
    Price("no gradients where none are used", EXACT, words="no_grad|inference_mode"),
    Price("no unused gradients", EXACT, words=r"requires_grad_\(False\)"),
    Price("no kept graphs", EXACT, words=r"\.detach\(\)"),
    Price("logging_nan_inf_filter", EXACT),
    Price("work in another process", EXACT, words="process of its own"),
    Price("cheaper lines", EXACT_IF, "if they compute the same", "these lines cheaper"),
    Price("weight decay", CLOSE, "and the loss has no penalty in it", "weight_decay of"),
    Price("no graph of gradients", EXACT, words="create_graph=True out"),
    Price("less in a queue", EXACT, words="into the queue"),
    Price("updates in place", EXACT, words="compute in place"),
    Price("memory made once", EXACT, words="room for all"),
    Price("cheaper hooks", EXACT_IF, "if they change no value", "hooks that only watch"),
    Price("a shorter lock", EXACT, words="shorten what holds"),
    Price("fewer garbage collections", EXACT, words=r"gc\.collect\(\) less often|gc\.set_threshold"),
    Price("memory kept by torch", EXACT, words=r"empty_cache\(\) out"),
    Price("memory used again", EXACT, words="memory again|MALLOC_MMAP_THRESHOLD_"),
    Price("fewer recorded steps", EXACT, words="Record a few steps only"),
    Price("sections", EXACT, words="wrap the parts"),
    Price("fewer callbacks", EXACT_IF, "if they change nothing", "some of its callbacks"),
    Price("larger collectives", CLOSE, words="larger collectives|CUDA graphs"),
    Price("fewer copies", EXACT, words="at once what belongs together"),
    Price("another GPU", EXACT_IF, "on the same kind of GPU", "on a GPU that no other"),
    Price("another machine", EXACT_IF, "on the same kind of CPU", "quiet machine|(dedicated|more) CPUs|CPU limit"),
)
PRICES: Final = (*TRIED, *ADVISED)
PRICE_OF: Final = {price.change: price for price in PRICES}
_PATTERNS: Final = [(price, re.compile(price.words or re.escape(price.change), re.IGNORECASE)) for price in PRICES]


def losses_text(advice: str) -> str:
    """Return what the changes named in ``advice`` do to the losses; "" where it names none.

    Such as "fused: differ by rounding; accumulated gradients: differ".
    """
    by_text: dict[str, list[str]] = {}
    for price, pattern in _PATTERNS:
        if pattern.search(advice):
            by_text.setdefault(price.text, []).append(price.change)
    if len(by_text) == 1:
        return next(iter(by_text))
    return "; ".join(f"{', '.join(changes)}: {text}" for text, changes in by_text.items())
