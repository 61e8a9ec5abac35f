"""A fix that is an argument names the call, its line, and the arguments that it has now."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.snapshot.program import LOADER, OPTIMIZER, CallFacts, CallSite, OptimizerFacts, ProgramFacts
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot

TRAIN = CallFacts(LOADER, "DataLoader", CallSite("train.py", 41), (("num_workers", "0"), ("pin_memory", "False")))
VALIDATE = CallFacts(LOADER, "DataLoader", CallSite("train.py", 44), (("num_workers", "4"),))
IN_LIBRARY = TRAIN._replace(site=CallSite("train.py", 9, inside="acme/data.py:7 make"))
ADAM = CallFacts(OPTIMIZER, "Adam", CallSite("train.py", 50), (("fused", "None"),))
SGD = CallFacts(OPTIMIZER, "SGD", CallSite("train.py", 52), (("fused", "None"),))


def waiting(calls: tuple[CallFacts, ...], made_at: str = "train.py:41") -> Snapshot:
    run = snapshot_of({"data_loading": 0.5, "backward_pass": 0.5})
    loader = LoaderStats("0", 100, None, 5.0, num_workers=0, made_at=made_at)
    return replace(run, loaders=(loader,), program=ProgramFacts(calls=calls))


def fix_of(snapshot: Snapshot, code: str) -> str:
    return next(finding.fix for finding in diagnose(snapshot) if finding.code == code)


@pytest.mark.parametrize("made_at", ["train.py:41", ""])
def test_waiting_names_the_loaders_call(made_at):
    calls = (TRAIN, VALIDATE) if made_at else (TRAIN, ADAM)
    fix = fix_of(waiting(calls, made_at), "data-loading-bound")
    assert fix.endswith(" (train.py:41: num_workers=0, pin_memory=False)")


def test_a_librarys_call_is_named_too():
    fix = fix_of(waiting((IN_LIBRARY,), "train.py:9"), "data-loading-bound")
    assert fix.endswith(" (train.py:9: num_workers=0, pin_memory=False; made in acme/data.py:7 make)")


@pytest.mark.parametrize(
    ("calls", "made_at"), [((), "train.py:41"), ((TRAIN, VALIDATE), ""), ((ADAM,), ""), ((VALIDATE,), "train.py:41")]
)
def test_no_call_is_named_where_it_is_not_known_which(calls, made_at):
    found = next(one for one in diagnose(waiting(calls, made_at)) if one.code == "data-loading-bound")
    assert "train.py" not in found.fix
    assert "call" not in found.evidence


def test_the_optimizer_with_the_most_parameters_is_named():
    run = snapshot_of({"optimizer_step": 0.5, "backward_pass": 0.5})
    facts = ProgramFacts(OptimizerFacts("SGD", 20, ("float32",), ("cpu",), has_fused=True), calls=(ADAM, SGD))
    assert fix_of(replace(run, program=facts), "optimizer-heavy").endswith(" (train.py:52: fused=None)")
