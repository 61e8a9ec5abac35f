"""The lines that keep a loss with its graph are found in the source, and no others."""

import ast
import warnings

import pytest

from training_profiler.inspections.kept_graphs import kept_at, lines_that_keep
from training_profiler.model.program import CallSite

LOOP = """\
def other(losses, loss):
    losses.append(loss)

def train(losses, total):
    for batch in loader:
        loss = model(batch)
        scaler.scale(loss / 2).backward()
        {}
"""


@pytest.mark.parametrize(
    "line",
    [
        "losses.append(loss)",
        "losses.append((step, loss))",
        "losses.append(loss / 8)",
        "total += loss",
        "self.total += loss * len(batch)",
        "total = total + loss",
        "history[step] = loss",
    ],
)
def test_a_line_that_keeps_the_graph_is_found(line):
    assert kept_at(ast.parse(LOOP.format(line)), 7) == [8]


@pytest.mark.parametrize(
    "line",
    [
        "losses.append(loss.item())",
        "losses.append(loss.detach())",
        "losses.append(float(loss))",
        "total += loss.item() * len(batch)",
        "loss += penalty",
        "last = loss",
        "count += 1",
        "losses.append(accuracy)",
    ],
)
def test_a_line_that_keeps_no_graph_is_not_found(line):
    assert kept_at(ast.parse(LOOP.format(line)), 7) == []


def test_a_part_of_the_loss_is_found():
    lines = "losses.append(policy_loss)\nloss = policy_loss + value_loss\nloss.backward()\n"
    assert kept_at(ast.parse(lines), 3) == [1]


def test_escapes_in_the_file_are_not_warned_of(tmp_path):
    source = "digits = r'\\\\' + '\\d' + 'it\\'s'\nloss = 1 + \\\n    2\nlosses.append(loss)\nloss.backward()\n"
    (tmp_path / "train.py").write_text(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lines_that_keep(CallSite("train.py", 5, str(tmp_path / "train.py"))) == "train.py:4"


@pytest.mark.parametrize("content", [b"def (", b"\x00", b"x = (" * 5000])
def test_a_file_that_cannot_be_read_has_no_line(tmp_path, content):
    (tmp_path / "train.py").write_bytes(content)
    assert lines_that_keep(CallSite("train.py", 1, str(tmp_path / "train.py"))) == ""
    assert lines_that_keep(CallSite("train.py", 1, str(tmp_path / "missing.py"))) == ""
    assert lines_that_keep(CallSite("<stdin>", 1)) == ""
