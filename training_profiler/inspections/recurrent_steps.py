"""Finds recurrent layers that get one step of a sequence a call, and whether all steps are known before."""

import contextlib
import sys
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final

from training_profiler.inspections.inspection import (
    Following,
    Inspection,
    SeenCall,
    UserProgram,
    hooks_of_all,
    tensors_within,
)
from training_profiler.instrumentation.loop_detection.modules import modules_within
from training_profiler.model.program import RecurrentFacts
from training_profiler.recording.object_identity import ObjectIdentity

LOOKED_AT: Final = 4  # steps with such calls
LEAST: Final = 8  # steps of a sequence; fewer may be layers side by side
COMPARED: Final = 5  # steps of a sequence whose inputs are followed
MOST_NODES: Final = 1_000  # of autograd's graph, from an input on


class _Layer:
    """A recurrent layer and its calls; nothing of the program is kept alive."""

    def __init__(self, module: Any, inputs: tuple[Any, ...], place: str) -> None:
        self.kind = type(module).__name__
        self.place = place
        width = inputs[0].shape[-1]  # products of a step in one gate:
        self.work = int(inputs[0].numel() // width * module.hidden_size * (width + module.hidden_size))
        self.calls = self.ns = self.sequences = 0
        self.length = 0  # of the sequence so far
        self.first = 0  # the least number of a node that made an output of the sequence
        self.made_by: set[int] = set()  # numbers of all nodes that made an output of it

    def begin_sequence(self) -> None:
        """Take the next call for the first of a sequence."""
        self.sequences += 1
        self.length = self.first = 0
        self.made_by.clear()

    def end_sequence(self) -> None:
        """Take the next call for the first of a sequence, whatever its state depends on."""
        self.length = 0

    def took(self, ns: int, nodes: set[int]) -> None:
        """Add a call, and the nodes that made its outputs."""
        self.calls += 1
        self.length += 1
        self.ns += ns
        self.first = self.first or min(nodes, default=0)
        self.made_by |= nodes

    def made(self, value: Any) -> bool:
        """Return whether a tensor is computed from outputs of this sequence; so it is taken where that is unclear."""
        waiting, visited = [value.grad_fn], set()
        while waiting:
            node = waiting.pop()
            number = self.first - 1 if node is None else node._sequence_nr()
            if number in self.made_by:
                return True
            if number < self.first or number in visited:  # nodes have larger numbers than those that they depend on
                continue
            visited.add(number)
            if len(visited) > MOST_NODES:
                return True
            waiting += [each for each, _ in node.next_functions]
        return False


class RecurrentSteps(Inspection):
    """Hooks of torch for all modules, within the outermost calls of a few steps of models with recurrent layers.

    An input is known before the sequence begins if autograd's graph does not lead from it to an earlier output of the
    layer, and if what has no gradient, such as tokens, is a part of the same tensor in each call.
    """

    def __init__(self, program: UserProgram) -> None:
        self._program = program
        self._has_recurrent: dict[int, bool] = {}  # by the id of an outermost module
        self._layers: dict[int, _Layer] = {}  # by id
        self._parts_of: dict[tuple[int, int], ObjectIdentity] = {}  # by module and input: what has no gradient
        self._thread = 0  # of the latest call
        self._sequence: _Layer | None = None  # whose call was the latest
        self._is_known, self._is_over = True, False
        self._layer_began_ns = self._loop_began_ns = self._loop_ended_ns = 0
        self._reading_ns = self._read_before_ns = 0  # in hooks, in the call under way, and before its loop
        self._calls_in_call = self._steps = self._step = 0
        self._all_ns = self._loop_ns = 0
        self._has_calls = False  # in this step

    def follow(self, seen: SeenCall) -> Following:
        """Add the call, and the part of it from its first step to the last; models with recurrent layers have hooks."""
        module, step = seen.module, seen.counts.steps
        if self._is_over or not seen.has_grad:
            return
        if step != self._step:
            self._steps += self._has_calls
            self._step, self._has_calls = step, False
            for layer in self._layers.values():
                layer.end_sequence()
            if self._steps >= LOOKED_AT:
                self.stop()
                return
        if id(module) not in self._has_recurrent:
            kinds = sys.modules["torch"].nn.RNNBase, sys.modules["torch"].nn.RNNCellBase
            is_recurrent = any(isinstance(each, kinds) for each in modules_within(module))
            self._has_recurrent[id(module)] = is_recurrent and not self._program.may_be_compiled(module)
        self._thread, self._calls_in_call, self._reading_ns = get_ident(), 0, 0
        with hooks_of_all(self._enters, self._leaves) if self._has_recurrent[id(module)] else contextlib.nullcontext():
            yield
            spent_ns = yield
        spent_ns -= self._reading_ns
        self._all_ns += spent_ns
        if self._calls_in_call == 1:  # a step of a loop around the module
            self._loop_ns += spent_ns
        elif self._calls_in_call:  # what is before the first call and after the last is as long as between two others
            calls = self._calls_in_call
            loop_ns = (self._loop_ended_ns - self._loop_began_ns) * calls // (calls - 1)
            self._loop_ns += min(loop_ns, spent_ns)

    def stop(self) -> None:
        """Look at no more calls."""
        if not self._is_over:
            self._steps += self._has_calls
            self._is_over, self._sequence = True, None
            self._parts_of.clear()

    def _enters(self, module: Any, inputs: tuple[Any, ...]) -> None:
        if get_ident() != self._thread:
            return
        began_ns, is_step = perf_counter_ns(), False
        with contextlib.suppress(Exception):  # of modules with methods of their own
            is_step = _is_single_step(module, inputs)
            if is_step:
                self._layer_begins(module, inputs, sys._getframe(1))
            elif self._sequence is not None:
                self._look_for_parts(module, inputs)
        now_ns = perf_counter_ns()
        self._reading_ns += now_ns - began_ns
        if is_step:
            self._layer_began_ns = now_ns
            if not self._calls_in_call:
                self._read_before_ns, self._loop_began_ns = self._reading_ns, now_ns

    def _layer_begins(self, module: Any, inputs: tuple[Any, ...], frame: Any) -> None:
        layer = self._layers.get(id(module))
        if layer is None:
            layer = self._layers[id(module)] = _Layer(module, inputs, self._program.place_of(frame))
        states = [value for value in tensors_within(inputs[1:]) if value.grad_fn is not None]
        if not layer.length or not any(map(layer.made, states)):
            layer.begin_sequence()
            self._parts_of.clear()
        elif layer.length < COMPARED:
            is_state_kept = _nodes(states) <= layer.made_by
            self._is_known &= is_state_kept and not layer.made(inputs[0])
            self._look_for_parts(module, inputs[:1])
        self._sequence = layer if layer.length < COMPARED else None

    def _look_for_parts(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """Note where an input without gradient is a part of another tensor than the one before."""
        for at, value in enumerate(tensors_within(inputs)):
            if not value.requires_grad:
                whole = value if value._base is None else value._base
                self._is_known &= self._parts_of.setdefault((id(module), at), ObjectIdentity(whole)).matches(whole)

    def _leaves(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        now_ns = perf_counter_ns()
        if get_ident() != self._thread:
            return
        with contextlib.suppress(Exception):
            layer = self._layers.get(id(module))
            if layer is not None and _is_single_step(module, inputs):
                layer.took(now_ns - self._layer_began_ns, _nodes(tensors_within(output)))
                self._loop_ended_ns = now_ns - (self._reading_ns - self._read_before_ns)
                self._has_calls, self._calls_in_call = True, self._calls_in_call + 1
        self._reading_ns += perf_counter_ns() - now_ns

    def facts(self, steps: int) -> RecurrentFacts | None:
        """Return the layers with a call for each step; None where there are none."""
        layers = [layer for layer in self._layers.values() if layer.calls >= LEAST * layer.sequences]
        steps = self._steps + (self._has_calls and not self._is_over)  # of those with recurrent layers
        if not layers or not self._all_ns or not steps:
            return None
        most = max(layers, key=lambda layer: layer.ns)
        return RecurrentFacts(
            most.kind,
            sum(layer.calls for layer in layers) / steps,
            min(1.0, sum(layer.ns for layer in layers) / self._all_ns),
            min(1.0, self._loop_ns / self._all_ns),
            self._is_known,
            most.work,
            most.place,
        )


def _is_single_step(module: Any, inputs: tuple[Any, ...]) -> bool:
    """Return whether a call is that of a recurrent layer or cell with one step of a sequence, which is not packed."""
    torch = sys.modules["torch"]
    if isinstance(module, torch.nn.RNNCellBase):
        return bool(inputs)
    if not isinstance(module, torch.nn.RNNBase) or not inputs or not isinstance(inputs[0], torch.Tensor):
        return False
    shape = inputs[0].shape
    return len(shape) > 1 and shape[1 if len(shape) > 2 and module.batch_first else 0] == 1


def _nodes(tensors: Any) -> set[int]:
    """Return the numbers of the nodes of autograd's graph that made these tensors."""
    return {value.grad_fn._sequence_nr() for value in tensors if value.grad_fn is not None}
