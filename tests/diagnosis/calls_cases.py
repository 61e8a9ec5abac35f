"""A fix that is an argument names the call, its line, and the arguments that it has now."""

from dataclasses import replace

from tests.support.recording import snapshot_of
from training_profiler.model.program import LOADER, OPTIMIZER, CallFacts, CallSite, OptimizerFacts, ProgramFacts
from training_profiler.model.snapshot import LoaderStats, Snapshot

TRAIN = CallFacts(LOADER, "DataLoader", CallSite("train.py", 41), (("num_workers", "0"), ("pin_memory", "False")))
VALIDATE = CallFacts(LOADER, "DataLoader", CallSite("train.py", 44), (("num_workers", "4"),))
IN_LIBRARY = TRAIN._replace(site=CallSite("train.py", 9, inside="acme/data.py:7 make"))
ADAM = CallFacts(OPTIMIZER, "Adam", CallSite("train.py", 50), (("fused", "None"),))
SGD = CallFacts(OPTIMIZER, "SGD", CallSite("train.py", 52), (("fused", "None"),))


def waiting(calls: tuple[CallFacts, ...], made_at: str = "train.py:41") -> Snapshot:
    run = snapshot_of({"data_loading": 0.5, "backward_pass": 0.5})
    loader = LoaderStats("0", 100, None, 5.0, num_workers=0, made_at=made_at)
    return replace(run, loaders=(loader,), program=ProgramFacts(calls=calls))


def optimizing() -> Snapshot:
    run = snapshot_of({"optimizer_step": 0.5, "backward_pass": 0.5})
    facts = ProgramFacts(OptimizerFacts("SGD", 20, ("float32",), ("cpu",), has_fused=True), calls=(ADAM, SGD))
    return replace(run, program=facts)


SAYS = {
    "data-loading-bound": {
        "one of two loaders has a call": waiting((TRAIN, VALIDATE)),
        "the only call of a loader": waiting((TRAIN, ADAM), ""),
        "a library's call": waiting((IN_LIBRARY,), "train.py:9"),
        "no call is known": waiting(()),
        "which of two calls is not known": waiting((TRAIN, VALIDATE), ""),
        "the call of an optimizer": waiting((ADAM,), ""),
        "the call of another loader": waiting((VALIDATE,)),
    },
    "optimizer-heavy": {"the call of the one with most parameters": optimizing()},
}
