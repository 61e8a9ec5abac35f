"""Objects of the program stay unchanged, so copying, pickling and loading with an allow-list still work."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.instrumented import instrumented_torch


class Training:
    """A short deterministic training with validation, weight averaging and a schedule."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        self.loss = nn.MSELoss()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.loader = DataLoader(TensorDataset(torch.randn(6, 2), torch.randn(6, 1)), batch_size=2)

    def run(self):
        for inputs, targets in self.loader:
            self.optimizer.zero_grad()
            self.loss(self.model(inputs.to("cpu")), targets).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.average.update_parameters(self.model)
        with torch.no_grad():
            for inputs, _ in self.loader:
                self.average(inputs)
        return self

    @property
    def objects(self):
        return {**vars(self), **{f"model.{name}": module for name, module in self.model.named_modules() if name}}


NAMES = tuple(Training().objects)


@pytest.fixture(scope="module")
def plain() -> Training:
    return Training().run()


@pytest.fixture
def trained(instrumented) -> Training:
    """A model trained while instrumented, with the patches still installed."""
    return Training().run()


class Reading(pickle.Unpickler):
    """Records the classes and functions it is asked for."""

    def __init__(self, data):
        super().__init__(io.BytesIO(data))
        self.asked_for = []

    def find_class(self, module, name):
        self.asked_for.append((module, name))
        return super().find_class(module, name)


def names_in(data):
    reading = Reading(data)
    reading.load()
    return reading.asked_for


@pytest.mark.parametrize("name", NAMES)
def test_objects_and_their_copies_and_pickles_are_as_without_us(plain, trained, name):
    theirs, ours = plain.objects[name], trained.objects[name]
    for their, our in ((theirs, ours), (copy.deepcopy(theirs), copy.deepcopy(ours))):
        assert type(our) is type(their)
        assert [(key, type(value)) for key, value in vars(our).items()] == [
            (key, type(value)) for key, value in vars(their).items()
        ]
    read = names_in(pickle.dumps(ours))
    assert read == names_in(pickle.dumps(theirs))
    assert not any("profiler" in word for names in read for word in names)


def test_deleted_model_is_not_kept_alive(instrumented):
    training = Training().run()
    kept = [weakref.ref(one) for one in (training.model, training.optimizer, training.loader)]
    del training
    gc.collect()
    assert [reference() for reference in kept] == [None, None, None]


class OwnCall(nn.Linear):
    """Replaces ``__call__`` as models of gpytorch do."""

    def __call__(self, inputs):
        return self.forward(inputs)


def test_a_replaced_call_is_the_programs_again_afterwards():
    class Before(OwnCall):
        def __call__(self, inputs):
            return super().__call__(2 * inputs)

    theirs = vars(OwnCall)["__call__"], vars(Before)["__call__"]
    with instrumented_torch():

        class Later(nn.Linear):
            def __call__(self, inputs):
                return self.forward(inputs)

        with pytest.raises(TypeError, match=r"Wrong\.__init_subclass__\(\) takes no keyword arguments"):

            class Wrong(OwnCall, color="red"):
                pass

        models = [kind(2, 1) for kind in (OwnCall, Before, Later)]
        assert all(isinstance(model(torch.ones(1, 2)), torch.Tensor) for model in models)
        assert vars(OwnCall)["__call__"] is not theirs[0]
    assert (vars(OwnCall)["__call__"], vars(Before)["__call__"]) == theirs
    assert not hasattr(Later.__call__, "__wrapped__")
    assert "__init_subclass__" not in vars(nn.Module)


def test_a_class_that_replaces_its_call_is_copied_by_cloudpickle(instrumented):
    cloudpickle = pytest.importorskip("cloudpickle")

    class Copied(nn.Linear):
        def __call__(self, inputs):
            return self.forward(inputs)

    model = Copied(2, 1)
    copied = pickle.loads(cloudpickle.dumps(model))
    assert torch.equal(copied(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_a_compiled_model_that_replaces_its_call_is_one_graph(request):
    torch.compile(nn.Linear(2, 1), backend="eager")(torch.ones(1, 2))  # the first one changes classes of torch
    request.getfixturevalue("instrumented")
    model = OwnCall(2, 1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(1, 2)), model(torch.ones(1, 2)))
