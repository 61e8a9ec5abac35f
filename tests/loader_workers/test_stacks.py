"""What one sample of a worker shows, from fabricated stacks."""

from tests.support.worker_stacks import (
    COLLATED,
    GET,
    LIBRARY,
    LOOP,
    PLACES,
    QUEUES,
    SITE,
    TORCH,
    TRAIN,
    Row,
    stack,
)
from training_profiler.loader_workers.observer import Seen, WorkerStackReader
from training_profiler.model.location import Location

MAIN, FEEDER = 1, 2
ITEM: Row = ("/project/data.py", "Pictures.__getitem__", "call()")
FEED = (
    (f"{LIBRARY}/threading.py", "Thread.run", "call()"),
    (QUEUES, "Queue._feed", "call()"),
)
PICKLES: Row = (f"{LIBRARY}/multiprocessing/reduction.py", "ForkingPickler.dumps", "call()")
WAITS: Row = (f"{LIBRARY}/threading.py", "Condition.wait", "call()")
SENDS: Row = (f"{LIBRARY}/multiprocessing/connection.py", "Connection._send", "call()")
IDLE = (TRAIN, LOOP, (QUEUES, "Queue.get", "call()"), (f"{LIBRARY}/multiprocessing/connection.py", "wait", "call()"))


def seen(*rows: Row, beside: tuple[Row, ...] = ()) -> Seen | None:
    frame, loop = stack(*rows)
    frames = {MAIN: frame}
    if beside:
        frames[FEEDER], _ = stack(*beside)
    return WorkerStackReader(loop, lambda: PLACES).read(frames, MAIN)


def test_a_sample_has_phase_and_line_of_the_users_code() -> None:
    assert seen(TRAIN, LOOP, GET, ITEM) == Seen("fetch", Location("data.py", 2, "Pictures.__getitem__"))


def test_the_training_below_a_forked_worker_is_left_out() -> None:
    # Without the end at the loop, the innermost line of the user's code would be train.py.
    assert seen(TRAIN, LOOP, GET, (f"{TORCH}/utils/data/dataset.py", "TensorDataset.__getitem__", "call()")) == Seen(
        "fetch", Location("torch/utils/data/dataset.py", 2, "TensorDataset.__getitem__")
    )


def test_a_library_is_named_by_its_first_and_last_frame() -> None:
    hf = (f"{SITE}/datasets/arrow_dataset.py", "Dataset.__getitem__", "call()")
    arrow = (f"{SITE}/pyarrow/table.py", "Table.take", "call()")
    assert seen(TRAIN, LOOP, GET, hf, arrow) == Seen(
        "fetch",
        Location("datasets/arrow_dataset.py", 2, "Dataset.__getitem__", inside="pyarrow/table.py:2 Table.take"),
    )


def test_a_data_set_in_c_is_the_line_of_torch_that_asks_it() -> None:
    location = Location("torch/utils/data/_utils/fetch.py", 2, "fetch")
    assert seen(TRAIN, LOOP, GET) == Seen("fetch", location)
    assert seen(TRAIN, LOOP, COLLATED) == Seen("collate", location)


def test_which_transform_runs_is_said_below_the_line_that_calls_them_all() -> None:
    item = ("/project/data.py", "Pictures.__getitem__", "self.transform()")
    compose = (f"{SITE}/torchvision/transforms/transforms.py", "Compose.__call__", "call()")
    blur = (f"{SITE}/torchvision/transforms/functional.py", "gaussian_blur", "call()")
    one = seen(TRAIN, LOOP, GET, item, compose, blur)
    assert one is not None
    assert one.phase == "transform"
    assert one.location is not None
    assert one.location.file == "data.py"
    assert one.location.inside == (
        "torchvision/transforms/transforms.py:2 Compose.__call__ > torchvision/transforms/functional.py:2 gaussian_blur"
    )


def test_waiting_for_a_request_is_idle() -> None:
    assert seen(*IDLE) == Seen("idle")
    assert seen(*IDLE, beside=(*FEED, WAITS)) == Seen("idle")


def test_pickling_beside_an_idle_main_thread_is_hand_over() -> None:
    assert seen(*IDLE, beside=(*FEED, PICKLES)) == Seen("hand-over")
    assert seen(TRAIN, LOOP, (QUEUES, "Queue.put", "call()")) == Seen("hand-over")


def test_waiting_for_a_reader_is_not_work() -> None:
    assert seen(*IDLE, beside=(*FEED, SENDS)) == Seen("idle")


def test_pickling_beside_work_does_not_count() -> None:
    one = seen(TRAIN, LOOP, GET, ITEM, beside=(*FEED, PICKLES))
    assert one is not None
    assert one.phase == "fetch"


def test_what_runs_before_the_first_request_is_start() -> None:
    assert seen(TRAIN, LOOP, ("/project/train.py", "init", "call()")) == Seen("start", Location("train.py", 2, "init"))


def test_outside_of_the_loop_nothing_is_seen() -> None:
    frame, _ = stack(TRAIN, ITEM)
    _, loop = stack(LOOP)
    assert WorkerStackReader(loop, lambda: PLACES).read({MAIN: frame}, MAIN) is None
