"""A large table of embeddings with dense gradients is found where a step uses few of its rows."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.program import EmbeddingFacts, OptimizerFacts, ProgramFacts

ADAM = OptimizerFacts("Adam", 4, ("float32",), ("cpu",), has_foreach=True, has_fused=True)
TABLE = EmbeddingFacts("EmbeddingBag", 300_000, 0.005, 0.99)


def findings_of(table: EmbeddingFacts, optimizer: float = 0.8) -> dict[str, Finding]:
    rest = 1 - optimizer
    run = snapshot_of({"forward_pass": 0.3 * rest, "backward_pass": 0.7 * rest, "optimizer_step": optimizer})
    run = replace(run, program=ProgramFacts(ADAM, embedding=table), wall_s=10.0)
    return {finding.code: finding for finding in diagnose(run)}


def test_a_table_of_which_a_step_uses_few_rows_is_found() -> None:
    found = findings_of(TABLE)
    assert next(iter(found)) == "dense-embedding"
    finding = found["dense-embedding"]
    assert "updates all 300,000 rows of an EmbeddingBag in each step (78.8 ms per step)" in finding.message
    assert "a step uses 0.5% of them" in finding.message
    assert finding.potential_saving_s == pytest.approx(0.995 * 0.99 * 8.0)
    assert finding.losses.startswith("differ")
    assert "optimizer-heavy" not in found


@pytest.mark.parametrize(
    ("table", "optimizer"),
    [
        (TABLE._replace(used=0.9), 0.8),  # as where an output layer shares it
        (TABLE._replace(part=0.1), 0.8),  # as where another optimizer has the rest
        (TABLE, 0.1),
    ],
)
def test_other_tables_are_not_reported(table: EmbeddingFacts, optimizer: float) -> None:
    assert "dense-embedding" not in findings_of(table, optimizer)
