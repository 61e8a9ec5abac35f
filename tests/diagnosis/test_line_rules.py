"""Rules about lines: that wait for the device, run Python in backward passes, or take time in no section."""

from dataclasses import replace

import pytest

from tests.diagnosis.cases import CALL, PLAIN, backward
from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.places import in_python
from training_profiler.model.program import CompileFacts, OptimizerFacts, ProgramFacts
from training_profiler.model.snapshot import Health, LineStats, Snapshot
from training_profiler.reports.verdict import important, verdict


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


def in_backward(
    number: int, share: float, samples: int = 50, phase: str = "custom backward", **called: float
) -> LineStats:
    """Return a line of a ``backward``; ``called`` has shares by function, with ``_`` for dots."""
    names = {name.replace("_", "."): part for name, part in called.items()}
    return LineStats("ops.py", number, "Gelu.backward", share, samples, phase=phase, called=names)


def spent(*lines: LineStats) -> float:
    return sum(each.share for each in in_python(lines))


TANH = in_backward(22, 0.2, np_tanh=0.02)  # 0.5 * (1 + np.tanh(a ** 3)) * ...


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ((in_backward(22, 0.2, torch_tanh=0.02),), 0.0),
        ((in_backward(22, 0.2, np_tanh=0.02), in_backward(23, 0.1, torch_matmul=0.05)), 0.02),
        ((in_backward(22, 0.2, np_random_permutation=0.02), in_backward(23, 0.1)), 0.02),
        ((in_backward(22, 0.2, samples=20, np_tanh=0.02), in_backward(23, 0.1)), 0.02),
        ((in_backward(22, 0.2, re_sub=0.1),), 0.1),
        ((in_backward(22, 0.1, np_mean=0.1), in_backward(23, 0.2)), 0.1),
        ((in_backward(22, 0.1, np_exp=0.01), in_backward(24, 0.1, torch_norm=0.1)), 0.01),
    ],
    ids=["torch", "both", "random numbers", "few calls seen", "another library", "another line", "a norm"],
)
def test_arithmetic_beside_other_calls_may_be_torchs(lines, seconds):
    assert spent(*lines) == pytest.approx(seconds)


def of_calls(*lines: tuple[dict[str, float], float], forward: float = 0.25, inside: str = "") -> Snapshot:
    """Return a run whose unattributed half has these lines: parts of the half by the called function, and in all."""
    run = snapshot_of({"forward_pass": forward, "backward_pass": 0.25}, steps=64, step_s=0.125)
    half = run.sections["other"].share
    stats = [
        LineStats("train.py", number, "main", whole * half, 100, inside=inside, called=_scaled(called, half))
        for number, (called, whole) in enumerate(lines, 10)
    ]
    return replace(run, lines={"other": tuple(stats)})


def _scaled(called: dict[str, float], by: float) -> dict[str, float]:
    return {name: part * by for name, part in called.items()}


def unexplained(run: Snapshot) -> Finding:
    return next(finding for finding in diagnose(run) if finding.code == "unexplained")


def test_time_without_a_line_is_shown_and_no_saving_is_claimed() -> None:
    run = of_calls()
    finding = unexplained(run)
    assert finding.message == "50.0% of step time is in no section (it takes 62.5 ms per step)"
    assert (finding.potential_saving_s, finding.saving_range_s, finding.evidence["unknown_s"]) == (0.0, None, 4.0)
    assert important(run, [finding]) == [finding]
    text = "TOO SHORT TO JUDGE, after 64 steps: 50.0% of step time is in no section"
    assert verdict(run, [finding])[:3] == (text, "", "")


def test_functional_code_without_a_line_that_only_computes_is_not_shown() -> None:
    run = snapshot_of({"backward_pass": 0.5}, steps=64, step_s=0.125)
    assert important(run, [unexplained(run)]) == []
    longer = snapshot_of({"backward_pass": 0.46}, steps=64, step_s=0.125)
    assert important(longer, [unexplained(longer)]) == []
    other = snapshot_of({"backward_pass": 0.3}, steps=64, step_s=0.125)
    assert important(other, [unexplained(other)]) != []


def recording(run: Snapshot, span_s: float) -> Snapshot:
    return replace(run, health=Health(span_s=span_s))


COPY = of_calls(({"copy.deepcopy": 1.0}, 1.0))
AVERAGE = of_calls(({"slow.copy_": 0.1, "<parameters>": 0.4}, 0.5), ({"<parameters>": 0.3}, 0.3))
AVERAGE = of_calls(({"slow.copy_": 0.1, "<parameters>": 0.4}, 0.5), ({"<parameters>": 0.3}, 0.3))
OWN_UPDATE = replace(of_calls(({"m.copy_": 0.1}, 0.5), ({}, 0.4)), program=ON_CPU)
FUNCTIONAL = of_calls(({"sort": 0.6}, 0.6), forward=0.0)
COMPUTES = snapshot_of({"backward_pass": 0.25}, steps=64, step_s=0.125)
LOOP_CALLED = LineStats("train.py", 10, "main", 0.7, 100, called={"<python>": 0.7})
NO_LINES = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.3}, steps=64, step_s=0.125)
NAMES = (
    *("urlopen", "requests.post", "roc_auc_score", "torch.tensor", "torch.optim.AdamW", "Categorical", ".log_prob"),
    *("torch.zeros_like", "tensor.clone", "p.mul_", ".lerp_", "torch.cuda.empty_cache", "plt.pause", "fig.canvas.draw"),
    *("plt.savefig", "torch.log", "torch.stack", "f", ".backward", "env.step", "self.optimizer.step"),
)


