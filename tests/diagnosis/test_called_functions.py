"""Unattributed time says what it is spent on where the called functions show it."""

from dataclasses import replace

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.model.snapshot import Health, LineStats, Snapshot
from training_profiler.reports.verdict import important, verdict


def run_with(*lines: tuple[dict[str, float], float], forward: float = 0.25, inside: str = "") -> Snapshot:
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
    run = run_with()
    finding = unexplained(run)
    assert finding.message == "50.0% of step time is unattributed (62.5 ms per step)"
    assert (finding.potential_saving_s, finding.saving_range_s, finding.evidence["unknown_s"]) == (0.0, None, 4.0)
    assert important(run, [finding]) == [finding]
    assert verdict(run, [finding])[:3] == ("UNATTRIBUTED: 50.0% of step time is unattributed", "", "")


def test_functional_code_without_a_line_that_only_computes_is_not_shown() -> None:
    run = snapshot_of({"backward_pass": 0.5}, steps=64, step_s=0.125)
    assert important(run, [unexplained(run)]) == []
    longer = snapshot_of({"backward_pass": 0.46}, steps=64, step_s=0.125)
    assert important(longer, [unexplained(longer)]) == []
    other = snapshot_of({"backward_pass": 0.3}, steps=64, step_s=0.125)
    assert important(other, [unexplained(other)]) != []


def recording(run: Snapshot, span_s: float) -> Snapshot:
    return replace(run, health=Health(span_s=span_s))


COPY = run_with(({"copy.deepcopy": 1.0}, 1.0))
FUNCTIONAL = run_with(({"sort": 0.6}, 0.6), forward=0.0)
COMPUTES = snapshot_of({"backward_pass": 0.25}, steps=64, step_s=0.125)
LOOP = LineStats("train.py", 10, "main", 0.7, 100, called={"<python>": 0.7})
NO_LINES = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.3}, steps=64, step_s=0.125)
NAMES = (
    *("urlopen", "requests.post", "roc_auc_score", "torch.tensor", "torch.optim.AdamW", "Categorical", ".log_prob"),
    *("torch.zeros_like", "tensor.clone", "p.mul_", ".lerp_", "torch.cuda.empty_cache", "plt.pause", "fig.canvas.draw"),
    *("plt.savefig", "torch.log", "torch.stack", "f", ".backward", "env.step"),
)
SAYS = {
    "unexplained": {
        # All of a line that is for the copy is saved; the rest has no remedy that is known.
        "a copy": run_with(({"copy.deepcopy": 0.6}, 0.7), ({"zip": 0.3}, 0.3)),
        # At 6.25 ms a span, the two spans of a step of 125 ms could take 12.5 of the 62.5 ms.
        "recording takes a part": recording(COPY, 0.00625),
        "recording takes a part of what is not known": recording(run_with(({"copy.deepcopy": 0.6}, 0.7)), 0.00625),
        "a line that mostly does something else": run_with(
            ({"copy.deepcopy": 0.4, "zip": 0.5}, 0.9), ({"copy.deepcopy": 0.1}, 0.1)
        ),
        "checks of distributions": run_with(
            ({"<checks>": 0.5, "Categorical": 0.125}, 0.65), ({"<checks>": 0.1, ".log_prob": 0.125}, 0.35)
        ),
        "distributions without checks": run_with(({"Categorical": 0.5, ".log_prob": 0.3}, 0.9)),
        "a file, which may be written": run_with(({"open": 0.6}, 0.7)),
        "ten lines": run_with(*(({"loss.item": 0.04, ".tolist": 0.03}, 0.1) for _ in range(10))),
        "statistics of weights": run_with(({".norm": 0.25, "p.std": 0.2}, 0.8)),
        "two activities": run_with(({"print": 0.25}, 0.3), ({".norm": 0.2}, 0.3)),
        "a small part": run_with(({"print": 0.2}, 0.2)),
        "a library's loop": run_with(({"print": 0.9}, 0.9), inside="lib/a.py:3 f"),
        "functional code": replace(
            FUNCTIONAL, sections={name: each for name, each in FUNCTIONAL.sections.items() if name != "forward_pass"}
        ),
        "a loop": run_with(({"<python>": 0.6, "zip": 0.1}, 0.8)),
        "a loop of functional code": replace(COMPUTES, lines={"other": (LOOP,)}),
        "no line": run_with(),
        "no line of a section": NO_LINES,
        "no line in a library": replace(NO_LINES, phases={"evaluation": 0.1}),
        **{f"in {name}()": run_with(({name: 0.8}, 0.9)) for name in NAMES},
    }
}
SILENT = {"unexplained": {"recording may take all of it": recording(COPY, 0.028)}}
