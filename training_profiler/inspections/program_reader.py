"""Reads in the first steps what the program has set: its optimizer, and autocast."""

import contextlib
import sys
import weakref
from collections.abc import Callable
from itertools import islice
from time import perf_counter
from typing import Any, Final

from training_profiler.inspections.inspection import is_watched
from training_profiler.instrumentation.call_sites import dtype_name, optimizer_facts
from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.input_sizes import EvaluatedRows, InputSizes
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.modules import modules_within, parameters_within
from training_profiler.model.program import ConvolutionFacts, EmbeddingFacts, OptimizerFacts, ProgramFacts

READ_UNTIL: Final = 1  # complete steps; an optimizer that is used less often is not worth a change
LARGE: Final = 1_000_000  # numbers in a table
TIMED_BYTES: Final = 40 << 20  # of a table; malloc has no new pages for less than 32 MiB, once it has been freed
MOST_MODULES: Final = 2_000  # among which one is looked for, and convolutions
# Parts of the names of modules that work on sequences, beside few tables: one for each feature is a recommender's.
SEQUENTIAL: Final = ("attention", "attn", "transformer", "lstm", "gru", "rnn", "mamba")
MOST_TABLES: Final = 8
CONVOLUTIONS: Final = ("Conv2d", "ConvTranspose2d")