SAYS = {
    "python-in-backward": {"NumPy": backward(TANH, in_backward(23, 0.1, np_exp=0.01), CALL)},
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
        "in a trainer, beside a line of the program": run_with(
            LineStats("train.py", 30, "main", share=0.45, samples=81, inside=TRAINER), calling(42, 0.05, "f")
        ),
        "in a trainer and its callback": run_with(
            LineStats("train.py", 30, "main", share=0.2, samples=36, inside=TRAINER),
            LineStats("train.py", 42, "Ends.on_step_end", share=0.3, samples=54, phase="on_step_end"),
        ),
        "beside the loss": run_with(calling(42, 0.375, "F.cross_entropy"), calling(50, 0.125, "write")),
        "beside a smooth loss": run_with(
            calling(42, 0.375, "nn.functional.smooth_l1_loss"), calling(50, 0.125, "write")
        ),
        "a line with more than the loss": run_with(
            replace(calling(42, 0.5, "F.cross_entropy"), called={"F.cross_entropy": 0.25, "print": 0.25})
        ),
        "functions that only sound like a loss": run_with(calling(42, 0.5, "log_losses")),
        # All of a line that is for the copy is saved; the rest has no remedy that is known.
        "a copy": of_calls(({"copy.deepcopy": 0.6}, 0.7), ({"zip": 0.3}, 0.3)),
        # At 6.25 ms a span, the two spans of a step of 125 ms could take 12.5 of the 62.5 ms.
        "recording takes a part": recording(COPY, 0.00625),
        "recording takes a part of what is not known": recording(of_calls(({"copy.deepcopy": 0.6}, 0.7)), 0.00625),
        "a line that mostly does something else": of_calls(
            ({"copy.deepcopy": 0.4, "zip": 0.5}, 0.9), ({"copy.deepcopy": 0.1}, 0.1)
        ),
        "checks of distributions": of_calls(
            ({"<checks>": 0.5, "Categorical": 0.125}, 0.65), ({"<checks>": 0.1, ".log_prob": 0.125}, 0.35)
        ),
        "distributions without checks": of_calls(({"Categorical": 0.5, ".log_prob": 0.3}, 0.9)),
        "a file, which may be written": of_calls(({"open": 0.6}, 0.7)),
        "a file that is written, beside a line that computes": of_calls(
            ({"open": 0.4, "json.dump": 0.1}, 0.5), ({}, 0.5)
        ),
        "ten lines": of_calls(*(({"loss.item": 0.04, ".tolist": 0.03}, 0.1) for _ in range(10))),
        "statistics of weights": of_calls(({".norm": 0.25, "p.std": 0.2}, 0.8)),
        "two activities": of_calls(({"print": 0.25}, 0.3), ({".norm": 0.2}, 0.3)),
        "a small part": of_calls(({"print": 0.2}, 0.2)),
        "a library's loop": of_calls(({"print": 0.9}, 0.9), inside="lib/a.py:3 f"),
        "functional code": replace(
            FUNCTIONAL, sections={name: each for name, each in FUNCTIONAL.sections.items() if name != "forward_pass"}
        ),
        "a loop": of_calls(({"<python>": 0.6, "zip": 0.1}, 0.8)),
        "a loop over a dictionary": of_calls(({"<python>": 0.1, "seen.get": 0.3, "random.shuffle": 0.1}, 0.6)),
        "an average of its own": replace(AVERAGE, program=ON_CPU),
        "an update of its own, in a loop over parameters": AVERAGE,
        "an update of its own": replace(OWN_UPDATE, program=ProgramFacts()),
        "lines beside an optimizer of torch": OWN_UPDATE,
        "a loop of functional code": replace(COMPUTES, lines={"other": (LOOP_CALLED,)}),
        "no line": of_calls(),
        "no line of a section": NO_LINES,
        "no line in a library": replace(NO_LINES, phases={"evaluation": 0.1}),
        "no line beside a hook of the program's": replace(NO_LINES, phases={"forward hook": 0.1}),
        **{f"in {name}()": of_calls(({name: 0.8}, 0.9)) for name in NAMES},
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
        "recording may take all of it": recording(COPY, 0.028),
        "little beside the loss": run_with(calling(42, 0.4375, "F.cross_entropy"), calling(50, 0.0625, "write")),
        "little beside a loss": run_with(calling(42, 0.4375, "mse_loss"), calling(50, 0.0625, "write")),
    },
    "python-in-backward": {
        "torch": backward(in_backward(22, 0.3, torch_sign=0.3), CALL),
        "at the threshold": backward(in_backward(22, 0.1, np_tanh=0.1), CALL),
        "few samples": backward(in_backward(22, 0.3, samples=19, np_tanh=0.3), CALL),
        "a hook": backward(in_backward(22, 0.3, phase="backward hook", np_tanh=0.3), CALL),
        "recomputed": backward(in_backward(22, 0.3, phase="recomputation", np_tanh=0.3), CALL),
        "a GPU": backward(TANH, in_backward(23, 0.1, np_exp=0.01), CALL, optimizer=PLAIN._replace(devices=("cuda",))),
        "compiled": backward(TANH, in_backward(23, 0.1, np_exp=0.01), CALL, compiled=CompileFacts(1, 2.0)),
    },
}
