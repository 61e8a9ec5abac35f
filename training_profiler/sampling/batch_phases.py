"""Which part of a batch is being made: from the frames of a stack, without reading any value."""

import opcode
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from training_profiler.base.framework_frames import ANY, FrameTable, LibraryFrame, rows_of
from training_profiler.model.loader_workers import (
    COLLATE,
    DECODE,
    FETCH,
    HAND_OVER,
    LOCK,
    SHARED_LOCK,
    THREADS,
    TRANSFORM,
)
from training_profiler.sampling.user_code import ByInstruction, Instruction, called_function

# Libraries whose functions are of one phase, whatever they are called.
FRAMES: Final[tuple[LibraryFrame, ...]] = (
    LibraryFrame("/PIL/Image.py", ("open",), DECODE),
    LibraryFrame("/librosa/core/audio.py", ("load",), DECODE),
    LibraryFrame("/numpy/lib/npyio.py", ("load",), DECODE),
    LibraryFrame("/numpy/lib/_npyio_impl.py", ("load",), DECODE),
    LibraryFrame("/torch/serialization.py", ("load", "_load"), DECODE),
    *(
        LibraryFrame(path, (ANY,), DECODE)
        for path in (
            *("/PIL/ImageFile.py", "/torchvision/io/", "/torchcodec/", "/torchaudio/_torchcodec.py"),
            *("/torchaudio/backend/", "/torchaudio/_backend/", "/soundfile.py", "/imageio/", "/decord/"),
            *("/datasets/features/", "/pyarrow/parquet/", "/json/decoder.py", "/gzip.py", "/monai/transforms/io/"),
        )
    ),
    *(
        LibraryFrame(path, (ANY,), TRANSFORM)
        for path in (
            *("/torchvision/transforms/", "/torchaudio/transforms/", "/albumentations/", "/audiomentations/"),
            *("/kornia/augmentation/", "/monai/transforms/", "/transformers/tokenization_"),
            *("/transformers/image_processing_", "/transformers/feature_extraction_"),
        )
    ),
)
_TABLE: Final = FrameTable(FRAMES)
# Functions in which a thread waits for a lock that several processes share, whatever they wait for it with.
LOCKS: Final[tuple[LibraryFrame, ...]] = (
    LibraryFrame("/multiprocessing/synchronize.py", ("SemLock.__enter__",), SHARED_LOCK),
    LibraryFrame("/multiprocess/synchronize.py", ("SemLock.__enter__",), SHARED_LOCK),
    LibraryFrame("/multiprocessing/managers.py", ("AcquirerProxy.acquire", "AcquirerProxy.__enter__"), SHARED_LOCK),
    LibraryFrame("/filelock/", ("BaseFileLock.acquire", "BaseFileLock.__enter__"), SHARED_LOCK),
    LibraryFrame("/portalocker/", ("Lock.acquire", "Lock.__enter__", "lock"), SHARED_LOCK),
    LibraryFrame("/fasteners/process_lock.py", ("_InterProcessLock.acquire",), SHARED_LOCK),
)
_LOCK_TABLE: Final = FrameTable(LOCKS)
# Functions in C that wait for a lock, by the name that their caller uses. They return at once if the lock is free, so
# samples there are of waiting.
_LOCK_CALLS: Final = {"flock": SHARED_LOCK, "lockf": SHARED_LOCK, "acquire": LOCK}
_ENTERS: Final = opcode.opmap.get("BEFORE_WITH")  # not in Python 3.14
# What functions are called that do so, in any file.
_DECODES: Final = re.compile(
    r"(?i)decode|decompress|imread|(read|load|open)_?(image|img|picture|audio|video|wav|jpe?g|png)"
)
_TRANSFORMS: Final = re.compile(r"(?i)transform|augment|pre_?process|tokeni[sz]e")
PINS: Final = "pin_memory"  # torch's function for a batch
MOST_CODES: Final = 2000
_THREADING: Final = "/threading.py"
LOCK_FRAMES: Final = 6  # of a library, from its function that waits to its function that sleeps


class PhaseReader:
    """Finds the phase of a batch that a stack shows. Not thread-safe."""

    def __init__(self) -> None:
        # By which name a function is called at an instruction: "imread" in ``cv2.imread(path)``.
        self.called_name = ByInstruction(lambda code, at: called_function(code, at).rpartition(".")[2])

    def phase_of(self, frames: Sequence[Instruction], fetch: Instruction) -> str:
        """Return the phase: the innermost of the ``frames``, which come first, with a known phase decides.

        They are inside of ``fetch``: torch's function that asks the data set and calls ``collate_fn``, or that pins the
        batch.
        """
        if fetch[0].co_name == PINS:
            return HAND_OVER
        if waits := self._waits(frames):
            return waits
        if self.called_name(*fetch) == "collate_fn":
            return COLLATE
        for code, instruction in frames:
            phase = rows_of(code.co_filename, _TABLE).phase_of(code.co_qualname)
            phase = phase or _named(self.called_name(code, instruction)) or _named(code.co_name)
            if phase:
                return phase
        return FETCH

    def _waits(self, frames: Sequence[Instruction]) -> str:
        """Return the phase of waiting for a lock or a thread; "" where the thread does something else."""
        if not frames:
            return ""
        code, instruction = frames[0]
        if code.co_filename.replace("\\", "/").endswith(_THREADING):  # a condition, which queues and pools use as well
            return THREADS
        # A lock of Python is in C: only where it is entered does the frame of the ``with`` stay the innermost one.
        if _ENTERS is not None and code.co_code[instruction] == _ENTERS:
            return LOCK
        if called := _LOCK_CALLS.get(self.called_name(code, instruction)):
            return called
        for code, _ in frames[:LOCK_FRAMES]:
            if phase := rows_of(code.co_filename, _LOCK_TABLE).phase_of(code.co_qualname):
                return phase
        return ""


@lru_cache(MOST_CODES)
def _named(function: str) -> str:
    if _DECODES.search(function):
        return DECODE
    return TRANSFORM if _TRANSFORMS.search(function) else ""
