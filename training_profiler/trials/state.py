"""How far a session of trials has come, in a file of the run folder, so that another process can go on with it."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from training_profiler.base.errors import RunFolderError
from training_profiler.model.bounds import Count
from training_profiler.safety.files import read_file, replace_file
from training_profiler.trials.identity import Identity
from training_profiler.trials.interleaved import BlockSchedule, Outcome
from training_profiler.trials.results import from_data
from training_profiler.trials.statistics import Wave

FILE: Final = "trials-state.json"
SCHEMA: Final = 1
MOST_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Wishes:
    """What the user asked for."""

    budget_s: float
    only: tuple[str, ...] = ()  # families or names of changes
    tries_all: bool = False
    numerics: bool = False  # whether changes of the numerics may be part of all together
    total_steps: Count | None = None  # of the whole training


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Trainings that run side by side, as far as they have come."""

    is_fresh: bool  # whether they are to confirm what has helped
    together: list[str]  # the changes of the training that has several
    schedule: BlockSchedule
    record: Wave
    outcomes: dict[str, Outcome]

    @classmethod
    def of(
        cls, wave: Wave, schedule: BlockSchedule, is_fresh: bool = False, together: Sequence[str] = ()
    ) -> "UnderWay":
        """Return trainings that have not begun yet."""
        return cls(is_fresh, list(together), schedule, wave, {name: Outcome() for name in wave.block_s})


@dataclass
class Progress:
    """What a session has done, by the names of changes, and so what is left."""

    chosen: list[str] = field(default_factory=list)  # all that are to be tried
    screened: list[str] = field(default_factory=list)  # that have run beside the unchanged training
    winners: list[str] = field(default_factory=list)  # that fresh trials have yet to confirm or refute
    gain_error: float = 0.0  # spent by fresh trials
    under_way: UnderWay | None = None

    def choose(self, names: Sequence[str]) -> None:
        """Decide what is to be tried."""
        self.chosen = list(names)

    def keep(self, under_way: UnderWay) -> None:
        """Keep how far the trainings that run have come."""
        self.under_way = under_way

    def end(self, changes: Sequence[str], seemed_to_help: Sequence[str]) -> None:
        """Note that trainings with these changes have run to their end; fresh trials decide about some of them."""
        is_fresh = self.under_way is not None and self.under_way.is_fresh
        self.screened += [] if is_fresh else changes
        self.winners = [name for name in self.winners if name not in changes] + list(seemed_to_help)
        self.under_way = None

    def error_for(self, names: Sequence[str], error: float) -> float:
        """Take from the error of the session what fresh trials of some winners may spend, and return it.

        Changes that have not run yet keep their part of it.
        """
        until_now = error * len(self.screened) / len(self.chosen) - self.gain_error
        spent = until_now * len(set(names) & set(self.winners)) / len(self.winners)
        self.gain_error += spent
        return spent

    @property
    def left(self) -> list[str]:
        """The changes without a last word."""
        return [name for name in self.chosen if name not in self.screened or name in self.winners]


@dataclass(frozen=True)
class SessionState:
    """A session that can go on."""

    schema: Count
    identity: Identity
    words: list[str]  # the program's command, without secrets
    is_python: bool
    wishes: Wishes
    memory_bytes: Count  # of a training
    has_ended: bool  # whether the first run came to its end by itself
    results: dict[str, Any]  # so far
    progress: Progress


def save_state(folder: Path, state: SessionState) -> None:
    """Write the state to the run folder, in place of an older one.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(folder / FILE, msgspec.json.encode(state))


def load_state(folder: Path) -> SessionState:
    """Return the state of the session in a run folder.

    Raises:
        RunFolderError: there is none that can be read.
    """
    try:
        state = msgspec.json.decode(read_file(folder / FILE, MOST_BYTES), type=SessionState)
        from_data(state.results)
    except FileNotFoundError:
        raise RunFolderError(f"{folder}: no session of trials to go on with") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunFolderError(f"{folder / FILE} cannot be read: {error}") from None
    if state.schema != SCHEMA:
        raise RunFolderError(f"{folder / FILE} is of another version of training-profiler")
    return state


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other sessions from going on in the same run folder.

    Raises:
        RunFolderError: another session does.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"{folder}: another session of trials is at work there") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)
