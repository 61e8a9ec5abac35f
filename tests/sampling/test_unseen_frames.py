"""What the training waits for that is not sampled, from the frames of the library that waits."""

import pytest

from tests.sampling.test_framework_frames import SITE, TRAIN, read

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
