"""FLOPs of one step of real trainings: equal to those of torch's own counter, with unchanged losses."""

import importlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import library, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.support.instrumented import InstrumentedTorch, instrumented_torch
from training_profiler.base.peaks import cpu_name, measured_file
from training_profiler.inspections import flop_operations as operations
from training_profiler.inspections.flop_counter import COUNTED_BY
from training_profiler.inspections.flop_operations import MANY, READ_EACH, Operations
from training_profiler.model.interval import StepFlops
from training_profiler.model.program import LongOperators
from training_profiler.sampling.stacks import CallSiteReader

SHADOWED = ("call_begins", "call_ends", "backward_begins", "backward_ends")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 8))


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 8))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)


class Trainer:
    """A training with micro-batches."""

    def __init__(
        self, make: Callable[[], nn.Module], *shape: int, instrumented: InstrumentedTorch | None = None
    ) -> None:
        torch.manual_seed(0)
        self.model, self.x = make(), torch.randn(*shape)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.losses: list[str] = []
        self.instrumented = instrumented

    def steps(self, count: int = 3) -> "Trainer":
        for _ in range(count):
            self.step()
        return self

    def step(self, micro_batches: int = 1) -> None:
        for _ in range(micro_batches):
            loss = self.model(self.x).square().mean()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item().hex())
        self.ended()

    def ended(self) -> None:
        if self.instrumented is not None:
            self.instrumented.instrumentation.flops.step_ended(self.instrumented.steps)


NETS: list[Any] = [
    pytest.param(mlp, (32, 16), id="mlp"),
    pytest.param(conv_net, (4, 3, 10, 10), id="convolutions"),
    pytest.param(encoder, (2, 10, 32), id="transformer"),
]


def flops_of(instrumented: InstrumentedTorch) -> int | None:
    counted = instrumented.instrumentation.flops.counted
    return None if counted is None else counted.flops


@pytest.mark.parametrize(("make", "shape"), NETS)
def test_flops_match_torch_flop_counter(instrumented, make, shape):
    trainer = Trainer(make, *shape)
    with FlopCounterMode(display=False) as counter:
        trainer.model(trainer.x).square().mean().backward()
    Trainer(make, *shape, instrumented=instrumented).steps()
    counted = instrumented.instrumentation.flops.counted
    assert counted[:3] == StepFlops(counter.get_total_flops(), "float32", "")[:3]
    with FlopCounterMode(display=False) as counter:
        trainer.model(trainer.x)
    assert counted.forward == counter.get_total_flops()
    facts = instrumented.instrumentation.program_facts()
    assert 0 < facts.forward.operators < facts.operators
    assert 0 < facts.forward.operators_s < facts.forward.calls_s


