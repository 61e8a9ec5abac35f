"""Measurements with a fake clock. The models are real and really run."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.benchmark import Measurement, TaskSpec

from training_profiler.base.errors import BenchmarkError
from training_profiler.component_benchmark import result
from training_profiler.component_benchmark.measure import Options, measure
from training_profiler.component_benchmark.result import ENOUGH, MeasuredModule, Timing, TorchStopwatch
from training_profiler.component_benchmark.subject import subject_of


class FakeClock:
    """Runs everything twice and returns the given time, 1 s by default."""

    def __init__(self, spread: float = 0.0, **seconds: float) -> None:
        self.spread = spread
        self.seconds = {what.replace("__", ": ").replace("_", "."): s for what, s in seconds.items()}
        self.asked: list[str] = []

    def __call__(self, what: str, run: Callable[[], object]) -> Timing:
        run()
        run()
        self.asked.append(what)
        median_s = self.seconds.get(what, 1.0)
        return Timing(median_s, self.spread * median_s, 5, 1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm2(self.norm1(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.unused = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def run(*returned, clock: FakeClock | None = None, depth: int | None = None, has_backward: bool = True):
    return measure(subject_of("m:f", returned), clock or FakeClock(), Options(1, depth, has_backward))


def kinds(component: MeasuredModule) -> dict[str, int]:
    return {child.kind: child.calls for child in component.children}


def test_equal_modules_share_a_row_and_are_timed_once():
    clock = FakeClock()
    found = run(Stack(), torch.randn(2, 4), clock=clock)
    (block, norm) = sorted(found.root.children, key=lambda child: child.kind)
    assert (block.kind, block.calls, block.names) == ("Block", 3, ("blocks.0", "blocks.1", "blocks.2"))
    assert kinds(block) == {"LayerNorm": 6, "Sequential": 3}
    assert (norm.kind, norm.calls) == ("LayerNorm", 1)
    timed = [what for what in clock.asked if what.endswith(": forward")]
    assert timed == [
        f"blocks.0{name}: forward" for name in ("", ".norm1", ".mlp", ".mlp.0", ".mlp.1", ".mlp.2")
    ]  # norm2 and the last norm equal norm1


def test_shares_count_all_calls_and_largest_comes_first():
    clock = FakeClock(forward=1.0, blocks_0__forward=0.3, blocks_0_norm1__forward=0.02, blocks_0_mlp__forward=0.2)
    root = run(Stack(), torch.randn(2, 4), clock=clock, depth=2).root
    block, norm = root.children
    assert (block.total_s, block.share_of_parent, block.share_of_model) == pytest.approx((0.9, 0.9, 0.9))
    assert (norm.share_of_parent, norm.share_of_model) == pytest.approx((0.02, 0.02))
    mlp, norms = block.children
    assert (mlp.share_of_parent, mlp.share_of_model) == pytest.approx((0.2 / 0.3, 0.6))
    assert (norms.share_of_parent, norms.share_of_model) == pytest.approx((0.04 / 0.3, 0.12))
    assert (root.rest_s, block.rest_s) == pytest.approx((0.08, 0.06))
    assert (root.share_of_parent, root.share_of_model) == (None, 1.0)


def test_rest_is_unknown_if_parts_take_longer_or_were_not_timed():
    clock = FakeClock(forward=1.0, blocks_0__forward=0.4)
    assert run(Stack(), torch.randn(2, 4), clock=clock, depth=1).root.rest_s is None
    for spread, rest_s in ((0.05, 0.1), (0.099, 0.1), (0.12, None)):  # spread of the 1 s of the whole
        clock = FakeClock(spread, forward=1.0, blocks_0__forward=0.2925, norm__forward=0.0225)
        rest = run(Stack(), torch.randn(2, 4), clock=clock, depth=1).root.rest_s
        assert rest == (None if rest_s is None else pytest.approx(rest_s))
    assert run(Stack(), torch.randn(2, 4), depth=0).root.rest_s is None


def test_depth_limits_tree_and_timings_and_uncalled_modules_are_named_but_not_containers():
    clock = FakeClock()
    found = run(Stack(), torch.randn(2, 4), clock=clock, depth=0)
    assert (found.root.children, clock.asked) == ((), ["forward", "forward + loss", "backward", "optimizer step"])
    assert found.never_called == (("unused", "Linear"),)


def test_calls_with_different_shapes_have_separate_rows():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).sum() + self.linear(x[:1]).sum() + self.linear(x[:1]).sum()

    rows = {child.inputs: child.calls for child in run(Twice(), torch.randn(2, 4)).root.children}
    assert rows == {"2x4": 1, "1x4": 2}


def test_settings_distinguish_modules_but_dropout_rate_does_not():
    model = nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.2), nn.Dropout(0.0), nn.GELU(), nn.GELU(approximate="tanh"))
    assert sorted(child.calls for child in run(model, torch.randn(2, 4)).root.children) == [1, 1, 1, 2]


def test_without_backward_gradients_are_off():
    recorded = []

    class Recording(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            recorded.append(torch.is_grad_enabled())
            return super().forward(x)

    found = run(Recording(2, 2), torch.randn(1, 2), has_backward=False)
    assert (list(found.passes), set(recorded)) == (["forward"], {False})
    assert torch.is_grad_enabled()


def test_model_and_global_state_are_restored():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU(inplace=True))
    model[1].eval()
    model[0].weight.grad = gradient = torch.ones(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generator, modes = torch.get_rng_state(), [module.training for module in model.modules()]
    found = run(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), optimizer)
    assert (found.optimizer, found.mode, optimizer.state_dict()["state"]) == ("SGD", "mixed", {})
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in model.modules()] == modes
    assert model[0].weight.grad is gradient
    assert model[0].bias.grad is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_error_of_model_names_its_input_and_leaves_no_hook():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))
    with pytest.raises(BenchmarkError, match=r"the model of m:f raised RuntimeError: mat1 .* \(its input: 5x2\)"):
        run(model, torch.randn(5, 2))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_module_that_changes_its_input_gets_a_copy_each_time():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    relu = next(child for child in run(model, torch.randn(3, 2)).root.children if child.kind == "ReLU")
    assert relu.note == "changes its input: timed with a copy of it"
    assert relu.backward is not None


def test_module_that_fails_alone_has_a_note_and_others_are_timed():
    class Needs(nn.Module):
        ready = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                raise LookupError("call my parent")
            return 2 * x

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.needs, self.linear = Needs(), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.needs.ready = True
            y = self.needs(self.linear(x))
            self.needs.ready = False
            return y

    rows = {child.kind: child for child in run(Parent(), torch.randn(3, 2)).root.children}
    assert rows["Needs"].note == "not measured: called alone it raises LookupError: call my parent"
    assert (rows["Needs"].forward, rows["Needs"].share_of_parent) == (None, None)
    assert rows["Linear"].forward == Timing(1.0, 0.0, 5, 1)


def test_replay_restores_autocast_and_gradient_mode():
    recorded = []

    class Recording(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            recorded.append((y.dtype, y.requires_grad))
            return y

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.trained = Recording(2, 2), Recording(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = self.frozen(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.trained(x)

    found = run(Mixed(), torch.randn(3, 2))
    assert set(recorded) == {(torch.float32, False), (torch.bfloat16, True)}
    has_backward = {child.names[0]: child.backward is not None for child in found.root.children}
    assert has_backward == {"frozen": False, "trained": True}


def test_single_use_graph_is_timed_by_difference():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.uses = 0
            return 2 * x

        @staticmethod
        def backward(context, slope):
            context.uses += 1
            if context.uses > 1:
                raise RuntimeError("used twice")
            return 2 * slope

    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Once.apply(super().forward(x))

    found = run(Model(2, 2), torch.randn(3, 2), clock=FakeClock(**{"forward + loss": 2.0, "backward": 5.0}))
    assert found.passes["backward"].median_s == 3.0
    assert "backward by difference: its graph can only be used once" in found.notes


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ((), "sum of the outputs' means"),
        ((torch.zeros(3, dtype=torch.int64),), "cross entropy"),
        ((torch.zeros(3, 2),), "mean squared error"),
        ((nn.MSELoss(), torch.zeros(3, 2)), "MSELoss"),
    ],
)
def test_loss_is_given_or_follows_from_target(rest, words):
    found = run(nn.Linear(4, 2), torch.randn(3, 4), *rest)
    assert (found.loss, list(found.passes)) == (words, ["forward", "forward + loss", "backward", "optimizer step"])


def test_passes_that_cannot_be_measured_are_left_out_with_a_note():
    model = nn.Linear(2, 2)
    found = run(model, torch.randn(3, 2), torch.optim.LBFGS(model.parameters()))  # which needs a closure
    assert "optimizer step" not in found.passes
    assert found.notes[0].startswith("optimizer step not measured: TypeError: ")
    found = run(model.requires_grad_(False), torch.randn(3, 2))
    assert list(found.passes) == ["forward"]
    assert found.notes == ("no output has a gradient: loss, backward and optimizer step are not measured",)


@pytest.mark.parametrize("loss", [lambda output: output, lambda output: 3.0])
def test_loss_that_is_not_a_scalar_is_an_error_with_an_example(loss):
    with pytest.raises(BenchmarkError, match=r"the loss of m:f is .*; expected a scalar tensor, example: "):
        run(nn.Linear(2, 2), torch.randn(3, 2), loss)


def test_components_of_compiled_model_are_timed_uncompiled():
    model = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.GELU()), backend="eager")
    found = run(model, torch.randn(3, 2))
    assert (found.root.kind, kinds(found.root)) == ("Sequential", {"Linear": 1, "GELU": 1})
    assert found.notes[0].startswith("torch.compile: ")


class SlowTimer:
    """Replaces torch's timer: the first block fills the given time, later blocks take 1 ms each."""

    def __init__(self, statement, num_threads, **rest):
        self._spec = TaskSpec(statement, setup="pass", num_threads=num_threads)

    def blocked_autorange(self, min_run_time):
        return Measurement(2, [min_run_time], self._spec)

    def timeit(self, number):
        return Measurement(number, [0.001], self._spec)


def test_blocks_are_added_until_there_are_enough_for_quartiles(monkeypatch):
    monkeypatch.setattr(result, "Timer", SlowTimer)
    shown = []
    timing = TorchStopwatch(1, 0.05, shown.append)("a sum", lambda: sum(range(50)))
    assert timing.measurements == ENOUGH >= 5
    assert timing.median_s == 0.0005
    assert timing.iqr_s == 0
    assert shown == ["a sum"]


def test_number_of_threads_is_set_and_restored():
    thread_counts = set()
    before = torch.get_num_threads()
    timing = TorchStopwatch(1, 0.001)("threads", lambda: thread_counts.add(torch.get_num_threads()))
    assert timing.measurements >= 1
    assert 0 < timing.median_s < 1
    assert thread_counts == {1}
    assert torch.get_num_threads() == before
