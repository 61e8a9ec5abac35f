"""The functions in which the training waits for work that runs elsewhere and is not sampled.

Such as a queue that a thread or a process fills, or a pipeline in C++. A row matches a frame by its file
and function; of several on a stack, the outermost below the user's line holds.
"""

from typing import Final

from training_profiler.tables.framework_frames import ANY, FrameTable, LibraryFrame

QUEUE: Final = "a queue between threads"
PROCESSES: Final = "a queue between processes"
POOL: Final = "a pool of threads or processes"
SEEN: Final = "torch"  # workers of its loaders are observed, or the report says that they are not

UNSEEN: Final[tuple[LibraryFrame, ...]] = (
    LibraryFrame("/nvidia/dali/", (ANY,), "the pipeline of NVIDIA DALI"),
    LibraryFrame("/ffcv/loader/", (ANY,), "the loader of FFCV"),
    LibraryFrame("/tensorflow/python/data/", (ANY,), "the pipeline of tf.data"),
    LibraryFrame("/datasets/utils/py_utils.py", ("iflatmap_unordered",), "the processes of datasets (num_proc)"),
    LibraryFrame("/queue.py", ("Queue.get",), QUEUE),
    LibraryFrame("/multiprocessing/queues.py", ("Queue.get", "SimpleQueue.get"), PROCESSES),
    LibraryFrame("/multiprocess/queues.py", ("Queue.get", "SimpleQueue.get"), PROCESSES),
    LibraryFrame("/multiprocessing/pool.py", ("IMapIterator.next", "ApplyResult.get", "ApplyResult.wait"), POOL),
    LibraryFrame("/multiprocess/pool.py", ("IMapIterator.next", "ApplyResult.get", "ApplyResult.wait"), POOL),
    LibraryFrame("/concurrent/futures/_base.py", ("Future.result", "as_completed", "wait"), POOL),
    LibraryFrame("/concurrent/futures/process.py", ("_chain_from_iterable_of_lists",), POOL),
    LibraryFrame("/torch/utils/data/", (ANY,), SEEN),
    LibraryFrame("/torch/_inductor/", (ANY,), SEEN),
    LibraryFrame("/torch/distributed/", (ANY,), SEEN),
    LibraryFrame("/torchdata/stateful_dataloader/", (ANY,), SEEN),
)
UNSEEN_TABLE: Final = FrameTable(UNSEEN)
