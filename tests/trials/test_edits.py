"""Edits apply with ``patch``, keep the formatting, and have the effect; where that is not sure, the reader edits."""

import inspect
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tests.support.golden import assert_golden
from training_profiler.base.errors import MissingExtraError
from training_profiler.model.program import LOADER, OPTIMIZER, THREADS, CallFacts, CallSite
from training_profiler.trials import edits
from training_profiler.trials.edits import CannotEditError, edited, edited_source
from training_profiler.trials.source_edit import POSITIONS
from training_profiler.trials.treatment import Edit

WORKERS = (("num_workers", "2"),)
FUNCTIONS = {LOADER: "DataLoader", OPTIMIZER: "Adam", THREADS: "torch.set_num_threads"}


def edit_at(source: str, mark: str, kind: str = LOADER, path: str = "/w/train.py", **change) -> Edit:
    """Return an edit of the call that begins at ``mark``."""
    before = source[: source.index(mark)]
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2].encode())
    return Edit(CallFacts(kind, FUNCTIONS[kind], CallSite("train.py", line, path, column)), **change)


def after(source: str, mark: str, kind: str = LOADER, **change) -> str:
    return edited_source(source, edit_at(source, mark, kind, **(change or {"arguments": WORKERS})))


# The sources of edits, by the begin of the call: an argument of a loader, a statement before an optimizer, an own call.
ARGUMENTS = {
    "DataLoader": (
        "x = DataLoader(data)\n",
        "x = DataLoader()\n",
        "x = DataLoader(data, num_workers = 0) # c\n",
        "x = DataLoader(data, num_workers=args.workers,)\n",
        "x = DataLoader(data, 8, True, None, None, 0)\n",
        "x = DataLoader(\n    data,\n)\n",
        "x = DataLoader(\n    data,\n    batch_size=8\n)\n",
        "x = DataLoader(\n    data,  # all\n    batch_size=8,  # few\n)\n",
        "x = DataLoader(data,\n               shuffle=True)\n",
        "x = DataLoader(data, **options, num_workers=0)\n",
        "x = prepare(DataLoader(one(data)), y)\n",
        "é = 'ü', DataLoader(data)\n",
        "if x:\r\n\ty = DataLoader(data)\r\n",
        "x = DataLoader(data).dataset",
        "x = DataLoader(data, **options)\n",
        "x = DataLoader(*args)\n",
        "x = DataLoader(i for i in y)\n",
        "x = DataLoader(data\n",
    ),
    "tud.DataLoader(": ("import torch.utils.data as tud\nx = tud.DataLoader(data)\n",),
    "DL(data": ("from torch.utils.data import DataLoader as DL\nx = DL(data)\n",),
    "make(data": ("make = partial(DataLoader, batch_size=4)\nx = make(data)\n",),
    "Loader(data": ("Loader = torch.utils.data.DataLoader\nx = Loader(data)\n",),
    "Mine(data": (
        "class Mine(DataLoader):\n    size = 1\nx = Mine(data)\n",
        "class Mine(DataLoader):\n    def __init__(self): pass\nx = Mine(data)\n",
    ),
    "super().__init__(": ("class Mine(DataLoader):\n    def __init__(self, data):\n        super().__init__(data)\n",),
    "list(": ("x = list(map(DataLoader, sets))\n",),
    "kinds": ("x = kinds[name](data)\n",),
    "1": ("x = 1\n\n\n\n",),
}
STATEMENTS = {
    "torch.optim.Adam": (
        "import torch\nopt = torch.optim.Adam(net.parameters())\n",
        "import torch\nopt = torch.optim.Adam(list(self.net.parameters()), lr=1)\n",
        "from torch import nn\nopt = torch.optim.Adam(net.parameters())\n",
    ),
    "Adam": (
        "import torch\ndef main():\n\n    # the optimizer\n    opt = Adam(net.parameters())\n",
        "opt = Adam(parameters)\n",
        "opt = Adam([*a.parameters(), *b.parameters()])\n",
        "opt = Adam(make().parameters())\n",
        "opt = lambda net: Adam(net.parameters())\n",
        "if x: opt = Adam(net.parameters())\n",
        "with Adam(net.parameters()):\n    pass\n",
    ),
}
OWN_CALLS = {"torch": ("torch.set_num_threads(8)\n", "torch.set_num_threads(*n)\n")}
STATEMENT = {"kind": OPTIMIZER, "statement": "{model}.compile()\nprint()", "module": "torch"}
THREAD = {"kind": THREADS, "arguments": (("0", "1"),)}


def test_an_edit_keeps_the_rest_and_what_is_not_sure_is_left_to_the_reader():
    texts = []
    for table, change in ((ARGUMENTS, {}), (STATEMENTS, STATEMENT), (OWN_CALLS, THREAD)):
        for source, mark in ((source, mark) for mark, sources in table.items() for source in sources):
            try:
                found = repr(after(source, mark, **change))
            except CannotEditError as error:
                found = f"left to the reader: {error}"
            texts.append(f"##### {source!r}\n{found}\n")
    assert_golden(Path(__file__).parents[1] / "golden" / "reports" / "edits.txt", "".join(texts))


def test_positions_are_those_of_torch():
    functions = {
        "DataLoader": DataLoader.__init__,
        "DistributedDataParallel": DistributedDataParallel.__init__,
        "zero_grad": torch.optim.Optimizer.zero_grad,
    }
    for name, positions in POSITIONS.items():
        names = list(inspect.signature(functions[name]).parameters)[1:]
        assert {argument: names.index(argument) for argument in positions} == positions


