"""Calls whose arguments decide how fast a training is are remembered with the user's line, and torch is as before."""

import sys
import textwrap
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.instrumented import changed_since, state_of_torch
from training_profiler.instrumentation import call_sites
from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patches import calls
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.sampling.stacks import CallSiteReader

DATA = TensorDataset(torch.zeros(8, 2))


@pytest.fixture
def remembered():
    """Instrument torch; return what it remembers of the program's calls."""
    before = state_of_torch()
    instrumentation = Instrumentation(Recorder(), lambda: None, read_site=CallSiteReader().read)
    instrumentation.install(torch)
    yield instrumentation.context.calls
    instrumentation.uninstall()
    assert changed_since(before) == []
    assert instrumentation.missing == {}


def here() -> int:
    return sys._getframe(1).f_lineno


def test_a_loader_knows_its_line_its_column_and_its_arguments(remembered):
    loaders = [
        DataLoader(
            DATA,
            batch_size=4,
        )
    ]
    (call,) = remembered.facts()
    assert (call.kind, call.function) == ("loader", "DataLoader")
    assert call.site.file.endswith("test_calls.py")
    assert call.site.path == __file__
    assert (call.site.line, call.site.column, call.site.inside) == (here() - 9, 8, "")
    assert dict(call.arguments) == {"num_workers": "0", "persistent_workers": "False", "pin_memory": "False"}
    assert len(loaders) == 1


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_detection_knows_its_line_where_it_is_switched_on(remembered):
    with torch.autograd.set_detect_anomaly(False), torch.autograd.detect_anomaly(check_nan=False):
        assert torch.is_anomaly_enabled()
    with torch.autograd.set_detect_anomaly(True):
        pass
    found = [(call.kind, call.function, call.site.line - here()) for call in remembered.facts()]
    assert found == [
        ("anomaly", "torch.autograd.detect_anomaly", -4),
        ("anomaly", "torch.autograd.set_detect_anomaly", -2),
    ]


def test_a_call_repeated_at_one_line_is_one_with_its_last_arguments(remembered):
    for workers in (1, 0):
        DataLoader(DATA, num_workers=workers)
    (call,) = remembered.facts()
    assert dict(call.arguments)["num_workers"] == "0"


def test_optimizers_and_threads_are_remembered(remembered):
    model = nn.Linear(2, 2)
    torch.optim.AdamW(model.parameters(), foreach=False)
    torch.set_num_threads(torch.get_num_threads())
    found = [(call.function, dict(call.arguments), call.site.line - here()) for call in remembered.facts()]
    assert found == [
        ("AdamW", {"foreach": "False", "fused": "None"}, -2),
        ("torch.set_num_threads", {"threads": str(torch.get_num_threads())}, -1),
    ]


def test_compilers_are_remembered_by_the_object_that_each_makes():
    class Compiler:
        def __init__(self, mode, options, dynamic, name=None):
            self.mode = mode

    other = types.SimpleNamespace(
        utils=types.SimpleNamespace(data=types.SimpleNamespace(DataLoader=type("DataLoader", (), {}))),
        set_num_threads=print,
        _TorchCompileInductorWrapper=Compiler,
    )
    patches = Patches()
    context = PatchContext(Recorder(), lambda: None, lambda error: None, read_site=CallSiteReader().read)
    calls.install(patches, context, other)
    assert Compiler("max-autotune", None, dynamic=True).mode == "max-autotune"
    patches.undo()
    (call,) = context.calls.facts()
    assert (call.kind, call.function, call.site.line) == ("compile", "torch.compile", here() - 3)
    assert dict(call.arguments) == {"mode": "'max-autotune'", "dynamic": "True"}


def in_file(filename: str, source: str) -> types.ModuleType:
    module = types.ModuleType("made")
    exec(compile(textwrap.dedent(source), filename, "exec"), vars(module))
    return module


LIBRARY = """
    from torch.utils.data import DataLoader
    def prepare(data, **arguments):
        return DataLoader(data, **arguments)
    def again(loader):
        return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)
"""


def test_a_librarys_call_has_the_users_line_and_the_librarys(remembered):
    library = in_file("/env/lib/python3/site-packages/acme/data.py", LIBRARY)
    library.prepare(DATA, num_workers=0)
    (call,) = remembered.facts()
    assert call.site.line == here() - 2
    assert call.site.inside == "acme/data.py:4 prepare"
    assert call.text.endswith("pin_memory=False; made in acme/data.py:4 prepare")


def test_a_loader_that_a_library_makes_again_is_the_users(remembered):
    library = in_file("/env/lib/python3/site-packages/acme/data.py", LIBRARY)
    own = DataLoader(DATA)
    line = here() - 1
    library.again(own)
    assert remembered.site_of_loader(own.batch_sampler).place.endswith(f"test_calls.py:{line}")


def test_zeros_that_are_asked_for_are_remembered(remembered):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer.zero_grad()
    optimizer.zero_grad(set_to_none=True)
    assert [call.kind for call in remembered.facts()] == ["optimizer"]
    optimizer.zero_grad(set_to_none=False)
    assert remembered.facts()[1].text.endswith(f"test_calls.py:{here() - 1}: set_to_none=False")


def test_ddp_has_the_arguments_that_can_be_changed():
    module = types.SimpleNamespace(gradient_as_bucket_view=False, static_graph=True, bucket_bytes_cap=26214400)
    sites = call_sites.CallSites(CallSiteReader().read)
    sites.add_ddp(module)
    (call,) = sites.facts()
    expected = {"gradient_as_bucket_view": "False", "static_graph": "True", "bucket_cap_mb": "25.0"}
    assert (call.kind, dict(call.arguments)) == ("ddp", expected)


def test_a_sampler_that_is_gone_is_not_mistaken_for_another():
    sites = call_sites.CallSites(CallSiteReader().read)
    loader = DataLoader(DATA)
    sites.add_loader(loader)
    identity = id(loader.batch_sampler)
    assert sites.site_of_loader(loader.batch_sampler)
    del loader
    others = [DataLoader(DATA).batch_sampler for _ in range(50)]
    assert [sites.site_of_loader(other) for other in others if id(other) == identity] in ([], [None])
    assert sites.site_of_loader(object()) is None


def test_a_program_that_makes_an_optimizer_in_each_step_is_read_a_few_times(monkeypatch):
    read = []
    sites = call_sites.CallSites(lambda frame: read.append(frame))
    for _ in range(call_sites.MOST_READ + 100):
        sites.add("optimizer", "SGD", {})
    assert len(read) == call_sites.MOST_READ
    assert sites.facts() == ()


def test_what_cannot_be_described_raises_nothing():
    class Odd:
        @property
        def num_workers(self):
            raise RuntimeError("not yet")

    sites = call_sites.CallSites(lambda frame: 1 / 0)
    for add in (sites.add_loader, sites.add_optimizer, sites.add_ddp):
        add(Odd())
    assert sites.facts() == ()
