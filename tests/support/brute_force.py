"""A slow, independent evaluation of recorded batches: one event at a time, without arrays.

Python 3 alone, on purpose: nothing of the package's arithmetic is used here.
"""

from collections import defaultdict
from dataclasses import dataclass, field

OUTSIDE_SECTIONS = {
    "validation_epoch",
    "sampling",
    "checkpointing",
    "visualization_generation",
    "batch_norm_update",
    "(profiler)",
}
IN_A_LOOP = {
    "data_loading",
    "data_generation",
    "data_transfer",
    "forward_pass",
    "backward_pass",
    "graph_replay",
}
STEP_END, EPOCH_BEGIN, EPOCH_END = range(3)
DISCARDED = 1 << 24


@dataclass
class Open:
    code: int
    begin_ns: int
    step: int  # number of the step it began in, 0 outside
    name: str = ""
    parent: str = ""
    root: str = ""


@dataclass
class Span:
    name: str
    ns: int
    parent: str
    step: int
    thread: int
    begin_ns: int


@dataclass
class Reading:
    """The result; all times in ns."""

    spans: list[Span] = field(default_factory=list)
    self_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    elsewhere_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    step_ns: list[int] = field(default_factory=list)
    step_self_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    after_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dropped: int = 0
    unended: int = 0


class BruteForce:
    """Evaluates batches of events like ``Accumulator.add``."""

    def __init__(self, names, begin_ns, training_thread):
        self.names = dict(names)  # code -> name
        self.training = training_thread
        self.now_ns = begin_ns
        self.found = Reading()
        self.stacks = defaultdict(list)
        self.steps = 0
        self.inside = False
        self.begun = False
        self.unfinished = defaultdict(int)  # in-step time of the step in progress
        self.stretch = defaultdict(int)  # the same since the last mark or batch

    def add(self, until_ns, threads, marks):
        """Read one batch; ``threads`` maps thread ids to (is_alive, [(ns, code), ...]); ``marks`` are (ns, kind)."""
        for stack in self.stacks.values():  # open sections are nested again
            self._nest(stack)
        items = [(ns, 1, self.training, code) for ns, code in threads.get(self.training, (True, []))[1]]
        items += [
            (ns, 1, thread_id, code)
            for thread_id, (_, events) in threads.items()
            if thread_id != self.training
            for ns, code in events
        ]
        items += [(ns, 0, None, kind) for ns, kind in marks]
        begin_ns = self._loop_begin(threads.get(self.training, (True, []))[1], marks)
        if begin_ns is not None:
            items.append((begin_ns, -1, None, None))
        for ns, order, thread_id, what in sorted(items, key=lambda item: item[:2]):
            self._pass_until(ns)
            if order == -1:
                self._begin_loop()
            elif order == 0:
                self._mark(what)
            else:
                self._event(thread_id, ns, what)
        self._pass_until(until_ns)
        self._end_stretch()
        for thread_id, (is_alive, _) in threads.items():
            if not is_alive:
                self.found.unended += len(self.stacks.pop(thread_id, []))

    def _loop_begin(self, events, marks):
        if self.begun:
            return None
        loop = [ns for ns, code in events if self.names.get(code) in IN_A_LOOP]
        times = loop or ([ns for ns, _ in events] if marks else [])
        if not times or (marks and marks[0][0] < times[0]):
            return None
        return times[0]

    def _begin_loop(self):
        self._end_stretch()
        self.inside = self.begun = True

    def _mark(self, kind):
        if kind == STEP_END:
            self.inside = True
        self.begun = True
        self._end_stretch()
        if kind == STEP_END:
            self.steps += 1
            self.found.step_ns.append(sum(self.unfinished.values()))
            for name, ns in self.unfinished.items():
                self.found.step_self_ns[name] += ns
        else:
            self.inside = kind == EPOCH_BEGIN
        self.unfinished.clear()
        if kind != EPOCH_BEGIN:
            self.found.after_ns.clear()

    def _end_stretch(self):
        if self.inside:
            for name, ns in self.stretch.items():
                self.unfinished[name] += ns
        self.stretch.clear()

    def _pass_until(self, ns):
        passed_ns, self.now_ns = ns - self.now_ns, ns
        for thread_id, stack in self.stacks.items():
            if thread_id != self.training and stack:
                self.found.elsewhere_ns[stack[-1].name] += passed_ns
        own = self.stacks[self.training]
        name, root = (own[-1].name, own[-1].root) if own else ("", "")
        self.found.self_ns[name] += passed_ns
        if self.steps:
            self.found.after_ns[name] += passed_ns
        if not root:
            self.stretch[name] += passed_ns

    def _event(self, thread_id, ns, code):
        stack = self.stacks[thread_id]
        if code > 0:
            stack.append(Open(code, ns, self.steps + 1 if self.inside else 0))
            self._nest(stack, only_last=True)
            return
        code = -code
        at = next((i for i in reversed(range(len(stack))) if stack[i].code == code), None)
        if at is None:
            self.found.dropped += 1
            return
        ended = stack.pop(at)
        self.found.spans.append(
            Span(ended.name, ns - ended.begin_ns, ended.parent, ended.step, thread_id, ended.begin_ns)
        )

    def _nest(self, stack, only_last=False):
        for i in range(len(stack) - 1 if only_last else 0, len(stack)):
            around = stack[i - 1] if i else Open(0, 0, 0)
            plain = self.names[stack[i].code]
            stack[i].parent = around.name
            stack[i].root = around.root or (plain if plain in OUTSIDE_SECTIONS else "")
            inside = around.root and around.root != plain and plain != "(profiler)"
            stack[i].name = f"{around.root}/{plain}" if inside else plain
