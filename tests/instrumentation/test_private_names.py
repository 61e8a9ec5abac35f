"""Names of torch on which the profiler relies without a promise of torch: each is there, and is what it is taken for.

These tests also run on the newest torch (``make test TORCH=newest``), so that a change there is seen here first.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import pytest
import torch
from torch.utils.data import DataLoader, dataloader

import training_profiler
from tests.support.instrumented import InstrumentedTorch
from tests.support.versions import TORCH

STEPS: Final = 40
PACKAGE: Final = Path(training_profiler.__file__).parent
BUILTIN: Final = BuiltinFunctionType
DATALOADER: Final = "torch.utils.data.dataloader"
FETCH: Final = "torch.utils.data._utils.fetch"
PROFILER: Final = "torch.autograd.profiler"
FRAMES: Final = "torch._C._dynamo.eval_frame"
TRACERS: Final = "torch.jit."
FUNCTORCH: Final = "torch._C._functorch"

# By dotted path; of objects, `EXAMPLES` has one. Public names stand here where we rely on more than their promise.
PRIVATE: Final[dict[str, Any]] = {
    # data loading
    f"{DATALOADER}._BaseDataLoaderIter.__next__": FunctionType,
    f"{DATALOADER}._MultiProcessingDataLoaderIter.__init__": FunctionType,
    f"{DATALOADER}._MultiProcessingDataLoaderIter._shutdown_workers": FunctionType,
    f"{DATALOADER}._MultiProcessingDataLoaderIter._reset": FunctionType,
    "torch.utils.data._utils.worker._worker_loop": FunctionType,
    "torch.utils.data._utils.collate": ModuleType,
    f"{FETCH}._MapDatasetFetcher.fetch": FunctionType,
    f"{FETCH}._IterableDatasetFetcher.fetch": FunctionType,
    "loader._dataset_kind": int,
    "loader._index_sampler": object,
    "loader._iterator": type(None),
    "iterator._collate_fn": FunctionType,
    "iterator._dataset": list,
    "iterator._index_sampler": object,
    "iterator._num_yielded": int,
    "iterator._persistent_workers": bool,
    "workers._rcvd_idx": int,
    "workers._send_idx": int,
    "workers._shutdown": bool,
    "workers._task_info": dict,
    "workers._tasks_outstanding": int,
    "workers._workers": list,
    # modules
    "torch.nn.Module.__call__": FunctionType,
    "torch.nn.Module._call_impl": FunctionType,
    "torch.nn.Module._wrapped_call_impl": FunctionType,
    "torch.nn.modules.batchnorm._BatchNorm": type,
    "torch.nn.modules.batchnorm._NormBase": type,
    "module._buffers": dict,
    "module._compiled_call_impl": type(None),
    "module._forward_hooks": dict,
    "module._forward_pre_hooks": dict,
    "module._modules": dict,
    "module._parameters": dict,
    # gradients and updates
    "torch.autograd.backward": FunctionType,
    "torch.autograd.Function.apply": (MethodType, BUILTIN),
    "torch.optim.optimizer.register_optimizer_step_pre_hook": FunctionType,
    "torch.optim.optimizer.register_optimizer_step_post_hook": FunctionType,
    "torch._C._autograd._get_sequence_nr": BUILTIN,
    "torch._C._current_autograd_node": BUILTIN,
    "torch._C._current_graph_task_id": BUILTIN,
    "tensor._base": type(None),
    "tensor._version": int,
    "node._sequence_nr": BUILTIN,
    # ranks
    "torch.nn.parallel.DistributedDataParallel._ddp_init_helper": FunctionType,
    "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data": FunctionType,
    "torch.nn.parallel.DistributedDataParallel._sync_buffers": FunctionType,
    "torch.nn.parallel.DistributedDataParallel._set_ddp_runtime_logging_sample_rate": FunctionType,
    "torch.distributed.Reducer.prepare_for_backward": object,
    "torch.distributed.distributed_c10d._get_default_store": FunctionType,
    "torch.distributed._functional_collectives.traceable_collective_remaps": dict,
    # modes, torch.func and graphs
    "torch._C._len_torch_function_stack": BUILTIN,
    "torch._C._get_function_stack_at": BUILTIN,
    "torch.utils._python_dispatch.TorchDispatchMode": type,
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack": FunctionType,
    f"{FUNCTORCH}.peek_interpreter_stack": BUILTIN,
    f"{FUNCTORCH}.get_interpreter_stack": BUILTIN,
    f"{FUNCTORCH}.get_unwrapped": BUILTIN,
    f"{FUNCTORCH}.is_batchedtensor": BUILTIN,
    f"{FUNCTORCH}.is_functorch_wrapped_tensor": BUILTIN,
    f"{FUNCTORCH}.maybe_get_level": BUILTIN,
    f"{FUNCTORCH}.TransformType.Vmap": object,
    "torch.utils.flop_counter.flop_registry": dict,
    "operation._overloadpacket": object,
    # the compiler
    "torch._TorchCompileInductorWrapper.__init__": FunctionType,
    "torch._TorchCompileWrapper.__init__": FunctionType,
    "torch._guards.TracingContext.try_get": FunctionType,
    "torch._dynamo.callback.callback_handler.start_callbacks": list,
    "torch._dynamo.callback.callback_handler.end_callbacks": list,
    "torch._dynamo.eval_frame.cached_backends": dict,
    "torch._dynamo.symbolic_convert.InstructionTranslator.__init__": FunctionType,
    "torch._dynamo.utils.compilation_time_metrics": dict,
    "torch._dynamo.utils.counters": dict,
    "torch._dynamo.utils.get_compilation_metrics": FunctionType,
    f"{FRAMES}.set_eval_frame": BUILTIN,
    f"{FRAMES}.skip_code" if TORCH < (2, 7) else f"{FRAMES}.set_code_exec_strategy": BUILTIN,
    # tracers
    "torch.jit._builtins._get_builtin_table": FunctionType,
    "torch.jit._builtins._register_builtin": FunctionType,
    "torch.jit._trace._get_trace_graph": FunctionType,
    "torch.jit._trace.trace": FunctionType,
    "torch.jit._trace.trace_module": FunctionType,
    "torch._subclasses.FakeTensorMode.__enter__": FunctionType,
    "torch._subclasses.FakeTensorMode.__exit__": FunctionType,
    # profilers
    f"{PROFILER}._disable_profiler": BUILTIN,
    f"{PROFILER}._enable_profiler": BUILTIN,
    f"{PROFILER}._is_profiler_enabled": bool,
    f"{PROFILER}._prepare_profiler": BUILTIN,
    f"{PROFILER}._run_on_profiler_stop": FunctionType,
    "torch.autograd._enable_record_function": BUILTIN,
    "torch.autograd.profiler_legacy._enable_profiler_legacy": BUILTIN,
    "torch._C._autograd._profiler_enabled": BUILTIN,
    "torch._C._get_privateuse1_backend_name": BUILTIN,
}
if TORCH >= (2, 6):  # before, batches always come in order
    PRIVATE["workers._in_order"] = bool
if TORCH >= (2, 7):
    PRIVATE[f"{FRAMES}._FrameAction.SKIP"] = PRIVATE[f"{FRAMES}._FrameExecStrategy"] = object
LATER: Final = ("_FrameAction", "_FrameExecStrategy", "_in_order")  # not needed in a torch that lacks them
# The patch that is left out without the name.
PATCHED: Final = {
    f"{DATALOADER}._MultiProcessingDataLoaderIter.__init__": "data loading",
    f"{DATALOADER}._MultiProcessingDataLoaderIter._shutdown_workers": "data loading",
    "torch.utils.data._utils.worker._worker_loop": "loader workers",
    "torch.autograd.Function.apply": "autograd functions",
    "torch.optim.optimizer.register_optimizer_step_pre_hook": "optimizer",
    "torch.optim.optimizer.register_optimizer_step_post_hook": "optimizer",
    "torch.nn.parallel.DistributedDataParallel._ddp_init_helper": "gradient synchronization",
    "torch._TorchCompileInductorWrapper.__init__": "arguments of calls",
    "torch._TorchCompileWrapper.__init__": "arguments of calls",
    **dict.fromkeys((path for path in PRIVATE if path.startswith(TRACERS)), "tracers"),
}
# Without these torch itself trains nothing.
NEEDED_BY_TORCH: Final = (
    f"{DATALOADER}._BaseDataLoaderIter.__next__",
    "torch.utils.data._utils.collate",
    f"{FETCH}._MapDatasetFetcher.fetch",
    "torch.nn.Module.__call__",
    "torch.nn.Module._call_impl",
    "torch.autograd.backward",
    "torch._C._get_privateuse1_backend_name",
    "torch._dynamo.eval_frame.cached_backends",  # at the first call of a function that the compiler leaves out
)
DISPENSABLE: Final = [path for path in PRIVATE if path.startswith("torch.") and path not in NEEDED_BY_TORCH]

# Private names in the package that are not torch's: Python's, operators', of frames of other libraries, and ours.
NOT_OF_TORCH: Final = {
    *("_asdict", "_exit", "_fields", "_getframe", "_inheriting", "_initializing", "_is_gil_enabled", "_replace"),
    *("_addmm_activation", "_backward", "_c10d_functional", "_cudnn_rnn", "_grouped_mm", "_is_any_true"),
    *("_local_scalar_dense", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_grouped_mm"),
    *("_call_and_handle_interrupt", "_feed", "_fingerprint", "_profiler_", "_signal"),
    "_pin_memory_thread",  # has a test of its own
    "_compile",  # in a name of compilation_time_metrics
    "_should_skip_dynamo",  # of our own mode, for torch to read
}
STAGES_OF_TRAININGS: Final = (
    *("instrumentation", "recording", "device", "loader_workers"),
    *("torch_capture", "ranks", "runtime"),
)


@pytest.fixture(scope="module")
def examples() -> Iterator[dict[str, Any]]:
    loader = DataLoader([0, 1])
    workers = iter(DataLoader([0, 1], num_workers=1))
    yield {
        "torch": torch,
        "loader": loader,
        "iterator": iter(loader),
        "workers": workers,
        "module": torch.nn.Linear(1, 1),
        "tensor": torch.ones(1),
        "node": (torch.ones(1, requires_grad=True) * 2).grad_fn,
        "operation": torch.ops.aten.add.Tensor,
    }
    workers._shutdown_workers()


def parent_and_name(path: str, examples: dict[str, Any]) -> tuple[Any, str]:
    """Return the object of which a dotted path names an attribute, and the name."""
    *parents, name = path.split(".")
    value, dotted = examples[parents[0]], parents[0]
    for part in parents[1:]:
        dotted += f".{part}"
        if (isinstance(value, ModuleType) and not hasattr(value, part)) or dotted == "torch.optim.optimizer":
            value = importlib.import_module(dotted)
        else:
            value = getattr(value, part)
    return value, name


@pytest.mark.parametrize("path", PRIVATE)
def test_private_name_of_torch_is_there_and_of_its_kind(path: str, examples: dict[str, Any]) -> None:
    parent, name = parent_and_name(path, examples)
    assert isinstance(getattr(parent, name), PRIVATE[path])


def test_thread_that_pins_memory_has_its_name() -> None:
    """It exists with an accelerator alone."""
    assert "_pin_memory_thread" in dataloader._MultiProcessingDataLoaderIter.__init__.__code__.co_names


def train() -> list[float]:
    """Train for longer than all inspections of first steps last; return the losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in DataLoader(torch.rand(STEPS * 2, 4), batch_size=2):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@cache
