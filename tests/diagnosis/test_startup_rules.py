"""The rule about the time before the first step."""

from dataclasses import replace

from tests.support.recording import snapshot_of
from training_profiler.snapshot.snapshot import StartupPart, StartupStats


def begun(*parts, wall_s=60.0, has_steps=True):
    total_s = sum(part.seconds for part in parts)
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.6})
    return replace(run, wall_s=wall_s, startup=StartupStats(total_s, has_steps, parts))


TOKENIZED = StartupPart("data set", 42.0, (("train.py:12 load", 36.0), ("train.py:14 load", 4.0)))


SAYS = {
    "slow-startup": {
        "a data set": begun(StartupPart("imports", 3.0), TOKENIZED),
        "other code by its line": begun(StartupPart("other code", 42.0, (("train.py:5 <module>", 41.0),))),
        "just over half": begun(TOKENIZED, wall_s=79.0),
    }
}
SILENT = {
    "slow-startup": {
        "half of the run": begun(TOKENIZED, wall_s=80.0),
        "a short start": begun(StartupPart("data set", 10.0, (("train.py:12 load", 10.0),)), wall_s=11.0),
        "imports": begun(StartupPart("imports", 42.0, (("train.py:1 <module>", 42.0),))),
        "compiling": begun(StartupPart("compile", 42.0, (("train.py:9 <module>", 42.0),))),
        "no line of the program": begun(StartupPart("other code", 42.0)),
        "no steps": begun(TOKENIZED, has_steps=False),
        "nothing seen": begun(),
    }
}
