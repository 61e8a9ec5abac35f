"""What the training waits for that is not sampled, from the frames of the library that waits."""

import pytest

from tests.sampling.test_framework_frames import CALLBACKS, HF, SITE, TORCH, TRAIN, read

LIBRARY = "/usr/lib/python3.11"
QUEUE = (f"{LIBRARY}/queue.py", "Queue.get"), (f"{LIBRARY}/threading.py", "Condition.wait")
OWN = ("/project/prefetch.py", "Prefetcher.__next__")


@pytest.mark.parametrize(
    ("stack", "what"),
    [
        (QUEUE, "a queue between threads"),
        ((OWN, *QUEUE), "a queue between threads"),
        (
            ((f"{SITE}/prefetch_generator/__init__.py", "BackgroundGenerator.next"), *QUEUE),
            "a queue between threads",
        ),
        (((f"{LIBRARY}/multiprocessing/queues.py", "Queue.get"),), "a queue between processes"),
        (((f"{LIBRARY}/multiprocessing/pool.py", "IMapIterator.next"),), "a pool of threads or processes"),
        (((f"{LIBRARY}/concurrent/futures/_base.py", "Future.result"),), "a pool of threads or processes"),
        (
            ((f"{SITE}/nvidia/dali/plugin/pytorch/__init__.py", "DALIGenericIterator.__next__"),),
            "the pipeline of NVIDIA",
        ),
        (
            (
                (f"{SITE}/datasets/arrow_dataset.py", "Dataset.map"),
                (f"{SITE}/datasets/utils/py_utils.py", "iflatmap_unordered"),
                (f"{SITE}/multiprocess/pool.py", "ApplyResult.get"),
            ),
            "the processes of datasets (num_proc)",
        ),
    ],
)
def test_a_wait_for_work_elsewhere_says_for_what(stack, what) -> None:
    assert read(TRAIN, *stack).waits_for.startswith(what)


@pytest.mark.parametrize(
    "stack",
    [
        (),
        ((f"{TORCH}/utils/data/dataloader.py", "_MultiProcessingDataLoaderIter._try_get_data"), *QUEUE),
        ((f"{SITE}/torchdata/stateful_dataloader/stateful_dataloader.py", "_Iter._try_get_data"), *QUEUE),
        ((f"{TORCH}/_inductor/async_compile.py", "wait"), (f"{LIBRARY}/concurrent/futures/_base.py", "Future.result")),
        ((f"{LIBRARY}/queue.py", "Queue.put"),),  # of a tracker
        ((HF, "Trainer.log"), (CALLBACKS, "WandbCallback.on_log"), *QUEUE),
        ((f"{SITE}/datasets/arrow_dataset.py", "Dataset.map"),),  # in this process
        ((f"{SITE}/webdataset/pipeline.py", "DataPipeline.iterator"),),  # runs in this process, or in torch's workers
        ((f"{LIBRARY}/dict.py", "Queue.get"),),
    ],
)
def test_no_other_wait_is_one_for_work_that_is_not_seen(stack) -> None:
    assert read(TRAIN, *stack).waits_for == ""


def test_a_queue_inside_a_data_set_is_not_seen_where_the_training_makes_its_batches() -> None:
    fetch = (f"{TORCH}/utils/data/_utils/fetch.py", "_IterableDatasetFetcher.fetch")
    location = read(TRAIN, fetch, ("/project/data.py", "Stream.__next__"), *QUEUE)
    assert (location.file, location.making != "") == ("data.py", True)
    assert location.waits_for == "a queue between threads"


def test_importing_a_library_is_not_waiting_for_it() -> None:
    dali = (f"{SITE}/nvidia/dali/__init__.py", "<module>")
    assert read(TRAIN, dali).waits_for == "the pipeline of NVIDIA DALI"
    assert read(TRAIN, ("<frozen importlib._bootstrap>", "_find_and_load"), dali).waits_for == ""
