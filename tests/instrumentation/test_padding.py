"""Padding is found in early steps of real torch, by what says that it is padding, and by nothing else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

from training_profiler.model.program import IMAGE_ENDS

STEPS, BATCH, LONGEST, WIDTH, WORDS = 30, 6, 24, 16, 50
REAL = (4, 9, 2, 6, 12, 3)  # positions of a row that are no padding
SHARE = 1 - sum(REAL) / (BATCH * LONGEST)


def batch_of(lengths=REAL, longest=LONGEST, padding=0, is_left=False):
    """Return ids and a mask of the others."""
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    real = real.flip(1) if is_left else real
    return torch.where(real, torch.randint(2, WORDS, (len(lengths), longest)), padding), real


class Net(nn.Module):
    """Ids to one number a position; ``kind`` is how it knows what is padding, if it does."""

    def __init__(self, kind=None, padding=None):
        super().__init__()
        self.kind, self.words = kind, nn.Embedding(WORDS, WIDTH, padding_idx=padding)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.cell, self.last = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids, attention_mask=None, labels=None, lengths=None):
        x, unseen = self.words(input_ids), input_ids == 0
        if self.kind == "key_padding_mask":
            x = self.layer(x, src_key_padding_mask=unseen)
        elif self.kind == "scaled_dot_product":
            x = F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], ~unseen[:, None, None])[:, 0]
        elif self.kind == "masked_fill":
            scores = (x @ x.transpose(1, 2)).masked_fill(unseen[:, None], float("-inf"))
            x = scores.softmax(-1) @ x
        elif self.kind == "packed":
            packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            x, _ = rnn.pad_packed_sequence(self.cell(packed)[0], batch_first=True)
        return self.last(x)


@pytest.fixture
def padding(instrumented):
    """Train for some steps, and return what was found; ``batch`` makes the arguments of the model."""
    torch.manual_seed(0)

    def train(model, batch, steps=STEPS):
        def loss_of():
            arguments = batch()
            made = model(**arguments) if isinstance(arguments, dict) else model(*arguments)
            return made.square().mean()

        facts = instrumented.train(torch.optim.SGD(model.parameters(), lr=0.01), loss_of, steps)
        assert torch._C._len_torch_function_stack() == 0
        return facts.padding

    return train


def ids(**how):
    return lambda: (batch_of(**how)[0],)


def with_mask(kind=torch.int64, **how):
    def batch():
        tokens, real = batch_of(**how)
        return {"input_ids": tokens, "attention_mask": real.to(kind)}

    return batch


def with_labels():
    tokens, real = batch_of()
    return {"input_ids": tokens, "labels": torch.where(real, tokens, -100)}


def with_labels_of_answers():
    batch = with_labels()
    batch["labels"][:, :1] = -100
    return batch


def with_lengths():
    return {"input_ids": batch_of()[0], "lengths": torch.tensor(REAL)}


def with_features():
    real = batch_of()[1]
    return torch.randn(BATCH, LONGEST, 5) * real[..., None], real


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 1)

    def forward(self, x, mask):
        return self.last(x) * mask[..., None]


class Tower(Net):
    """Two modalities, of which one takes nearly all of the time."""

    def __init__(self):
        super().__init__(padding=0)
        self.images = nn.Conv2d(3, 64, 5)

    def forward(self, input_ids):
        return super().forward(input_ids) * self.images(torch.ones(16, 3, 128, 128)).mean()


class Trimming(Net):
    """Cuts what is padding in all rows before anything is computed."""

    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids[:, : int(attention_mask.sum(1).max())])


class Flat(nn.Module):
    """Has a weight for each position."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Linear(LONGEST * WIDTH, 2)

    def forward(self, input_ids):
        return self.last(self.words(input_ids).flatten(1))