SCRIPT = """\
    from torch import nn, optim, zeros
    from torch.utils.data import DataLoader, TensorDataset
    data = TensorDataset(zeros(8, 2))
    net = nn.Linear(2, 2)
    loader = DataLoader(
        data,
        batch_size=4,  # few
    ); other = DataLoader(data, num_workers=0)
    optimizer = optim.Adam(net.parameters(), lr=0.1, foreach=True)
"""


def test_the_edited_script_has_the_arguments_in_force(tmp_path):
    source, path = textwrap.dedent(SCRIPT), tmp_path / "train.py"
    path.write_text(source)
    of_path = {"path": str(path)}
    done = edited(
        [
            edit_at(source, "DataLoader(\n", arguments=WORKERS, **of_path),
            edit_at(source, "DataLoader(data, ", arguments=WORKERS, **of_path),
            edit_at(source, "DataLoader(\n", arguments=(("prefetch_factor", "4"),), **of_path),
            edit_at(source, "DataLoader(\n", note="and drink", **of_path),
            edit_at(source, "optim.Adam", OPTIMIZER, arguments=(("fused", "True"), ("foreach", "None")), **of_path),
            edit_at(source, "optim.Adam", OPTIMIZER, statement="torch.set_num_threads(1)", module="torch", **of_path),
            edit_at(source, "optim.Adam", OPTIMIZER, statement="{model}.eval()", note="and think", **of_path),
        ],
        str(tmp_path),
    )
    assert (done.manual, done.notes) == ((), ("train.py:9: and think", "train.py:5: and drink"))
    assert path.read_text() == source
    subprocess.run(["patch", "-p1", "-s"], cwd=tmp_path, input=done.diff, text=True, check=True)
    program = {}
    threads = torch.get_num_threads()
    exec(path.read_text(), program)
    set_to = torch.get_num_threads()
    torch.set_num_threads(threads)
    assert (program["loader"].num_workers, program["loader"].prefetch_factor, program["other"].num_workers) == (2, 4, 2)
    assert (program["optimizer"].defaults["fused"], set_to, program["net"].training) == (True, 1, False)
    assert isinstance(program["net"], nn.Linear)
    assert sum(line.startswith(("+", "-")) for line in done.diff.splitlines()) == 2 + 4 + 5


def test_a_diff_keeps_a_missing_line_feed_at_the_end(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(b"x = 1\r\nDataLoader(data)")
    done = edited([edit_at("x = 1\nDataLoader(data)", "DataLoader", path=str(path), arguments=WORKERS)], str(tmp_path))
    subprocess.run(["patch", "-p1", "-s", "--binary"], cwd=tmp_path, input=done.diff.encode(), check=True)
    assert path.read_bytes() == b"x = 1\r\nDataLoader(data, num_workers=2)"


@pytest.mark.parametrize("name", ["my train.py", "sp ace/a  b/train.py", "t\u00e9st.py"])
@pytest.mark.parametrize("is_outside", [False, True])
def test_a_diff_applies_to_any_path(tmp_path, name, is_outside):
    path = tmp_path / "code" / name
    path.parent.mkdir(parents=True)
    path.write_text("DataLoader(data)\n")
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    folder = elsewhere if is_outside else tmp_path / "code"
    done = edited([edit_at("DataLoader(data)\n", "DataLoader", path=str(path), arguments=WORKERS)], str(folder))
    assert done.top == ("/" if is_outside else str(folder))
    subprocess.run(["patch", "-p1", "-s", "-d", done.top], input=done.diff, text=True, check=True, cwd=folder)
    assert path.read_text() == "DataLoader(data, num_workers=2)\n"


def test_calls_of_libraries_and_files_that_cannot_be_read_are_left_to_the_reader(tmp_path):
    latin = tmp_path / "latin.py"
    latin.write_bytes("# -*- coding: latin-1 -*-\n# r\u00e9seau\nDataLoader(data)\n".encode("latin-1"))
    (tmp_path / "train.py").write_text("x = 1\n")
    in_library = CallSite("train.py", 9, str(tmp_path / "train.py"), 4, "acme/data.py:7 make")
    gone, typed_in = CallSite("gone.py", 9, "/gone.py"), CallSite("<stdin>", 9)
    shorter = in_library._replace(line=30, inside="")
    sites = [in_library, typed_in, gone, shorter, CallSite("latin.py", 3, str(latin))]
    done = edited([Edit(CallFacts(LOADER, "DataLoader", site), WORKERS) for site in sites], str(tmp_path))
    assert done.diff == ""
    texts = sorted(each.text for each in done.manual)
    assert texts[0] == "<stdin>:9 (the file cannot be read: the code was typed in): pass num_workers=2"
    assert texts[1].startswith("gone.py:9 (the file cannot be read: ")
    assert texts[2] == "latin.py:3 (the file cannot be read: it is not in UTF-8): pass num_workers=2"
    assert texts[3] == "train.py:30 (the file has changed since the run): pass num_workers=2"
    assert texts[4] == "train.py:9 (the call is in acme/data.py:7 make): pass num_workers=2"


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "training_profiler.trials.source_edit", None)
    monkeypatch.delattr("training_profiler.trials.source_edit", raising=False)
    with pytest.raises(MissingExtraError, match=r"training-profiler\[try\]"):
        after("x = DataLoader(data)\n", "DataLoader")
    assert edits.EXTRA == "try"
