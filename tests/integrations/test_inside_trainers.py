"""Causes of lost time inside a trainer are named with their line, and a training without them gets none of their names.

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
    "tokenizer": ("data-loading-bound", "tokenize once, before the first epoch"),
    "epoch-end": ("outside-steps", "file.write(f"),
    "mask": ("computed-constants", "mask[row, column] ="),
    "unused": ("unused-gradients", "parameters that are in no optimizer"),
    "hooks": ("growing-work", "self.layer.register_forward_hook"),
    "growing": ("growing-work", "self.spread = "),
    "workers": ("data-loading-bound", "persistent_workers=True"),
}


@pytest.mark.parametrize(
    ("trainer", "causes"),
    [
        ("hugging-face", "padding tokenizer"),
        ("hugging-face", "mask unused epoch-end"),
        ("hugging-face", "hooks"),
        ("hugging-face", ""),
        ("lightning", "padding tokenizer"),
        ("lightning", "mask unused epoch-end"),
        ("lightning", "growing"),
        ("lightning", "workers"),
        ("lightning", ""),
    ],
)
def test_a_cause_inside_a_trainer_is_named(tmp_path: Path, trainer: str, causes: str) -> None:
    words, variables = [str(PROGRAM), trainer, *causes.split()], environment(None, PYTHONPATH=str(ROOT), **VARIABLES)
    ended = finish(start_in_fork(tmp_path, words, variables, True), tmp_path)
    assert ended.status == 0, ended.stderr
    findings = {each["code"]: each for each in ended.report["findings"]}
    source = PROGRAM.read_text().splitlines()
    for cause in causes.split():
        code, text = NAMED[cause]
        said = json.dumps(findings.get(code, f"nothing of {code} in {list(findings)}"))
        number = next((at for at, line in enumerate(source, 1) if text in line), None)
        assert (text if number is None else f"{PROGRAM.name}:{number}") in said, said
    if "epoch-end" in causes:
        hook = "on_epoch_end" if trainer == "hugging-face" else "on_train_epoch_end"
        assert findings["outside-steps"]["fix"].startswith(f"In {hook}")
    if "workers" in causes:  # they end when the trainer drops their iterator
        assert "on_run_start" not in json.dumps([each["finding"] for each in findings.values()])
    named = {NAMED[cause][0] for cause in causes.split()} | {"data-loading-bound"}  # where a machine is busy
    assert not {code for code, _ in NAMED.values()} & findings.keys() - named
