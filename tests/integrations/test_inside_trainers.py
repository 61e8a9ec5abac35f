"""Causes of lost time inside a trainer are named with their line, and what looks like them gets none of their names.

``tests/planted`` has each of them in a plain loop, with the program that is mended.
"""

import json
from pathlib import Path

import pytest

from tests.system.launching import start_in_fork
from tests.system.scripts import ROOT, environment, finish

pytestmark = pytest.mark.integrations
PROGRAM = Path(__file__).parent / "programs" / "inside_trainer.py"
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "HF_HOME": "home",
    "RECTIFIED_FLOW_PROFILE_SAMPLE_HZ": "200",
    "RECTIFIED_FLOW_PROFILE_THRESHOLDS": "machine-busy=1,cpu-oversubscribed=1,unused-gradients=0.01,outside-steps=0.03",
}
# Cause -> the finding, and what it says: text of the program stands for its line.
NAMED = {
    "padding": ("padding", "def collate"),
    "tokenizer": ("data-loading-bound", ": each epoch "),  # tokenizes, or makes, the same
    "epoch-end": ("outside-steps", "file.write(f"),
    "mask": ("computed-constants", "mask[row, column] ="),
    "unused": ("unused-gradients", "parameters that are in no optimizer"),
    "hooks": ("growing-work", "self.layer.register_forward_hook"),
}


@pytest.mark.parametrize(
    ("trainer", "causes"),
    [
        ("hugging-face", "padding tokenizer"),
        ("hugging-face", "mask unused epoch-end"),
        ("hugging-face", "hooks"),
        ("hugging-face", "alike"),
        ("lightning", "padding tokenizer"),
        ("lightning", "mask unused epoch-end"),
        ("lightning", "alike"),
    ],
)
def test_a_cause_inside_a_trainer_is_named(tmp_path: Path, trainer: str, causes: str) -> None:
    words, variables = [str(PROGRAM), trainer, *causes.split()], environment(None, PYTHONPATH=str(ROOT), **VARIABLES)
    ended = finish(start_in_fork(tmp_path, words, variables, True), tmp_path)
    assert ended.status == 0, ended.stderr
    findings = {each["code"]: each for each in ended.report["findings"]}
    source = PROGRAM.read_text().splitlines()
    for cause in NAMED.keys() & causes.split():
        if cause == "hooks" and "forward-hooks" in findings:  # beside other work, that these grow may not be shown
            continue
        code, text = NAMED[cause]
        said = json.dumps(findings.get(code, f"nothing of {code} in {list(findings)}"))
        number = next((at for at, line in enumerate(source, 1) if text in line), None)
        assert (text if number is None else f"{PROGRAM.name}:{number}") in said, said
    if "epoch-end" in causes:
        hook = "on_epoch_end" if trainer == "hugging-face" else "on_train_epoch_end"
        assert findings["outside-steps"]["fix"].startswith(f"In {hook}")
    if causes == "alike":  # of a library's loop no saving is known, whatever callbacks lie in it
        assert "kept-graphs" not in findings
        assert (findings.get("unexplained") or {"saving_share": 0})["saving_share"] < 0.1
    named = {NAMED[cause][0] for cause in NAMED.keys() & causes.split()} | {
        "data-loading-bound"
    }  # where a machine is busy
    assert not {code for code, _ in NAMED.values()} & findings.keys() - named


def test_workers_that_end_with_their_iterator_are_data_loading(tmp_path: Path) -> None:
    """Lightning drops it when the next epoch begins."""
    words, variables = [str(PROGRAM), "lightning", "workers"], environment(None, PYTHONPATH=str(ROOT), **VARIABLES)
    ended = finish(start_in_fork(tmp_path, words, variables, True), tmp_path)
    findings = {each["code"]: each for each in ended.report["findings"]}
    fix = findings["data-loading-bound"]["fix"]
    # Beside other programs a batch may take as long as starting the workers.
    assert fix.startswith(("Set persistent_workers=True", "Set DataLoader(num_workers=0)", "The 2 workers are enough"))
    assert "on_run_start" not in json.dumps(findings.get("unexplained"))
