"""The masked autoencoder: it learns, draws, and profiles like any user's script."""

from pathlib import Path
from typing import Any

import pytest
import torch

from examples.masked_autoencoder.model import MaskedAutoencoder
from examples.masked_autoencoder.patches import draw_order, patchify, unpatchify
from tests.examples.running import losses_of_validation, metrics, needs_digits, run
from tests.system.scripts import Outcome

pytestmark = needs_digits


def train(out: Path, *words: str, **options: Any) -> Outcome:
    return run("masked_autoencoder", out, "--out", str(out), *words, **options)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(tmp_path_factory.mktemp("profiled"), "--epochs", "3", profile="1")


def test_patches_reassemble_the_image():
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(unpatchify(patchify(images), 8), images)
    assert torch.equal(patchify(images)[0, 1], images[0, 0, :2, 2:4].flatten())


def test_hidden_patches_do_not_affect_the_output():
    torch.manual_seed(0)
    model, images, order = MaskedAutoencoder(), torch.randn(2, 1, 8, 8), draw_order(2, 16)
    patches = patchify(images)
    patches.scatter_(1, order[:, 4:, None].expand(-1, -1, 4), 9.0)
    assert torch.equal(model(images, order, 4), model(unpatchify(patches, 8), order, 4))


def test_synthetic_drawings_look_like_digits():
    from examples.masked_autoencoder.data import draw_strokes  # with scikit-learn, which takes long to import

    images = draw_strokes(5, torch.Generator().manual_seed(0))
    assert images.shape == (5, 1, 8, 8)
    assert images.min() >= -1
    assert 0 < images.max() <= 1


def test_losses_are_bitwise_equal_with_and_without_profiling(profiled, tmp_path):
    train(tmp_path, "--epochs", "3")
    assert metrics(tmp_path) == metrics(profiled.cwd)
    assert not (tmp_path / "runs").exists()


def test_all_sections_and_epochs_are_measured(profiled):
    counts = {name: section["count"] for name, section in profiled.report["sections"].items()}
    per_step = ("data_loading", "data_generation", "data_transfer", "forward_pass", "backward_pass")
    per_step += ("metrics_computation", "optimizer_step", "ema_update")
    assert {name: counts[name] for name in per_step} == dict.fromkeys(per_step, 90)
    assert (counts["validation_epoch"], counts["visualization_generation"], counts["checkpointing"]) == (3, 3, 2)
    assert [f"=== Epoch {n} Profiling Summary ===" in profiled.stdout for n in (1, 2, 3)] == [True] * 3


def test_training_and_validation_have_their_own_loaders(profiled):
    train, val = profiled.report["loaders"]
    assert (train["name"], train["phase"], train["batches"], train["samples"]) == ("digits", "train", 90, 4500)
    assert (val["name"], val["phase"], val["batches"], val["samples"]) == ("held-out digits", "val", 9, 891)
    assert min(train["data_avg_s"], train["forward_avg_s"], train["optimizer_avg_s"], val["forward_avg_s"]) > 0


@pytest.mark.programs
def test_model_learns_and_draws_reconstructions(tmp_path):
    train(tmp_path, "--epochs", "8")
    losses = losses_of_validation(tmp_path)
    assert losses[-1] < 0.5 * losses[0]
    image = pytest.importorskip("PIL.Image").open(tmp_path / "reconstructions.png")
    assert image.size == (6 * (10 * 9 + 1), 6 * (3 * 9 + 1))


@pytest.mark.programs
def test_synthetic_data_is_made_in_the_loop(tmp_path):
    sections = train(tmp_path, "--epochs", "1", "--synthetic", profile="1").report["sections"]
    assert sections["data_generation"]["count"] == 60
    assert "data_loading" not in {name for name, section in sections.items() if section["count"] >= 30}
