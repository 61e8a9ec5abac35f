"""The rule about lines that wait for the device."""

from dataclasses import replace

from tests.support.recording import snapshot_of
from training_profiler.model.program import OptimizerFacts, ProgramFacts
from training_profiler.model.snapshot import LineStats, Snapshot


def line(number: int, share: float, waiting: float, call: str = "item") -> LineStats:
    return LineStats(
        "train.py", number, "main", share=share, samples=round(share * 1000), waiting_share=waiting, waits_in=call
    )


def run_with(*lines: LineStats, section: str = "other", steps: int = 64) -> Snapshot:
    run = snapshot_of({"forward_pass": 0.25, "backward_pass": 0.25}, steps=steps, step_s=0.125)
    return replace(run, lines={section: lines})


def calling(number: int, share: float, function: str) -> LineStats:
    return LineStats("train.py", number, "main", share=share, samples=round(share * 1000), called={function: share})


TRAINER = "transformers/trainer.py:1914 Trainer._training_step"
LOOP = "transformers/trainer.py:2310 Trainer._inner_training_loop > callback on_step_end"
ON_CPU = ProgramFacts(OptimizerFacts("SGD", 12, ("float32",), ("cpu",)))
WAITS = line(42, 0.25, 0.25)


def generating(*lines: LineStats) -> Snapshot:
    run = snapshot_of({"data_generation": 0.5, "backward_pass": 0.25}, steps=64, step_s=0.125)
    return replace(run, lines={"data_generation": lines})


def read_in(section: str, step_total_s: float) -> Snapshot:
    """Return a run that reads numbers in a section of its own."""
    run = run_with(line(27, 0.25, 0.25, "tolist"), section=section)
    stats = replace(run.sections["forward_pass"], name=section, step_total_s=step_total_s)
    return replace(run, sections={**run.sections, section: stats})


SAYS = {
    "waits-for-device": {
        "two lines": run_with(line(42, 0.25, 0.1875), line(50, 0.0625, 0.0625, "cpu")),
        "Hugging Face's trainer reads": run_with(replace(line(42, 0.25, 0.25, "bool"), inside=TRAINER)),
        "a library reads": run_with(replace(WAITS, inside="lightning/loop.py:9 fit > lightning/bar.py:3 show")),
        "on the CPU there is no device": replace(run_with(WAITS), program=ON_CPU),
        "in a section of the step": run_with(WAITS, section="forward_pass"),
    },
    "data-generation-bound": {
        "its line": generating(
            LineStats("train.py", 9, "make", share=0.375, samples=75),
            LineStats("train.py", 10, "make", share=0.0625, samples=12),
        ),
        "scattered lines": generating(*(LineStats("a.py", i, f"f{i}", share=0.02, samples=20) for i in range(20))),
    },
    "unexplained": {
        "spread over a module": run_with(
            *(LineStats("train.py", i, "<module>", share=0.5 / 39, samples=20) for i in range(1, 40))
        ),
        "in a trainer": run_with(LineStats("train.py", 30, "main", share=0.5, samples=90, inside=LOOP)),
        "beside the loss": run_with(calling(42, 0.375, "F.cross_entropy"), calling(50, 0.125, "write")),
        "beside a smooth loss": run_with(
            calling(42, 0.375, "nn.functional.smooth_l1_loss"), calling(50, 0.125, "write")
        ),
        "a line with more than the loss": run_with(
            replace(calling(42, 0.5, "F.cross_entropy"), called={"F.cross_entropy": 0.25, "print": 0.25})
        ),
        "functions that only sound like a loss": run_with(calling(42, 0.5, "log_losses")),
    },
}
SILENT = {
    "waits-for-device": {
        "no lines": run_with(),
        "no wait": run_with(line(42, 0.5, 0.0, "")),
        "a twentieth": run_with(line(42, 0.5, 0.05)),
        "few samples": run_with(replace(WAITS, samples=9)),
        "outside steps": read_in("validation_epoch", 0.0),
        # They come from arrays and samples in memory, and each batch needs its own.
        "to make a batch": read_in("data_loading", 2.0),
        "to make a first batch": read_in("first_fetch", 2.0),
    },
    "unexplained": {
        "little beside the loss": run_with(calling(42, 0.4375, "F.cross_entropy"), calling(50, 0.0625, "write")),
        "little beside a loss": run_with(calling(42, 0.4375, "mse_loss"), calling(50, 0.0625, "write")),
    },
}
