"""Which part of a batch is being made: from the frames of a stack, without reading any value."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from training_profiler.recording.worker_sums import COLLATE, DECODE, FETCH, HAND_OVER, TRANSFORM
from training_profiler.sampling.called_functions import called_function
from training_profiler.sampling.framework_frames import ANY, FileRows, FrameTable, LibraryFrame
from training_profiler.sampling.location import ByInstruction, Instruction

# Libraries whose functions are of one phase, whatever they are called.
FRAMES: Final[tuple[LibraryFrame, ...]] = (
    LibraryFrame("/PIL/ImageFile.py", (ANY,), DECODE),
    LibraryFrame("/PIL/Image.py", ("open",), DECODE),
    LibraryFrame("/torchvision/io/", (ANY,), DECODE),
    LibraryFrame("/torchcodec/", (ANY,), DECODE),
    LibraryFrame("/torchaudio/_torchcodec.py", (ANY,), DECODE),
    LibraryFrame("/torchaudio/backend/", (ANY,), DECODE),
    LibraryFrame("/torchaudio/_backend/", (ANY,), DECODE),
    LibraryFrame("/soundfile.py", (ANY,), DECODE),
    LibraryFrame("/librosa/core/audio.py", ("load",), DECODE),
    LibraryFrame("/imageio/", (ANY,), DECODE),
    LibraryFrame("/decord/", (ANY,), DECODE),
    LibraryFrame("/datasets/features/", (ANY,), DECODE),
    LibraryFrame("/pyarrow/parquet/", (ANY,), DECODE),
    LibraryFrame("/json/decoder.py", (ANY,), DECODE),
    LibraryFrame("/gzip.py", (ANY,), DECODE),
    LibraryFrame("/numpy/lib/npyio.py", ("load",), DECODE),
    LibraryFrame("/numpy/lib/_npyio_impl.py", ("load",), DECODE),
    LibraryFrame("/torch/serialization.py", ("load", "_load"), DECODE),
    LibraryFrame("/torchvision/transforms/", (ANY,), TRANSFORM),
    LibraryFrame("/torchaudio/transforms/", (ANY,), TRANSFORM),
    LibraryFrame("/albumentations/", (ANY,), TRANSFORM),
    LibraryFrame("/audiomentations/", (ANY,), TRANSFORM),
    LibraryFrame("/kornia/augmentation/", (ANY,), TRANSFORM),
    LibraryFrame("/monai/transforms/io/", (ANY,), DECODE),
    LibraryFrame("/monai/transforms/", (ANY,), TRANSFORM),
    LibraryFrame("/transformers/tokenization_", (ANY,), TRANSFORM),
    LibraryFrame("/transformers/image_processing_", (ANY,), TRANSFORM),
    LibraryFrame("/transformers/feature_extraction_", (ANY,), TRANSFORM),
)
_TABLE: Final = FrameTable(FRAMES)
# What functions are called that do so, in any file.
_DECODES: Final = re.compile(
    r"(?i)decode|decompress|imread|(read|load|open)_?(image|img|picture|audio|video|wav|jpe?g|png)"
)
_TRANSFORMS: Final = re.compile(r"(?i)transform|augment|pre_?process|tokeni[sz]e")
PINS: Final = "pin_memory"  # torch's function for a batch
MOST_CODES: Final = 2000


class PhaseReader:
    """Finds the phase of a batch that a stack shows. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[str, FileRows] = {}
        # By which name a function is called at an instruction: "imread" in ``cv2.imread(path)``.
        self.called_name = ByInstruction(lambda code, at: called_function(code, at).rpartition(".")[2])

    def phase_of(self, frames: Sequence[Instruction], fetch: Instruction) -> str:
        """Return the phase.

        Args:
            frames: those inside of ``fetch``, the innermost first. The innermost with a known phase decides.
            fetch: torch's function that asks the data set and calls ``collate_fn``, or that pins the batch.
        """
        if fetch[0].co_name == PINS:
            return HAND_OVER
        if self.called_name(*fetch) == "collate_fn":
            return COLLATE
        for code, instruction in frames:
            phase = self._of_file(code.co_filename).phase_of(code.co_qualname)
            phase = phase or _named(self.called_name(code, instruction)) or _named(code.co_name)
            if phase:
                return phase
        return FETCH

    def _of_file(self, filename: str) -> FileRows:
        rows = self._rows.get(filename)
        if rows is None:
            if len(self._rows) >= MOST_CODES:
                self._rows.clear()
            rows = self._rows[filename] = FileRows(filename, has_hooks=False, table=_TABLE)
        return rows


@lru_cache(MOST_CODES)
def _named(function: str) -> str:
    if _DECODES.search(function):
        return DECODE
    return TRANSFORM if _TRANSFORMS.search(function) else ""