# A model and its batches; what says that it is padding, and the least and most part of the time that depends on it.
FOUND = {
    "padding_idx": (Net(padding=0), ids(), "padding_idx=0", (0.6, 1)),
    "another padding_idx": (Net(padding=1), ids(padding=1), "padding_idx=1", (0.6, 1)),
    "a mask of Hugging Face": (Net(), with_mask(), "the mask", (0.6, 1)),
    "a mask of bool": (Net(), with_mask(torch.bool), "the mask", (0.6, 1)),
    "one token ends texts and fills rows": (Net(), with_mask(padding=7), "the mask", (0.6, 1)),
    "padding at the left": (Net(), with_mask(is_left=True), "the mask", (0.6, 1)),
    "labels": (Net(), with_labels, "labels of -100", (0.6, 1)),
    "labels of answers": (Net(), with_labels_of_answers, "labels of -100", (0.6, 1)),
    "lengths": (Net(), with_lengths, "the lengths", (0.6, 1)),
    "src_key_padding_mask": (Net("key_padding_mask"), ids(), "the attention mask", (0.6, 1)),
    "attn_mask": (Net("scaled_dot_product"), ids(), "the attention mask", (0.6, 1)),
    "attention without a function": (Net("masked_fill"), ids(), "the attention mask", (0.6, 1)),
    "sequences as columns are rows": (Net(padding=0), lambda: (batch_of()[0].T,), "padding_idx=0", (0, 1)),
    "features of positions": (Features(), with_features, "the mask", (0, 1)),
    "images take the time": (Tower(), ids(), "padding_idx=0", (0, 0.5)),
    "it is cut first": (Trimming(), with_mask(), "the mask", (0, 0.5)),
    "packed sequences": (Net("packed"), with_lengths, "the lengths", (0, 0.5)),
    "a layer with a weight for each position": (Flat(), ids(), "padding_idx=0", (0, 0)),
}


@pytest.mark.parametrize(("model", "batch", "what", "part"), FOUND.values(), ids=FOUND)
def test_padding_is_found_by_what_says_so(padding, model, batch, what, part):
    facts = padding(model, batch)
    assert facts.what == what
    assert facts.padding == facts.worst == pytest.approx(SHARE)
    assert facts.to_longest == pytest.approx(1 - max(REAL) / LONGEST)
    assert facts.to_longest <= facts.grouped <= facts.padding
    assert part[0] <= facts.part <= part[1]


def test_rows_as_long_as_the_longest_of_their_batch_may_be_grouped(padding):
    batches = iter([(8, 8, 8), (2, 2, 8), (2, 2, 2)] * STEPS)

    def batch():
        lengths = next(batches)
        return (batch_of(lengths, max(lengths))[0],)

    facts = padding(Net(padding=0), batch)
    assert facts.padding == pytest.approx(12 / (24 + 24 + 6), abs=0.02)
    assert facts.worst == pytest.approx(0.5)
    assert facts.to_longest == 0
    assert facts.grouped == pytest.approx(facts.padding, abs=0.05)  # batches that begin within a group


def test_batches_after_the_first_steps_count_too(padding):
    batches = iter([REAL] * 30 + [(1,) * BATCH] * 30)
    facts = padding(Net(padding=0), lambda: (batch_of(next(batches))[0],), steps=60)
    assert facts.worst == pytest.approx(1 - 1 / LONGEST)
    assert SHARE < facts.padding < facts.worst


SIZES = ((9, 12), (16, 7), (12, 12), (8, 20))  # of photos, which are put into a larger image
PIXELS = 32


class Photos(nn.Module):
    """Images to numbers, of any size or (``is_flat``) of one."""

    def __init__(self, is_flat=False):
        super().__init__()
        self.first, self.pool = nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten() if is_flat else nn.AdaptiveAvgPool2d(1)
        self.last = nn.Linear(4 * 256 if is_flat else 4, 2)

    def forward(self, x):
        return self.last(self.pool(self.first(x).relu()).flatten(1))


def photos(at=(0, 0), sizes=SIZES, value=0.0):
    made = torch.full((len(sizes), 3, PIXELS, PIXELS), value)
    for image, (height, width) in zip(made, sizes, strict=True):
        image[:, at[0] : at[0] + height, at[1] : at[1] + width] = torch.rand(3, height, width) + 1
    return (made,)


