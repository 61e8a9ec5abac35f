"""How a trial is kept apart: what the launcher, the processes of the trial and the caller agree on."""

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

TRIAL: Final = "TRAINING_PROFILER_TRIAL"  # variable of every process of a trial: the folder of its plan

FOLDER: Final = "trial"  # of the plan's own files
SHARED_MEMORY: Final = "shared_memory.txt"  # names below /dev/shm that the trial may leave behind

NAMESPACES: Final = "namespaces"
SHARED_PROCESSES: Final = "namespaces, without one of processes"
GUARDED: Final = "copy, guarded by the kernel"
UNGUARDED: Final = "copy"
WAYS: Final = (NAMESPACES, SHARED_PROCESSES, GUARDED)  # the strongest first
WAYS_WITH_WRITES: Final = (NAMESPACES, SHARED_PROCESSES, UNGUARDED)  # if the user allows writing outside of the copy


class Plan(NamedTuple):
    """A trial's way and folders; it probably writes to the folders ``used``."""

    way: str
    scratch: str
    used: tuple[str, ...]
    layers_in_memory: bool
    most_file_bytes: int
    temporary: str = ""
    """The folder for temporary files, where the usual one cannot be used."""

    @property
    def is_copy(self) -> bool:
        """Return whether the program runs in a copy of its folder, because the kernel gives no namespaces."""
        return self.way in (GUARDED, UNGUARDED)

    @property
    def writable(self) -> tuple[str, ...]:
        """Return the folders that a guarded trial may write to."""
        return tuple(folder for folder in ("/dev", "/proc", self.scratch, self.temporary) if os.path.isdir(folder))

    @property
    def folder(self) -> Path:
        """Return the folder of the plan's own files."""
        return Path(self.scratch, FOLDER)

    @property
    def layers(self) -> Path:
        """Return the folder of what the trial writes."""
        return Path(self.scratch, "layers")

    @property
    def results(self) -> Path:
        """Return the folder of what the trial hands to the caller."""
        return Path(self.scratch, "results")

    def save(self) -> None:
        """Write the plan for the trial's processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(json.dumps(self._asdict()), encoding="utf-8")


def load_plan(folder: str) -> Plan:
    """Return the plan that was saved in its folder."""
    fields = json.loads(Path(folder, "plan.json").read_text(encoding="utf-8"))
    return Plan(**{**fields, "used": tuple(fields["used"])})
