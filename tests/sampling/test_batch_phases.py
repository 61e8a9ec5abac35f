"""The phase of a batch, from the names of functions and files on a worker's stack."""

import dis
from types import CodeType

import pytest

from tests.support.golden import assert_answers
from tests.support.worker_stacks import LOOP, Row, rows_of, stack
from training_profiler.sampling.batch_phases import PhaseReader


def phase_of(fetch: Row, *rows: Row) -> str:
    frame, loop = stack(LOOP, fetch, *rows)
    frames = []
    while frame.f_code is not loop:
        frames.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return PhaseReader().phase_of(frames[:-1], frames[-1])


def test_a_stack_shows_the_phase_of_its_batch() -> None:
    """By the names of functions, of their libraries or of their callers; a lock of several processes is a phase."""
    assert_answers("batches", lambda text: phase_of(*rows_of(text)))


def enters(code: CodeType) -> int:
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "BEFORE_WITH")


@pytest.mark.skipif("BEFORE_WITH" not in dis.opmap, reason="since Python 3.14 entering is a call without a name")
def test_entering_a_lock_written_in_c_is_waiting_for_it() -> None:
    code = compile("with lock:\n    read()", "/project/data.py", "exec")
    fetch = (GET_CODE, 0)
    assert PhaseReader().phase_of([(code, enters(code))], fetch) == "lock"
    inner = compile("pass", "/project/context.py", "exec")
    assert PhaseReader().phase_of([(inner, 0), (code, enters(code))], fetch) == "fetch"


GET_CODE = compile("dataset[0]", "/torch/utils/data/_utils/fetch.py", "eval")