@pytest.mark.parametrize("value", [0.0, -1.8])
def test_images_put_into_larger_ones_are_counted_by_their_larger_side(padding, value):
    found = padding(Photos(), lambda: photos(value=value))
    kept = [max(size) ** 2 / PIXELS**2 for size in SIZES]
    assert found.padding == pytest.approx(1 - sum(kept) / len(kept), abs=0.01)
    assert found.to_longest == pytest.approx(1 - max(kept), abs=0.01)
    assert (found.what, found.part > 0.4) == (IMAGE_ENDS, True)


def test_a_layer_with_a_weight_for_each_pixel_needs_all_of_them(padding):
    assert padding(Photos(is_flat=True), photos).part == 0.0


def digits_at_last(made=[0]):  # noqa: B006
    made[0] += 1
    return photos(at=(2, 2) if made[0] == STEPS - 10 else (0, 0))


def with_prompt():
    """Labels of answers alone, in texts without padding."""
    tokens, labels = batch_of((LONGEST,) * BATCH)[0], batch_of(is_left=True)
    return {"input_ids": tokens, "labels": torch.where(labels[1], tokens, -100)}


def with_first_labels():
    tokens, real = batch_of((LONGEST,) * BATCH)[0], batch_of()[1]
    return {"input_ids": tokens, "labels": torch.where(real, tokens, -100)}


def with_tags():
    tokens, real = batch_of((LONGEST,) * BATCH)[0], batch_of()[1]
    return {"input_ids": tokens, "labels": real.long()}


def without_padding():
    tokens = batch_of((LONGEST,) * BATCH)[0]
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Conv1d(LONGEST, 2, 3, padding=1)

    def forward(self, x):
        return self.last(x)


SILENT = {
    "0 is a real token": (Net(), ids()),
    "another token is padding": (Net(padding=1), ids()),
    "labels of answers": (Net(), with_prompt),
    "labels of the first tokens": (Net(), with_first_labels),
    "tags of tokens": (Net(), with_tags),
    "a mask without padding": (Net(), without_padding),
    "digits on a background": (Photos(), lambda: photos(at=(4, 6))),
    "digits that touch the top": (Photos(), lambda: photos(at=(0, 3))),
    "one image has a background": (Photos(), digits_at_last),
    "one border of all images": (Photos(), lambda: photos(sizes=((28, 30),) * 4)),
    "photos": (Photos(), lambda: (torch.rand(4, 3, PIXELS, PIXELS),)),
    "empty images": (Photos(), lambda: (torch.zeros(4, 3, PIXELS, PIXELS),)),
    "images with a black border": (Images(), lambda: (F.pad(torch.rand(BATCH, LONGEST, LONGEST - 8), (0, 8)),)),
}


@pytest.mark.parametrize(("model", "batch"), SILENT.values(), ids=SILENT)
def test_other_ends_of_rows_are_no_padding(padding, model, batch):
    assert padding(model, batch) is None


def test_losses_are_the_same_while_operations_are_followed(instrumented):
    def losses(steps_end):
        torch.manual_seed(0)
        model = Net("key_padding_mask", padding=0)
        optimizer = torch.optim.Adam(model.parameters())
        made = []
        for _ in range(12):
            optimizer.zero_grad()
            loss = model(batch_of()[0]).square().mean()
            loss.backward()
            optimizer.step()
            steps_end()
            made.append(loss.item())
        return made

    inspected = losses(lambda: instrumented.instrumentation.step_ended(instrumented.steps, counts_flops=False))
    assert instrumented.instrumentation.program_facts().padding is not None
    assert inspected == losses(lambda: None)


def test_what_a_model_raises_ends_following(instrumented):
    class Raises(Net):
        def forward(self, input_ids):
            super().forward(input_ids)
            raise ValueError("of the model")

    good, bad = Net(padding=0), Raises(padding=0)
    optimizer = torch.optim.SGD(good.parameters(), lr=0.1)
    for _ in range(4):
        good(batch_of()[0]).mean().backward()
        optimizer.step()
        instrumented.instrumentation.step_ended(instrumented.steps, counts_flops=False)
        with pytest.raises(ValueError, match="of the model"):
            bad(batch_of()[0])
        assert torch._C._len_torch_function_stack() == 0
