"""The rule about garbage collections, and uneven steps that they explain."""

from dataclasses import replace

from tests.support.recording import collecting, snapshot_of
from training_profiler.model.snapshot import Snapshot


def training(every: int, seconds: float, generation: int = 2, is_asked: bool = False) -> Snapshot:
    """Return a run whose steps take 100 ms, and have a collection every so many steps."""
    run = collecting()
    for step in range(1, 101):
        run.spend("forward_pass", 0.03)
        with run.section("backward_pass"):
            run.clock.advance(0.06)
            if step % every == 0:
                run.collect(seconds + 0.005 * (step == 50), generation, is_asked)
        run.step(optimizer_step=0.01)
    return run.snapshot()


def of_data() -> Snapshot:
    """Return a run whose data loading has the collections, which leave it the rest."""
    run = collecting()
    for step in range(1, 101):
        with run.section("data_loading"):
            run.clock.advance(0.02)
            if step % 2 == 0:
                run.collect(0.1)
        run.step(forward_pass=0.01, backward_pass=0.02)
    return run.snapshot()


def of_first_steps() -> Snapshot:
    run = collecting()
    for step in range(100):
        run.spend("forward_pass", 0.1)
        if step < 9:
            with run.section("backward_pass"):
                run.collect(0.5)
        run.step()
    return run.snapshot()


SAYS = {
    "garbage-collection": {
        "full, and not uneven steps": training(10, 0.25),
        "asked for": training(1, 0.02, is_asked=True),
        "young": training(1, 0.02, generation=0),
        "while data is loaded": of_data(),
    },
    "step-time-varies": {"rare": replace(training(20, 0.25), thresholds={"garbage-collection": 0.5})},
}
SILENT = {
    "garbage-collection": {
        "unknown": snapshot_of({"forward_pass": 0.5}),
        "2.9 %": training(10, 0.03),
        "in two steps": training(50, 0.3),
        "of the first steps": of_first_steps(),
    }
}
