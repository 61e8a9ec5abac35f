"""The small GPT: it learns from the standard library, resumes, compiles, and profiles like any user's script."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.char_gpt.data import CHARACTERS, CorpusError, RandomWindows, Windows, decode, encode, read_corpus
from examples.char_gpt.model import GPT, factory, write
from examples.char_gpt.trainer import Plan
from tests.examples.running import losses_of_validation, metrics, run
from tests.system.scripts import Outcome

BRIEF = ("--batch-size", "4", "--context", "32", "--sample-length", "40", "--eval-every", "10", "--log-every", "10")

ALONE = (sys.executable, "-m", "examples.char_gpt")


def train(out: Path, *words: str, **options: Any) -> Outcome:
    return run("char_gpt", out, "--out", str(out), *BRIEF, *words, **options)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("profiled")
    train(out, "--steps", "20", profile="1", program=ALONE)
    return out


def test_text_round_trips_except_non_ascii():
    text = "def f(x):\n    if x:\n        return 'é'\n"
    assert decode(encode(text)) == text.replace("é", "?")
    assert CHARACTERS[int(encode("    x")[0])] == "\t"


def test_corpus_is_deterministic_and_excludes_held_out_modules():
    train, held_out = read_corpus()
    assert torch.equal(read_corpus()[0], train)
    assert len(train) > 5 * len(held_out) > 100_000
    assert decode(held_out[:200]) not in decode(train)


def test_python_without_source_is_one_clear_error(tmp_path):
    (tmp_path / "small.py").write_text("x = 1\n")
    with pytest.raises(CorpusError, match=r"holds 1 modules with 6 characters of source, too little .* zip file"):
        read_corpus(tmp_path)


def test_windows_depend_only_on_their_number():
    windows = Windows(torch.arange(200, dtype=torch.uint8), context=8)
    whole = list(RandomWindows(windows, 3, range(6), seed=1))
    assert whole[2:] == list(RandomWindows(windows, 3, range(2, 6), seed=1))
    assert whole != list(RandomWindows(windows, 3, range(6), seed=2))
    tokens, targets = windows[5]
    assert (tokens.tolist(), targets.tolist()) == (list(range(5, 13)), list(range(6, 14)))


def test_no_position_sees_later_tokens():
    torch.manual_seed(0)
    model, tokens = GPT(context=8), torch.randint(len(CHARACTERS), (1, 8))
    other = tokens.clone()
    other[0, 5:] = 0
    assert torch.equal(model(tokens)[0, :5], model(other)[0, :5])


def test_embedding_and_output_share_weights():
    model = GPT(context=8)
    assert model.head.weight is model.token.weight


def test_samples_are_seeded_and_longer_than_the_context():
    torch.manual_seed(0)
    model, beginning = GPT(context=8), encode("def ")
    written = write(model, beginning, 20, temperature=1.0, seed=3)
    assert written[:4].tolist() == beginning.tolist()
    assert len(written) == 24
    assert torch.equal(written, write(model, beginning, 20, temperature=1.0, seed=3))


def test_learning_rate_rises_then_falls_to_a_tenth():
    numbers = {"steps": 9, "eval_every": 9, "batch_size": 1, "accumulation": 1, "num_workers": 0, "seed": 0}
    plan = Plan(
        **numbers, context=8, learning_rate=1.0, lr_steps=12, warmup_steps=2, has_bf16=False, is_compiled=False,
        sample_length=1, out=Path(),
    )  # fmt: skip
    assert [plan.rate(step) for step in (0, 1, 2)] == [0.5, 1.0, 1.0]
    assert [plan.rate(step) for step in (7, 12, 1000)] == pytest.approx([0.55, 0.1, 0.1])


def test_all_sections_are_measured_per_micro_batch_and_update(profiled):
    report = Outcome(0, "", "", profiled).report
    counts = {name: section["count"] for name, section in report["sections"].items()}
    by_micro_batch = ("data_loading", "data_transfer", "forward_pass", "backward_pass")
    assert {name: counts[name] for name in by_micro_batch} == dict.fromkeys(by_micro_batch, 40)
    assert (report["steps"], counts["optimizer_step"], counts["metrics_computation"]) == (20, 20, 40)
    assert (counts["validation_epoch"], counts["checkpointing"], counts["sampling"]) == (2, 2, 1)
    train, val = report["loaders"]
    assert (train["name"], train["batches"], train["samples"]) == ("windows", 40, 160)
    assert (val["name"], val["phase"], val["batches"]) == ("held-out windows", "val", 16)


def test_resumed_plain_training_equals_an_uninterrupted_one_with_profiling(profiled, tmp_path):
    assert "Profiling" not in train(tmp_path / "first", "--steps", "10").stdout
    train(tmp_path / "second", "--steps", "20", "--resume", str(tmp_path / "first" / "checkpoint.pt"))
    assert metrics(tmp_path / "second") == metrics(profiled)
    assert (tmp_path / "second" / "sample.txt").read_text() == (profiled / "sample.txt").read_text()
    assert not (tmp_path / "first" / "runs").exists()


@pytest.mark.programs
def test_model_learns_more_than_character_frequencies(tmp_path):
    printed = train(tmp_path, "--steps", "120", "--eval-every", "60", "--lr-steps", "120", "--batch-size", "12").stdout
    start, losses = metrics(tmp_path)[0], losses_of_validation(tmp_path)
    assert losses[-1] < losses[0] < start["unigram_entropy"]
    assert losses[-1] < start["unigram_entropy"] - 0.7
    assert printed.count("class ") >= 1


def test_bfloat16_losses_are_close(profiled, tmp_path):
    train(tmp_path, "--steps", "3", "--bf16")
    pairs = zip(metrics(tmp_path)[1:4], metrics(profiled)[1:4], strict=True)
    for half, full in pairs:
        assert half["loss"] != full["loss"]
        assert half["loss"] == pytest.approx(full["loss"], rel=0.02)


@pytest.mark.programs
def test_compiled_model_learns_the_same(profiled, tmp_path):
    train(tmp_path, "--steps", "2", "--compile", profile="1", program=ALONE)  # the compiler has threads
    losses = [[row["loss"] for row in metrics(out)[1:3]] for out in (tmp_path, profiled)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_factory_returns_matching_model_batch_and_targets():
    model, tokens, targets = factory()
    assert tokens.shape == targets.shape == (12, model.context)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