def test_the_measured_peak_of_the_cpu_is_kept_with_the_step(instrumented, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = measured_file(cpu_name(torch.get_num_threads()))
    path.parent.mkdir(parents=True)
    path.write_text('{"tflops": {"float32": 0.25}}')
    Trainer(*NETS[0].values[:1], *NETS[0].values[1], instrumented=instrumented).steps()
    assert instrumented.instrumentation.flops.counted.measured_tflops == 0.25


def test_the_line_that_starts_most_operators_is_known(instrumented, monkeypatch):
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.sin()
            for _ in range(1_000):
                x = x.neg()
            return self.inner(x)

    monkeypatch.setattr(instrumented.context.calls, "_read_site", CallSiteReader().read)
    Trainer(Loop, 32, 16, instrumented=instrumented).steps()
    forward, line = instrumented.instrumentation.program_facts().forward, Loop.forward.__code__.co_firstlineno + 3
    assert (forward.place, forward.layer) == (f"tests/instrumentation/test_counter.py:{line}", "")


@pytest.mark.parametrize(("kind", "layer"), [(nn.GRU, "GRU"), (nn.RNN, "RNN"), (nn.GRUCell, "")])
def test_a_recurrent_layer_of_torch_that_loops_by_itself_is_named(instrumented, kind, layer):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = kind(4, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if layer:
                return self.inner(x)[0]
            state = x.new_zeros(2, 8)
            for each in x:
                state = self.inner(each, state)
            return state

    Trainer(Recurrent, 200, 2, 4, instrumented=instrumented).steps()
    assert instrumented.instrumentation.program_facts().forward.layer == layer


def test_lines_are_read_at_random_distances_which_no_loop_has():
    counts = Operations(torch, lambda frame: frame.f_code.co_name)

    def dispatch() -> None:
        counts.count_operator(1_000)

    def first() -> None:
        dispatch()

    def rest() -> None:
        dispatch()

    for count in range(20 * MANY):
        (rest if count % READ_EACH else first)()
    read = {place: count / counts._places.total() for (place, _), count in counts._places.items()}
    assert read["first"] == pytest.approx(1 / READ_EACH, abs=0.05)


def test_recurrent_layers_on_several_lines_are_named_without_one(instrumented, monkeypatch):
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder, self.scorer = (nn.GRU(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            encoded = self.encoder(x)[0]
            decoded = self.decoder(encoded)[0]
            return self.scorer(decoded)[0]

    monkeypatch.setattr(instrumented.context.calls, "_read_site", CallSiteReader().read)
    Trainer(Translator, 200, 2, 4, instrumented=instrumented).steps()
    forward = instrumented.instrumentation.program_facts().forward
    assert (forward.place, forward.layer) == ("", "GRU")


def test_operations_that_take_many_times_the_median_are_long():
    counts = Operations(torch, lambda frame: "")
    for spent_ns in (1_000, 1_000, 1_000, 9_000):
        counts.count_operator(spent_ns)
    counts.is_backward = True
    for spent_ns in (1_000, 50_000, 8_000):
        counts.count_operator(spent_ns)
    facts = counts.facts()
    long_forward, long_backward = facts["long_forward"], facts["long_backward"]
    assert long_forward == LongOperators(1, 9e-6, pytest.approx(12e-6))
    assert long_backward == LongOperators(1, 50e-6, pytest.approx(59e-6))
    assert facts["forward"].operators_s == pytest.approx(12e-6)


@pytest.mark.parametrize("is_on", [True, False])
def test_checks_for_nan_are_those_of_anomaly_detection(is_on):
    counts = Operations(torch, lambda frame: "")
    with torch.autograd.set_detect_anomaly(is_on), operations.counting_mode(counts):
        loss = torch.ones(3, requires_grad=True).exp().sum()
        counts.is_backward = True
        loss.backward()
        loss.item()  # the program's own
    checks = counts.facts()["nan_checks"]
    assert (checks.operators > 0) == is_on
    assert 0 <= checks.seconds <= checks.all_s


def test_an_operation_that_is_usually_short_was_delayed():
    counts = Operations(torch, lambda frame: "")
    for spent_ns in (*[1_000] * 20, 90_000):
        counts.count_operator(spent_ns, "small")
    counts.count_operator(70_000, "large")
    assert counts.facts()["long_forward"] == LongOperators(1, pytest.approx(70e-6), pytest.approx(180e-6))


def penalty(model):
    return sum(parameter.pow(2).sum() for parameter in model.parameters())


def sums_of_products(model):
    return sum((model.inner.weight @ torch.randn(16, 1)).sum() for _ in range(3))


@pytest.mark.parametrize(
    ("loss_of", "of_parameters", "least"), [(penalty, 2, 8), (sums_of_products, 0, 6), (lambda model: 0.0, 0, 0)]
)
def test_what_is_computed_outside_of_modules_is_known(instrumented, loss_of, of_parameters, least):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.sin().pow(2))

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(4, 16)).sum() + loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        instrumented.instrumentation.step_ended(instrumented.steps, counts_flops=True)
    outside = instrumented.instrumentation.program_facts().outside
    assert outside.of_parameters == of_parameters
    assert least <= outside.operators < 40  # the sum itself has one or two
    assert 0 <= outside.seconds < outside.all_s


@pytest.mark.parametrize(("count", "lines"), [(MANY, ("a.py:1",)), (4 * MANY, ("a.py:1", "a.py:2", "a.py:3"))])
def test_few_operators_and_those_of_many_lines_have_none(count, lines):
    places = itertools.cycle(lines)
    counts = Operations(torch, lambda frame: next(places))
    counts._add_place(None)  # of a thread without Python
    for _ in range(count):
        counts.count_operator(1_000)
    assert counts.facts()["forward"][3:] == ("", "")


def test_cpu_attention_is_counted(instrumented):
    Trainer(Attention, 2, 10, 32, instrumented=instrumented).steps()
    linear = 2 * 20 * (32 * 96 + 32 * 8)
    attention = 2 * 2 * (2 * 4) * 10 * 10 * 8  # two products for each head
    # Backward: a product for the weights and one for the inputs, except in the first layer. Attention also
    # recomputes its scores.
    assert flops_of(instrumented) == 3 * linear - 2 * 20 * 32 * 96 + attention + attention * 5 // 2
    assert instrumented.instrumentation.flops.counted.attention == "flash_attention_for_cpu"


@pytest.mark.parametrize(("make", "shape"), [*NETS, pytest.param(Attention, (2, 10, 32), id="attention")])
def test_counting_keeps_losses_bit_identical(make, shape):
    plain = Trainer(make, *shape).steps(5)
    with instrumented_torch() as instrumented:
        counted = Trainer(make, *shape, instrumented=instrumented).steps(5)
    assert instrumented.instrumentation.flops.counted is not None, instrumented.instrumentation.flops.why_not
    assert counted.losses == plain.losses


def test_all_micro_batches_of_a_step_are_counted():
    counts = []
    for micro_batches in (1, 3):
        with instrumented_torch() as instrumented:
            trainer = Trainer(mlp, 32, 16, instrumented=instrumented)
            for _ in range(3):
                trainer.step(micro_batches)
            counts.append(flops_of(instrumented))
    assert counts[1] == 3 * counts[0]


def test_evaluations_are_not_counted_and_a_step_with_gradients_in_eval_mode_is_replaced_by_one_without(instrumented):
    trainer = Trainer(mlp, 32, 16, instrumented=instrumented).steps(2)
    trainer.model.eval()
    trainer.model(trainer.x)
    trainer.model.train()
    trainer.step()
    assert flops_of(instrumented) is None
    with torch.no_grad():
        trainer.model(trainer.x)
    trainer.step()
    assert flops_of(instrumented) == 2 * 32 * (16 * 64 + 64 * 8) + 2 * 32 * (16 * 64 + 2 * 64 * 8)


def test_dtype_is_that_of_most_flops(instrumented):
    trainer = Trainer(mlp, 32, 16, instrumented=instrumented)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = trainer.model(trainer.x).square().mean()
        loss.backward()
        trainer.optimizer.step()
        trainer.ended()
    assert instrumented.instrumentation.flops.counted.dtype == "bfloat16"


def test_one_step_is_counted_and_the_detector_restored(instrumented):
    trainer = Trainer(mlp, 32, 16, instrumented=instrumented)
    trainer.step()
    trainer.step()  # ends the first step, because now the training has a single optimizer
    assert vars(instrumented.context.detector).keys() >= set(SHADOWED)
    trainer.step()
    assert not vars(instrumented.context.detector).keys() & set(SHADOWED)
    assert instrumented.instrumentation.flops.slow_steps == 3
    assert torch._C._len_torch_dispatch_stack() == 0


def test_exception_in_counted_pass_leaves_no_mode(instrumented):
    class Failing(nn.Linear):
        fails = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fails:
                raise ValueError("the user's own")
            return super().forward(x)

    trainer = Trainer(lambda: Failing(16, 8), 4, 16, instrumented=instrumented)
    trainer.step()
    trainer.step()
    trainer.model.fails = True
    with pytest.raises(ValueError, match="the user's own"):
        trainer.step()
    assert torch._C._len_torch_dispatch_stack() == 0
    trainer.model.fails = False
    trainer.step()
    trainer.step()
    assert flops_of(instrumented) == 2 * (2 * 4 * 16 * 8)


def test_run_ending_in_counted_step_leaves_no_mode(instrumented):
    trainer = Trainer(mlp, 32, 16, instrumented=instrumented).steps(2)
    trainer.model(trainer.x)
    detector = instrumented.context.detector
    instrumented.instrumentation.close()
    assert not vars(detector).keys() & set(SHADOWED)
    assert flops_of(instrumented) is None
    assert instrumented.instrumentation.flops.note() is None


def refused(instrumented: InstrumentedTorch, trainer: Trainer, steps: int = COUNTED_BY) -> str | None:
    trainer.steps(steps)
    assert flops_of(instrumented) is None
    assert torch._C._len_torch_dispatch_stack() == 0
    return instrumented.instrumentation.flops.note()


def test_dispatch_mode_of_the_program_prevents_counting(instrumented):
    with FlopCounterMode(display=False):
        Trainer(mlp, 32, 16, instrumented=instrumented).steps()
    assert instrumented.instrumentation.flops.note() == "FLOPs were not counted: another dispatch mode is active"


def test_step_of_a_whole_episode_is_not_counted_to_its_end(instrumented, monkeypatch):
    """An agent that acts 600,000 times before an update took ten times as long: operations went through Python."""
    monkeypatch.setattr(operations, "MOST_COUNTING_NS", 1_000_000)
    monkeypatch.setattr(operations, "COUNTING_NS", 1_000_000)  # more than any of these operations takes
    counted: list[int] = []
    count_operator = Operations.count_operator
    monkeypatch.setattr(
        Operations,
        "count_operator",
        lambda self, spent_ns, kind=None: (counted.append(1), count_operator(self, spent_ns))[1],
    )

    class Agent(Trainer):
        def step(self, micro_batches: int = 1) -> None:
            for _ in range(100):
                self.model(self.x)
            super().step()

    note = refused(instrumented, Agent(mlp, 1, 16, instrumented=instrumented))
    assert note == (
        "FLOPs were not counted: a step starts so many short operations that counting would take longer than they do"
    )
    assert 0 < len(counted) < 50
    assert instrumented.instrumentation.program_facts().uncounted == len(counted)


def test_attention_kernel_without_formula_is_named(instrumented, monkeypatch):
    formulas = importlib.import_module("torch.utils.flop_counter").flop_registry
    kernel = getattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention", None)
    monkeypatch.delitem(formulas, kernel, raising=False)
    counts = Operations(torch, lambda frame: "")
    q = torch.zeros(1, 2, 4, 8)
    counts.add(torch.ops.aten._scaled_dot_product_cudnn_attention.default, (), (q, q, q), {}, (q,))
    assert counts.why_not == "aten._scaled_dot_product_cudnn_attention has no formula"


class Recurrent(nn.Module):
    """Two layers in two directions: 16 -> 2 x 8 -> 2 x 8 -> 4."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(16, 8, num_layers=2, bidirectional=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x)[0])


def test_an_lstm_on_the_cpu_multiplies_each_row_by_its_weights(instrumented):
    Trainer(Recurrent, 5, 3, 16, instrumented=instrumented).steps()
    of_layer = 4 * 8 * (16 + 8)  # both layers have 16 inputs, by 4 gates
    forward = 2 * 5 * 3 * (4 * of_layer + 16 * 4)
    assert flops_of(instrumented) == 3 * forward


class Sharded(nn.Parameter):
    pass


def sharded() -> nn.Module:
    model = nn.Linear(16, 8)
    model.weight = Sharded(model.weight.data)
    return model


def custom() -> nn.Module:
    @library.custom_op("profiler_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.register_autograd(lambda context, grad: 2 * grad)
    return Applied(twice)


class Applied(nn.Linear):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__(16, 8)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(super().forward(x))


def summed(x: torch.Tensor) -> torch.Tensor:
    return torch.addbmm(x, x[None], x[None])


@pytest.mark.parametrize(
    ("make", "shape", "why"),
    [
        (custom, (8, 16), "profiler_tests.twice has no formula"),
        (lambda: Applied(summed), (8, 16), "aten.addbmm has no formula"),
        (Recurrent, (5, 3, 16), "aten.mkldnn_rnn_layer has no formula"),
        (sharded, (4, 16), "it uses tensors of class Sharded"),
        (lambda: torch.jit.script(nn.Sequential(nn.Linear(16, 8))), (4, 16), "it calls modules compiled by torch.jit"),
    ],
)
def test_what_prevents_counting_is_named_in_the_note(instrumented, monkeypatch, make, shape, why):
    monkeypatch.setattr(operations, "CPU_LSTM", "gone")
    monkeypatch.setattr(operations, "NO_FORMULA", (*operations.NO_FORMULA, "mkldnn_rnn_layer"))
    assert refused(instrumented, Trainer(make, *shape, instrumented=instrumented)) == f"FLOPs were not counted: {why}"


def test_forward_pass_outside_modules_gives_no_flops(instrumented):
    weight = torch.randn(64, 64, requires_grad=True)
    trainer = Trainer(lambda: nn.Linear(16, 1), 32, 16, instrumented=instrumented)
    for _ in range(4):
        ((weight @ weight).sum() + trainer.model(trainer.x).sum()).backward()
        trainer.optimizer.step()
        trainer.ended()
    assert flops_of(instrumented) is None
    assert "much of the forward pass runs outside module calls" in instrumented.instrumentation.flops.note()


def test_backward_pass_of_an_earlier_step_is_not_counted(instrumented):
    trainer = Trainer(mlp, 32, 16, instrumented=instrumented)
    loss = trainer.model(trainer.x).square().mean()
    for _ in range(COUNTED_BY):
        loss.backward()
        trainer.optimizer.step()
        loss = trainer.model(trainer.x).square().mean()
        trainer.ended()
    assert flops_of(instrumented) is None
    assert instrumented.instrumentation.flops.note() == "FLOPs were not counted: no step could be counted as a whole"


def test_updates_of_the_programs_own_end_no_step_that_can_be_counted(instrumented):
    model, inputs = mlp(), torch.ones(32, 16)
    for _ in range(COUNTED_BY + 1):
        model.zero_grad()
        loss = model(inputs).square().mean()
        instrumented.instrumentation.flops.step_ended(instrumented.steps + 1)  # the backward pass finds the update
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
    assert flops_of(instrumented) is None
    assert "an update that the program makes itself shows only" in instrumented.instrumentation.flops.note()


def test_error_in_counting_is_noted_and_harmless(instrumented, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.flop_counter", None)
    Trainer(mlp, 32, 16, instrumented=instrumented).steps()
    assert "FLOPs were not counted: ModuleNotFoundError" in instrumented.instrumentation.flops.note()
    assert instrumented.counts()["forward_pass"] == 3


def test_step_under_torch_profiler_is_not_counted(instrumented):
    trainer = Trainer(mlp, 32, 16, instrumented=instrumented)
    trainer.step()
    with torch.profiler.profile() as profile:
        trainer.steps()
    assert {row.key: row.count for row in profile.key_averages()}["aten::addmm"] == 6
    assert flops_of(instrumented) is None
    trainer.steps(2)
    assert flops_of(instrumented) is not None
