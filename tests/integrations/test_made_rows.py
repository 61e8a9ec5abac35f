"""Rows that a library makes again in each epoch: the finding has the library's function, and its own remedy to type."""

import json
from pathlib import Path

import pytest

from tests.system.launching import start_in_fork
from tests.system.scripts import ROOT, environment, finish

pytestmark = pytest.mark.integrations
PROGRAM = Path(__file__).parent / "programs" / "made_rows.py"
ONCE = "tokenize once, before the first epoch"
REMEDIES = ("with_format", "make tensors of the columns once", ONCE)


@pytest.mark.parametrize(
    ("way", "line", "remedy"),
    [
        ("datasets-torch", "for batch in loader", "with_format"),
        ("datasets-numpy", "for batch in loader", ""),
        ("pandas", "self.frame.iloc[at]", "make tensors of the columns once"),
        ("plain", "", ""),
        ("tokenizer", "tokenizer.encode(TEXTS[at])", ONCE),
        ("tokenizer-collate", "tokenizer.encode_batch(texts)", ONCE),
        ("tokenizer-random", "tokenizer.encode(text).ids).float()", ""),
        ("tokenized", "", ""),
    ],
)
def test_a_library_that_makes_rows_has_its_own_remedy(tmp_path: Path, way: str, line: str, remedy: str) -> None:
    variables = {"HF_HUB_OFFLINE": "1", "HF_HOME": "home", "RECTIFIED_FLOW_PROFILE_SAMPLE_HZ": "200"}
    words = [str(PROGRAM), way]
    ended = finish(start_in_fork(tmp_path, words, environment(None, PYTHONPATH=str(ROOT), **variables), True), tmp_path)
    assert ended.status == 0, ended.stderr
    findings = {each["code"]: each for each in ended.report["findings"]}
    actions = json.dumps([each["actions"] for each in findings.values() if "actions" in each])
    assert [each for each in REMEDIES if each in actions] == ([remedy] if remedy else [])
    if remedy:
        source = PROGRAM.read_text().splitlines()
        number = next(at for at, text in enumerate(source, 1) if line in text)
        assert f"made_rows.py:{number} " in json.dumps(findings["data-loading-bound"]), actions
