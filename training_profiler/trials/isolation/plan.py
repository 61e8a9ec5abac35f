"""How a trial is kept apart: what the launcher, the processes of the trial and the caller agree on."""

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

TRIAL: Final = "TRAINING_PROFILER_TRIAL"  # variable of every process of a trial: the folder of its plan

FOLDER: Final = "trial"  # of the plan's own files
ENDED: Final = "ended.txt"  # the names of processes that the program left behind
WRITTEN: Final = "written.json"
SHARED_MEMORY: Final = "shared_memory.txt"  # names below /dev/shm that the trial may leave behind

NAMESPACES: Final = "namespaces"
SHARED_PROCESSES: Final = "namespaces, without one of processes"
GUARDED: Final = "redirection, guarded by the kernel"
REDIRECTED: Final = "redirection"
WAYS: Final = (NAMESPACES, SHARED_PROCESSES, GUARDED, REDIRECTED)  # the strongest first


class Plan(NamedTuple):
    """A trial's way and folders.

    It probably writes to the folders ``used``; what it writes to those of ``writable`` stays.
    """

    way: str
    scratch: str
    used: tuple[str, ...]
    writable: tuple[str, ...]
    layers_in_memory: bool
    most_file_bytes: int
    temporary: str = ""
    """The folder for temporary files, where the usual one cannot be used."""

    @property
    def is_redirected(self) -> bool:
        """Return whether Python's functions are replaced, because the kernel cannot show another file system."""
        return self.way in (GUARDED, REDIRECTED)

    @property
    def passed(self) -> tuple[str, ...]:
        """Return the folders whose files are the real ones while Python's functions are replaced."""
        folders = ("/dev", "/proc", self.scratch, self.temporary, *self.writable)
        return tuple(folder for folder in folders if folder and os.path.isdir(folder))

    @property
    def folder(self) -> Path:
        """Return the folder of the plan's own files."""
        return Path(self.scratch, FOLDER)

    @property
    def layers(self) -> Path:
        """Return the folder of what the trial writes."""
        return Path(self.scratch, "layers")

    def save(self) -> None:
        """Write the plan for the trial's processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(json.dumps({**self._asdict(), "passed": self.passed}), encoding="utf-8")

    def read_ended(self) -> list[str]:
        """Return the names of processes that the launcher ended after the program."""
        try:
            return (self.folder / ENDED).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # the launcher was killed
            return []


def load_plan(folder: str) -> Plan:
    """Return the plan that was saved in its folder."""
    fields = json.loads(Path(folder, "plan.json").read_text(encoding="utf-8"))
    del fields["passed"]  # for processes that do not import this module
    return Plan(**{**fields, "used": tuple(fields["used"]), "writable": tuple(fields["writable"])})
