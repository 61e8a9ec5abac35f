"""How a trial is kept apart: what the launcher, the processes of the trial and the caller agree on."""

import json
from pathlib import Path
from typing import Final, NamedTuple

TRIAL: Final = "TRAINING_PROFILER_TRIAL"  # variable of every process of a trial: the folder of its plan

ENDED: Final = "ended.txt"  # the names of processes that the program left behind
WRITTEN: Final = "written.json"

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

    @property
    def folder(self) -> Path:
        """Return the folder of the plan's own files."""
        return Path(self.scratch, "trial")

    @property
    def layers(self) -> Path:
        """Return the folder of what the trial writes."""
        return Path(self.scratch, "layers")

    def save(self) -> None:
        """Write the plan for the trial's processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(json.dumps(self._asdict()), encoding="utf-8")

    def read_ended(self) -> list[str]:
        """Return the names of processes that the launcher ended after the program."""
        try:
            return (self.folder / ENDED).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # the launcher was killed
            return []


def load_plan(folder: str) -> Plan:
    """Return the plan that was saved in its folder."""
    fields = json.loads(Path(folder, "plan.json").read_text(encoding="utf-8"))
    return Plan(**{**fields, "used": tuple(fields["used"]), "writable": tuple(fields["writable"])})
