"""Which part of a batch a worker makes: from the frames of its stack, without reading any value."""

import dis
import re
from bisect import bisect_right
from types import CodeType
from typing import Final

from training_profiler.recording.worker_sums import COLLATE, DECODE, FETCH, TRANSFORM
from training_profiler.sampling.framework_frames import ANY, FileRows, LibraryFrame
from training_profiler.sampling.stacks import Frame

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
# What functions are called that do so, in any file.
_DECODES: Final = re.compile(
    r"(?i)decode|decompress|imread|(read|load|open)_?(image|img|picture|audio|video|wav|jpe?g|png)"
)
_TRANSFORMS: Final = re.compile(r"(?i)transform|augment|pre_?process|tokeni[sz]e")
_LOADS: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")
MOST_CODES: Final = 2000


class PhaseReader:
    """Finds the phase of a batch that a stack shows. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[str, FileRows] = {}
        self._calls: dict[CodeType, tuple[list[int], list[str]]] = {}

    def phase_of(self, frames: list[Frame], fetch: Frame) -> str:
        """Return the phase.

        Args:
            frames: those inside of ``fetch``, the innermost first. The innermost with a known phase decides.
            fetch: torch's function that asks the data set and calls ``collate_fn``.
        """
        if self.called_name(fetch.f_code, fetch.f_lasti) == "collate_fn":
            return COLLATE
        for frame in frames:
            code = frame.f_code
            phase = self._of_file(code.co_filename).phase_of(code.co_qualname)
            phase = phase or _named(self.called_name(code, frame.f_lasti)) or _named(code.co_name)
            if phase:
                return phase
        return FETCH

    def _of_file(self, filename: str) -> FileRows:
        rows = self._rows.get(filename)
        if rows is None:
            if len(self._rows) >= MOST_CODES:
                self._rows.clear()
            rows = self._rows[filename] = FileRows(filename, has_hooks=False, rows=FRAMES)
        return rows

    def called_name(self, code: CodeType, instruction: int) -> str:
        """Return the name by which the code calls a function at this offset: "imread" in ``cv2.imread(path)``.

        It is "" where no name is called, or Python runs without columns (-X no_debug_ranges).
        """
        calls = self._calls.get(code)
        if calls is None:
            if len(self._calls) >= MOST_CODES:
                self._calls.clear()
            calls = self._calls[code] = _calls_of(code)
        offsets, names = calls
        at = bisect_right(offsets, instruction) - 1
        return names[at] if at >= 0 else ""


def _named(function: str) -> str:
    if _DECODES.search(function):
        return DECODE
    return TRANSFORM if _TRANSFORMS.search(function) else ""


def _calls_of(code: CodeType) -> tuple[list[int], list[str]]:
    """Return all offsets of instructions, and the names that they call; "" for one that calls nothing.

    The expression that is called begins where the call begins, and its name is the last one loaded from there.
    """
    offsets, names = [], []
    loaded: dict[tuple[int | None, int | None], str] = {}  # where an expression begins -> its last name
    for each in dis.get_instructions(code):
        place = each.positions
        begin = (None, None) if place is None else (place.lineno, place.col_offset)
        is_call = each.opname.startswith("CALL")
        if each.opname.startswith(_LOADS) and begin[1] is not None:
            loaded[begin] = str(each.argval)
        offsets.append(each.offset)
        names.append(loaded.get(begin, "") if is_call else "")
    return offsets, names
