"""What a program calls its loaders, from the source of the lines that make them; each row is one way to hold them."""

import textwrap

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.support.instrumented import instrumented_torch
from training_profiler.instrumentation.loop_detection.loader_passes import KnownLoaders
from training_profiler.model.program import CallSite
from training_profiler.recording.data_loader import LoaderRegistry

SEVEN = TensorDataset(torch.zeros(7, 2))
HEAD = """
import torch
from itertools import cycle
from torch.utils.data import DataLoader

class Own(DataLoader):
    def __init__(self, data):
        super().__init__(data, batch_size=2)

class Holder:
    def __init__(self):
        self.train_loader = DataLoader(seven)

def made():
    loader = DataLoader(seven)
    return loader

def passed_on():
    return made()

def both():
    return DataLoader(seven), DataLoader(seven)

def run(fit, **others):
    return others or fit
"""
# lines that make loaders, an expression that lists them, and the names that they have
ROWS = {
    "variable": ("train = DataLoader(seven)", "[train]", ["train"]),
    "two of a line": ("a, b = DataLoader(seven), DataLoader(seven)", "[a, b]", ["a", "b"]),
    "returned": ("a, b = both()", "[a, b]", ["a", "b"]),
    "a function's own variable": ("a, b = made(), passed_on()", "[a, b]", ["a", "b"]),
    "attribute": ("holder = Holder()", "[holder.train_loader]", ["train_loader"]),
    "own class": ("own = Own(seven)", "[own]", ["own"]),
    "keys": ("x = {'a': DataLoader(seven), 'b': made()}", "x.values()", ["a", "b"]),
    "a key": ("x = {}\nx['a'] = DataLoader(seven)", "x.values()", ["a"]),
    "computed keys": ("x = {k: DataLoader(seven) for k in 'ab'}", "x.values()", ["a", "b"]),
    "keys in a loop": ("x = {}\nfor k in 'ab':\n    x[k] = made()", "x.values()", ["a", "b"]),
    "list": ("x = [DataLoader(seven) for _ in 'ab']", "x", ["x[0]", "x[1]"]),
    "unpacked": ("a, b = (DataLoader(seven) for _ in 'ab')", "[a, b]", ["a", "b"]),
    "argument": ("x = run(1, val=DataLoader(seven))", "x.values()", ["val"]),
    "wrapped": ("x = iter(DataLoader(seven))", "[x]", ["x"]),
    "chosen": ("x = DataLoader(seven) if seven else None", "[x]", ["x"]),
    "of a function that keeps it": ("x = run(DataLoader(seven))", "[x]", ["TensorDataset(7)"]),
}


def names_of(source, loaders, tmp_path):
    path = tmp_path / "program.py"
    lines = textwrap.indent(f"{source}\nreturn {loaders}", "    ")
    path.write_text(f"{HEAD}\ndef main():\n{lines}\n")

    def read(frame):
        while frame is not None and frame.f_code.co_filename != str(path):
            frame = frame.f_back
        return None if frame is None else CallSite("program.py", frame.f_lineno, str(path))

    with instrumented_torch() as instrumented:
        calls = instrumented.context.calls
        calls._read_site = read
        variables = {"seven": SEVEN}
        exec(compile(path.read_text(), str(path), "exec"), variables)
        made = variables["main"]()
        known = KnownLoaders(LoaderRegistry(), names_of=calls.names_of_loader)
        return [known.counts_of(iter(loader)).name for loader in made]


@pytest.mark.parametrize("row", ROWS)
def test_a_loader_has_the_name_of_what_holds_it(row, tmp_path):
    source, loaders, names = ROWS[row]
    assert names_of(source, loaders, tmp_path) == names


def test_loaders_of_libraries_are_named_by_their_data_sets():
    class Numbers(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    with instrumented_torch() as instrumented:
        known = KnownLoaders(LoaderRegistry(), names_of=instrumented.context.calls.names_of_loader)
        loaders = [DataLoader(SEVEN), DataLoader(Numbers())]
        assert [known.counts_of(iter(loader)).name for loader in loaders] == ["TensorDataset(7)", "Numbers"]
