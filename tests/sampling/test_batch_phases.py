"""The phase of a batch, from the names of functions and files on a worker's stack."""

import dis
from types import CodeType

import pytest

from tests.support.worker_stacks import COLLATED, GET, LIBRARY, LOOP, SITE, Row, stack
from training_profiler.sampling.batch_phases import PhaseReader

ITEM: Row = ("/project/data.py", "Pictures.__getitem__", "call()")


def phase_of(fetch: Row, *rows: Row) -> str:
    frame, loop = stack(LOOP, fetch, *rows)
    frames = []
    while frame.f_code is not loop:
        frames.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return PhaseReader().phase_of(frames[:-1], frames[-1])


@pytest.mark.parametrize(
    ("row", "phase"),
    [
        (("/project/data.py", "read_image", "call()"), "decode"),
        (("/project/data.py", "Pictures.load_jpeg", "call()"), "decode"),
        (("/project/data.py", "random_augment", "call()"), "transform"),
        (("/project/data.py", "tokenize", "call()"), "transform"),
        (("/project/data.py", "crop", "call()"), "fetch"),
        ((f"{SITE}/PIL/ImageFile.py", "ImageFile.load", "call()"), "decode"),
        ((f"{SITE}/PIL/Image.py", "Image.resize", "call()"), "fetch"),
        ((f"{SITE}/torchvision/transforms/transforms.py", "Compose.__call__", "call()"), "transform"),
        ((f"{SITE}/transformers/tokenization_utils_base.py", "Base.__call__", "call()"), "transform"),
        ((f"{LIBRARY}/json/decoder.py", "JSONDecoder.raw_decode", "call()"), "decode"),
    ],
)
def test_functions_are_known_by_their_names_or_their_libraries(row: Row, phase: str) -> None:
    assert phase_of(GET, ITEM, row) == phase


SYNCHRONIZE = f"{LIBRARY}/multiprocessing/synchronize.py"


@pytest.mark.parametrize(
    "rows",
    [
        [ITEM, (SYNCHRONIZE, "SemLock.__enter__", "call()")],
        [ITEM, (f"{LIBRARY}/multiprocessing/managers.py", "AcquirerProxy.__enter__", "call()")],
        [ITEM, (f"{SITE}/filelock/_api.py", "BaseFileLock.acquire", "call()")],
        [ITEM, (f"{SITE}/portalocker/utils.py", "Lock.acquire", "call()")],
        [("/project/data.py", "Pictures.load_image", "self.flock()")],
    ],
)
def test_waiting_for_a_lock_of_several_processes_is_a_phase(rows: list[Row]) -> None:
    assert phase_of(GET, *rows) == "shared lock"
    assert phase_of(COLLATED, *rows) == "shared lock"


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


DECODES: Row = ("/project/data.py", "decode", "call()")
ACQUIRES: Row = ("/project/data.py", "Pictures.__getitem__", "self.acquire()")


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        ((GET,), "fetch"),  # a data set in C has no frame
        ((COLLATED, DECODES), "collate"),
        (
            (GET, ITEM, (f"{SITE}/torchvision/transforms/transforms.py", "Compose.__call__", "call()"), DECODES),
            "decode",
        ),
        # By the name that its caller uses.
        ((GET, (*ITEM[:2], "self.transform()"), ("/project/blur.py", "Blur.__call__", "call()")), "transform"),
        ((GET, ITEM, (SYNCHRONIZE, "SemLock.__exit__", "call()")), "fetch"),  # what is done with a lock is work
        ((GET, ACQUIRES), "lock"),  # perhaps of this process alone
        ((GET, ACQUIRES, ("/project/pool.py", "Pool.acquire", "call()")), "fetch"),
        ((GET, ITEM, (f"{LIBRARY}/threading.py", "Condition.wait", "self.acquire()")), "threads"),
    ],
)
def test_a_stack_shows_the_phase_of_its_batch(frames: tuple[Row, ...], phase: str) -> None:
    assert phase_of(*frames) == phase
