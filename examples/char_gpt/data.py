"""The standard library's source as one long tensor of characters, and the loaders that cut windows out of it."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

CHARACTERS = "\n\t" + "".join(map(chr, range(32, 127)))  # anything else is read as "?"
CHARACTERS_A_FILE = 12_000  # of each file at most, so that a few large ones do not make up the text
LEAST_CHARACTERS = 200_000
HELD_OUT = 10  # every tenth file is for validation
INDENT = 4  # spaces that one tab stands for: less to read, and whole levels to learn

Window = tuple[torch.Tensor, torch.Tensor]


class CorpusError(Exception):
    """The standard library's source cannot be read as a text to learn from."""


def read_corpus(folder: Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the text to learn from and the text held out, as indices into ``CHARACTERS``, of uint8.

    Reads the beginning of each module at the top of the standard library, in the order of their names, so one
    version of Python always gives the same text.

    Raises:
        CorpusError: there is no such source, or too little of it.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    texts = [_read(path) for path in sorted(folder.glob("*.py"))]
    if sum(map(len, texts)) < LEAST_CHARACTERS:
        raise CorpusError(
            f"{folder} holds {len(texts)} modules with {sum(map(len, texts))} characters of source, too little to "
            f"learn from (at least {LEAST_CHARACTERS}); this Python may keep its standard library in a zip file or "
            "without source: try one from python.org, conda or your system"
        )
    kept = "".join(text for i, text in enumerate(texts) if i % HELD_OUT != HELD_OUT - 1)
    return encode(kept), encode("".join(texts[HELD_OUT - 1 :: HELD_OUT]))


def encode(text: str) -> torch.Tensor:
    """Return ``text`` as indices into ``CHARACTERS``, of uint8; four spaces are one tab."""
    table = torch.full((128,), CHARACTERS.index("?"), dtype=torch.uint8)
    table[[ord(character) for character in CHARACTERS]] = torch.arange(len(CHARACTERS), dtype=torch.uint8)
    text = text.replace(" " * INDENT, "\t")
    return table[torch.tensor(list(text.encode("ascii", "replace")), dtype=torch.int64)]


def decode(tokens: torch.Tensor) -> str:
    """Return the text that ``tokens`` stand for, with spaces for tabs."""
    return "".join(CHARACTERS[i] for i in tokens.tolist()).replace("\t", " " * INDENT)


def unigram_entropy(tokens: torch.Tensor) -> float:
    """Return the entropy in nats per character of a model that only knows character frequencies."""
    shares = torch.bincount(tokens, minlength=len(CHARACTERS)).double() / len(tokens)
    return float(-torch.special.xlogy(shares, shares).sum())


class Windows(Dataset[Window]):
    """The windows of a text: item ``i`` is the characters from ``i`` on, and what follows each of them."""

    def __init__(self, tokens: torch.Tensor, context: int) -> None:
        self.tokens, self.context = tokens, context

    def __len__(self) -> int:
        return len(self.tokens) - self.context

    def __getitem__(self, start: int) -> Window:
        window = self.tokens[start : start + self.context + 1].long()
        return window[:-1], window[1:]


class RandomWindows(Sampler[list[int]]):
    """Draws the windows of each micro-batch from its number alone, so a resumed training continues exactly."""

    def __init__(self, windows: Windows, batch_size: int, numbers: range, seed: int) -> None:
        self.count, self.batch_size, self.numbers, self.seed = len(windows), batch_size, numbers, seed

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[list[int]]:
        for number in self.numbers:
            generator = torch.Generator().manual_seed(1_000_003 * self.seed + number)
            yield torch.randint(self.count, (self.batch_size,), generator=generator).tolist()


def training_loader(
    windows: Windows, batch_size: int, numbers: range, num_workers: int, seed: int
) -> DataLoader[Window]:
    """Return a loader of the micro-batches that have these ``numbers`` in the training."""
    return DataLoader(
        windows,
        batch_sampler=RandomWindows(windows, batch_size, numbers, seed),
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(seed),  # otherwise iterating uses the generator of the program
    )


def validation_loader(windows: Windows, batch_size: int, batches: int) -> DataLoader[Window]:
    """Return a loader of the same windows each time, spread evenly over the text."""
    starts = torch.linspace(0, len(windows) - 1, batches * batch_size).long().tolist()
    return DataLoader(windows, batch_size, sampler=starts, generator=torch.Generator().manual_seed(0))


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(CHARACTERS_A_FILE)
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror})") from error
