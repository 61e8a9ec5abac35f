"""The phase of a batch, from the names of functions and files on a worker's stack."""

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


def test_the_data_set_alone_is_fetch() -> None:
    assert phase_of(GET, ITEM) == "fetch"
    assert phase_of(GET) == "fetch"  # a data set in C has no frame


def test_everything_below_the_call_of_collate_fn_is_collate() -> None:
    assert phase_of(COLLATED, ("/project/data.py", "pad", "call()")) == "collate"
    assert phase_of(COLLATED, ("/project/data.py", "decode_again", "call()")) == "collate"
    assert phase_of(COLLATED) == "collate"


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


def test_a_function_is_known_by_the_name_that_its_caller_uses() -> None:
    calls = ("/project/data.py", "Pictures.__getitem__", "self.transform()")
    assert phase_of(GET, calls, ("/project/blur.py", "Blur.__call__", "call()")) == "transform"


def test_a_call_in_c_is_known_by_its_name() -> None:
    names = PhaseReader()
    code = compile("cv2.resize(cv2.imread(path))", "data.py", "eval")
    called = [names.called_name(code, at) for at in range(0, len(code.co_code), 2)]
    assert [name for name in dict.fromkeys(called) if name] == ["imread", "resize"]


def test_the_innermost_known_function_decides() -> None:
    compose = (f"{SITE}/torchvision/transforms/transforms.py", "Compose.__call__", "call()")
    assert phase_of(GET, ITEM, compose, ("/project/data.py", "decode", "call()")) == "decode"
