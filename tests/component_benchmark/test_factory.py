"""Valid and invalid forms of MODULE:FACTORY."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.golden import assert_golden
from training_profiler.base.errors import BenchmarkError
from training_profiler.component_benchmark.subject import read_subject, subject_of

GOOD = """
from torch import nn, randn
def factory(): return nn.Linear(2, 3), randn(4, 2)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(
        sys, "dont_write_bytecode", True
    )  # a file that is written again may have the same size and time
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_module_is_found_from_the_current_directory(here):
    (here / "at_hand.py").write_text(GOOD)
    subject = read_subject("at_hand:factory")
    assert (type(subject.model), subject.arguments[0].shape) == (nn.Linear, (4, 2))


def test_a_file_in_a_package_below_may_import_relatively(here):
    (here / "pack" / "age").mkdir(parents=True)
    for folder in ("pack", "pack/age"):
        (here / folder / "__init__.py").touch()
    (here / "pack" / "age" / "other.py").write_text(GOOD)
    (here / "pack" / "age" / "model.py").write_text("from .other import factory\n")
    assert read_subject("pack/age/model.py:factory").source == "pack/age/model.py:factory"
    assert "pack.age.model" in sys.modules


def test_a_file_anywhere_may_import_what_lies_beside_it(here):
    (here / "some where").mkdir()
    (here / "some where" / "beside_it.py").write_text(GOOD)
    (here / "some where" / "json.py").write_text("from beside_it import factory\n")
    assert type(read_subject("some where/json.py:factory").model) is nn.Linear
    assert hasattr(sys.modules["json"], "dumps")


MISTAKES = (
    ("", "module"),
    ("", ":factory"),
    ("", "no_such.module:factory"),
    ("", "no/such.py:factory"),
    (GOOD, "module:factry"),
    ("factory = 3", "module:factory"),
    ("def factory(size): pass", "module:factory"),
    ("def factory(): return 3", "module:factory"),
    ("def factory(): return 3, 4", "module:factory"),
    ("def factory(): raise KeyError('k')", "module:factory"),
    ("import no_such_thing", "module:factory"),
    ("raise SystemExit('usage')", "module:factory"),
)


def test_mistakes_are_reported_in_one_line_each(here):
    lines = []
    for text, source in MISTAKES:
        (here / "module.py").write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop("module", None)
        with pytest.raises(BenchmarkError) as caught:
            read_subject(source)
        lines.append(f"{text or 'nothing'} | {source}: {caught.value}\n".replace(str(here), "HERE"))
    assert_golden(Path(__file__).parents[1] / "golden" / "component_mistakes.txt", "".join(lines))


@pytest.mark.parametrize(
    ("text", "shows"), [("raise KeyError", True), ("import no_such_thing", True), ("raise SystemExit", False)]
)
def test_traceback_is_shown_only_for_errors_in_user_code(here, text, shows):
    (here / "module.py").write_text(text)
    with pytest.raises(BenchmarkError) as caught:
        read_subject("module:factory")
    assert caught.value.shows_cause is shows


def test_input_can_be_tensor_tuple_or_dict():
    x = torch.ones(2)
    subjects = [subject_of("m:f", (nn.Identity(), given)) for given in (x, (x, 3), [x], {"input": x})]
    assert [len(subject.arguments) for subject in subjects] == [1, 2, 1, 0]
    assert list(subjects[-1].keywords) == ["input"]


def test_loss_target_and_optimizer_are_recognized_by_type():
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    subject = subject_of("m:f", (model, x, optimizer, x, loss))
    assert (subject.loss, subject.target is x, subject.optimizer) == (loss, True, optimizer)
    assert subject_of("m:f", (model, x, None, optimizer)).optimizer is optimizer


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ((3,), "an int beside model and input; expected a loss"),
        ((len, abs), "two values for the loss; expected at most one"),
    ],
)
def test_unknown_further_value_is_an_error(further, message):
    with pytest.raises(BenchmarkError, match=message):
        subject_of("m:f", (nn.Identity(), torch.ones(2), *further))


def test_input_of_unsupported_type_is_an_error():
    with pytest.raises(BenchmarkError, match="a str as the input, not a tensor, tuple or dict"):
        subject_of("m:f", (nn.Identity(), "x"))