class ProgramReader:
    """Shadows two methods of the loop detector during the first steps, so that later ones cost nothing."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._restore: Callable[[], None] | None = None
        self._optimizer: OptimizerFacts | None = None
        self._autocast = ""
        self._finds_anomalies = False
        self._embedding: EmbeddingFacts | None = None
        self._table: Callable[[], Any] = lambda: None  # the module of the largest one
        self._convolutions = (0, 0, False)  # see ConvolutionFacts; of the module with most of them
        self._seen: set[int] = set()  # modules in which these were looked for
        self._numbers: dict[int, int] = {}  # that each optimizer updates
        self._updated = 0  # numbers in that table
        self._sizes: InputSizes | None = None  # of the training thread
        self._rows: EvaluatedRows | None = None  # of the training thread
        self._is_done = False

    def step_ended(self, steps: int) -> None:
        """Handle the end of a step; ``steps`` are complete. Called on the training thread."""
        if steps >= READ_UNTIL:
            self.stop()
        elif not self._is_done and self._restore is None and self._context.detector is not None:
            self._begin(self._context.detector)

    def _begin(self, detector: LoopDetector) -> None:
        torch = sys.modules["torch"]
        self._sizes, self._rows = detector.input_sizes, detector.input_sizes.rows
        update_ends, call_ends = detector.update_ends, detector.call_ends

        def reading_update_ends(optimizer: Any, has_updated: bool = True) -> None:
            update_ends(optimizer, has_updated)  # first: it reads the clock
            with contextlib.suppress(Exception):  # an optimizer that has other attributes is not described
                facts = optimizer_facts(optimizer)
                if self._optimizer is None or facts.tensors > self._optimizer.tensors:
                    self._optimizer = facts
                self._read_embedding(optimizer)

        def reading_call_ends(call: Any, module: Any) -> None:
            if call.has_grad and not self._autocast:
                with contextlib.suppress(Exception):
                    self._read_autocast(torch, module)
            if call.has_grad and id(module) not in self._seen:
                with contextlib.suppress(Exception):
                    self._seen.add(id(module))
                    self._look_for_table(module)
                    self._look_for_convolutions(torch, module)
                    if _looks_up_tokens(module):
                        detector.input_sizes.count_tokens()
            self._finds_anomalies |= torch.is_anomaly_enabled()
            call_ends(call, module)

        self._restore = detector.shadow(update_ends=reading_update_ends, call_ends=reading_call_ends)

    def stop(self) -> None:
        """Restore the detector."""
        self._is_done = True  # a later thread's is not shadowed
        self._table = lambda: None
        if self._restore is not None:
            self._restore()

    def _read_autocast(self, torch: Any, module: Any) -> None:
        parameter = next(parameters_within(module), None)
        if parameter is not None and torch.is_autocast_enabled(parameter.device.type):
            self._autocast = dtype_name(torch.get_autocast_dtype(parameter.device.type))

    def _look_for_table(self, module: Any) -> None:
        """Find the largest table of embeddings on the CPU that gets a dense gradient; elsewhere reading it waits."""
        for inner in islice(modules_within(module), MOST_MODULES):
            weight = _dense_weight(inner)
            if weight is None:
                continue
            known = _dense_weight(self._table())
            if weight.numel() >= (LARGE if known is None else known.numel() + 1):
                self._table = weakref.ref(inner)  # of the weight itself it would forbid torch.utils.swap_tensors

    def _look_for_convolutions(self, torch: Any, module: Any) -> None:
        """Read the order of the weights of dense convolutions on images, of those for which an order is defined."""
        first = last = 0
        for inner in islice(modules_within(module), MOST_MODULES):
            weight = inner._parameters.get("weight") if type(inner).__name__ in CONVOLUTIONS else None
            if weight is None or weight.dim() != 4 or inner.groups != 1 or not weight.requires_grad:
                continue
            is_last = weight.is_contiguous(memory_format=torch.channels_last)
            if is_last != weight.is_contiguous():
                first, last = first + (not is_last), last + is_last
        if first + last > sum(self._convolutions[:2]):
            detector = self._context.detector
            self._convolutions = first, last, detector is not None and detector.input_sizes.are_channels_last

    def _read_embedding(self, optimizer: Any) -> None:
        table = self._table()
        if id(optimizer) in self._numbers and (table is None or self._embedding is not None):
            return
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._numbers[id(optimizer)] = sum(each.numel() for each in parameters)
        weight = _dense_weight(table)
        if weight is None or weight.grad is None or weight.grad.is_sparse or is_watched():
            return
        if any(each is weight for each in parameters):
            read = weight.grad[:: max(1, len(weight) // 20_000)]
            used = float((read != 0).any(1).float().mean())
            if used:
                self._embedding = EmbeddingFacts(type(table).__name__, len(weight), used, 0.0, _gradient_s(weight.grad))
                self._updated = weight.numel()

    def facts(self) -> ProgramFacts:
        """Return the facts of the program so far."""
        embedding = self._embedding
        if embedding is not None:
            embedding = embedding._replace(part=self._updated / sum(self._numbers.values()))
        return ProgramFacts(
            rows=None if self._rows is None else self._rows.facts(),
            has_token_ids=self._sizes is not None and self._sizes.has_token_ids,
            acting=None if self._rows is None else self._rows.acting(),
            shapes=() if self._rows is None else tuple(self._rows.shapes),
            optimizer=self._context.later_optimizers.main or self._optimizer,
            autocast=self._autocast,
            kept_graphs=self._context.kept_graphs,
            kept_past_updates=self._context.kept_past_updates,
            created_graphs=self._context.created_graphs,
            finds_anomalies=self._finds_anomalies,
            embedding=embedding,
            convolutions=ConvolutionFacts(*self._convolutions) if any(self._convolutions) else None,
        )


def _looks_up_tokens(module: Any) -> bool:
    """Return whether a model has few tables of embeddings, and modules that work on sequences."""
    names = [type(inner).__name__.lower() for inner in islice(modules_within(module), MOST_MODULES)]
    tables = sum(name.endswith("embedding") for name in names)
    return 0 < tables <= MOST_TABLES and any(part in name for name in names for part in SEQUENTIAL)


def _gradient_s(gradient: Any) -> float:
    """Return how long zeros for such a gradient take, which each backward pass makes: the quicker of two."""
    rows, spent_s = min(len(gradient), max(1, TIMED_BYTES // gradient[0].nbytes)), []
    for _ in range(2):
        began_s = perf_counter()
        gradient.new_zeros((rows, *gradient.shape[1:]))
        spent_s.append(perf_counter() - began_s)
    return float(min(spent_s) * len(gradient) / rows)


def _dense_weight(module: Any) -> Any:
    """Return the trained weight of a table of embeddings on the CPU whose gradients are dense; None for all else."""
    if type(module).__name__ not in ("Embedding", "EmbeddingBag") or vars(module).get("sparse") is not False:
        return None
    weight = module._parameters.get("weight")
    is_trained = weight is not None and weight.requires_grad and weight.is_leaf and weight.is_cpu
    return weight if is_trained else None
