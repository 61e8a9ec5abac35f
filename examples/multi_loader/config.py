"""The YAML file with all settings, checked before anything is loaded."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

SCHEDULES: Final = ("round_robin", "weighted", "sequential")
DATASETS: Final = ("digits", "noisy_digits", "held_out_digits")
Number = TypeVar("Number", int, float)


class ConfigError(Exception):
    """A value of the file cannot be used; the message names its key, the value and an example."""


@dataclass(frozen=True)
class LoaderPlan:
    """One data loader."""

    name: str
    dataset: str
    batch_size: int
    num_workers: int
    delay_ms: float  # a sample


@dataclass(frozen=True)
class Config:
    """The settings in the file."""

    profile_training: bool
    epochs: int | None  # or steps
    steps: int | None
    grad_accumulation: int
    learning_rate: float
    seed: int
    log_every: int
    log_scalars_every_n_steps: int | None
    sinks: tuple[str, ...]
    train: tuple[LoaderPlan, ...]
    schedule: str
    weights: tuple[float, ...]  # of a weighted schedule, one a training loader
    val: tuple[LoaderPlan, ...]


class Node:
    """A mapping of the file; ``end`` raises for keys that were not read."""

    def __init__(self, value: object, key: str) -> None:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{key or 'the file'} is {value!r}, and no mapping; example: {key or 'training'}: {{...}}"
            )
        self.key = key
        self._value = dict(value)
        self._asked: list[str] = []

    @property
    def given(self) -> list[str]:
        return [str(name) for name in self._value]

    def path(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name

    def node(self, name: str) -> "Node":
        return Node(self.take(name), self.path(name))

    def take(self, name: str, default: Any = None) -> Any:
        self._asked.append(name)
        return self._value.get(name, default)

    def number(self, name: str, default: Number | None, least: Number, example: object) -> Number | None:
        """Return a number of the type of ``least``, at least that; the default if it is missing."""
        value = self.take(name, default)
        if value is None and default is None:
            return None
        kinds = (int,) if isinstance(least, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < float("inf"):
            what = "a whole number" if isinstance(least, int) else "a number"
            raise ConfigError(f"{self.path(name)}={value!r} is not {what} of at least {least}; example: {example}")
        return type(least)(value)

    def word(self, name: str, words: Sequence[str], default: str | None = None) -> str:
        value = self.take(name, default)
        if value not in words:
            close = difflib.get_close_matches(str(value), words, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(
                f"{self.path(name)}={value!r} is not one of {', '.join(words)}{meant}; example: {name}: {words[0]}"
            )
        return str(value)

    def yes(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.path(name)}={value!r} is neither true nor false; example: {name}: true")
        return value

    def names(self, name: str, default: Sequence[str] | None, example: str) -> tuple[str, ...]:
        value = self.take(name, default)
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in value):
            raise ConfigError(f"{self.path(name)}={value!r} is not a list of names; example: {name}: {example}")
        if len(set(value)) < len(value):
            raise ConfigError(f"{self.path(name)}={value!r} names one twice; example: {name}: {example}")
        return tuple(value)

    def end(self) -> None:
        for name in self._value:
            if name not in self._asked:
                close = difflib.get_close_matches(str(name), self._asked, n=1, cutoff=0.0)
                raise ConfigError(
                    f"{self.path(str(name))}={self._value[name]!r} is not a setting; did you mean {close[0]}?"
                )


def read_config(path: Path) -> Config:
    """Return the settings in the file.

    Raises:
        ConfigError: it cannot be read, or a value cannot be used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot be read: {error}; an example lies in {Path(__file__).with_name('config.yaml')}"
        ) from None
    try:
        return _config(Node(yaml.safe_load(text), ""))
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML: {error}") from None


def _config(root: Node) -> Config:
    training, logging, data = root.node("training"), root.node("logging"), root.node("data")
    train, val = data.node("train"), data.node("val")
    train_loaders = _loaders(train, at_least_one=True)
    schedule, weights = _schedule(train, len(train_loaders))
    epochs, steps = training.number("epochs", None, 1, 3), training.number("steps", None, 1, 500)
    if (epochs is None) == (steps is None):
        said = "both are given" if epochs else "neither is given"
        raise ConfigError(f"training.epochs={epochs} and training.steps={steps}: {said}; example: epochs: 3")
    every = logging.number("log_scalars_every_n_steps", None, 1, 10)
    config = Config(
        profile_training=training.yes("profile_training", True),
        epochs=epochs,
        steps=steps,
        grad_accumulation=training.number("grad_accumulation", 1, 1, 2) or 1,
        learning_rate=training.number("learning_rate", 0.1, 0.0, 0.1) or 0.0,
        seed=training.number("seed", 0, 0, 0) or 0,
        log_every=training.number("log_every", 50, 1, 50) or 50,
        log_scalars_every_n_steps=every,
        sinks=logging.names("sinks", (), "[jsonl]"),
        train=train_loaders,
        schedule=schedule,
        weights=weights,
        val=_loaders(val, at_least_one=False),
    )
    for node in (training, logging, train, val, data, root):
        node.end()
    return config


def _loaders(node: Node, at_least_one: bool) -> tuple[LoaderPlan, ...]:
    names = node.names("dataloader_names", () if not at_least_one else None, "[main, aux]")
    if at_least_one and not names:
        raise ConfigError(f"{node.path('dataloader_names')}=[] names no loader; example: dataloader_names: [main, aux]")
    loaders = node.node("loaders")
    for name in names:  # other keys may be unused
        if name not in loaders.given:
            close = difflib.get_close_matches(name, loaders.given, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{loaders.key} has no {name!r}{meant}; example: {name}: {{dataset: digits}}")
    return tuple(_loader(loaders.node(name), name) for name in names)


def _loader(node: Node, name: str) -> LoaderPlan:
    plan = LoaderPlan(
        name=name,
        dataset=node.word("dataset", DATASETS, "digits"),
        batch_size=node.number("batch_size", 32, 1, 32) or 32,
        num_workers=node.number("num_workers", 0, 0, 2) or 0,
        delay_ms=node.number("delay_ms", 0.0, 0.0, 0.2) or 0.0,
    )
    node.end()
    return plan


def _schedule(train: Node, loaders: int) -> tuple[str, tuple[float, ...]]:
    node = train.node("schedule")
    kind = node.word("kind", SCHEDULES, "round_robin")
    weights = node.take("weights")
    node.end()
    key = node.path("weights")
    if kind != "weighted":
        if weights is not None:
            raise ConfigError(f"{key}={weights!r} has no meaning in a schedule of kind {kind}; example: kind: weighted")
        return kind, ()
    example = f"weights: {[loaders - at for at in range(loaders)]}"
    if not isinstance(weights, list) or len(weights) != loaders:
        raise ConfigError(
            f"{key}={weights!r} is not a list of {loaders} numbers, one for each loader; example: {example}"
        )
    if not all(isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < 1e9 for one in weights):
        raise ConfigError(f"{key}={weights!r} holds a value that is not a number above 0; example: {example}")
    return kind, tuple(float(one) for one in weights)