def losses_alone() -> list[float]:
    return train()


def train_instrumented() -> tuple[list[float], InstrumentedTorch]:
    one = InstrumentedTorch()
    one.at_step_ends = lambda: one.instrumentation.step_ended(one.steps, True)
    one.instrumentation.install(torch)
    try:
        return train(), one
    finally:
        one.instrumentation.close()


def test_every_patch_has_its_place_in_this_torch() -> None:
    losses, one = train_instrumented()
    assert one.instrumentation.missing == {}
    assert not any(note.startswith("not instrumented") for note in one.instrumentation.notes())
    assert one.steps == len(losses) == STEPS


def check_without(path: str) -> None:
    losses, one = train_instrumented()
    missing = set(one.instrumentation.missing)
    assert missing == {PATCHED[path]} if path in PATCHED else missing <= {"compiler", "tracers"}
    assert losses == losses_alone()
    assert one.steps == STEPS  # without its hooks, torch's optimizers are seen by the parameters that change


@pytest.mark.parametrize("path", [path for path in DISPENSABLE if not path.endswith(".__init__")])
def test_name_that_is_gone_costs_one_patch_at_most(path: str, examples: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.delattr(*parent_and_name(path, examples))
    check_without(path)


@pytest.mark.parametrize("path", DISPENSABLE)
def test_name_of_another_kind_costs_one_patch_at_most(path: str, examples: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(*parent_and_name(path, examples), 7)
    check_without(path)


def private_names(file: Path) -> set[str]:
    """Return the private names that a file takes from elsewhere, as attributes or in strings."""
    nodes, own, names = list(ast.walk(ast.parse(file.read_text()))), set(), set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                own.add(name)
            case ast.Attribute(attr=name):
                names.add(name)
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.]+", text):
                names.update(text.split("."))
    return {name for name in names - own if re.fullmatch(r"_[A-Za-z]\w*", name)}


def test_every_private_name_that_a_training_meets_is_in_the_list() -> None:
    listed = {*(part for path in PRIVATE for part in path.split(".")), *NOT_OF_TORCH, *LATER}
    found = {
        name: file.name
        for stage in STAGES_OF_TRAININGS
        for file in (PACKAGE / stage).rglob("*.py")
        for name in private_names(file)
    }
    assert {name: file for name, file in found.items() if name not in listed} == {}
