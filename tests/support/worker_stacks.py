"""Stacks of a worker, made of functions that were compiled under the names of other files."""

import sys
from types import CodeType, FrameType

from training_profiler.model.location import Location
from training_profiler.sampling.frames import KeptFrame
from training_profiler.sampling.user_code import Places

SITE = "/usr/lib/python3.11/site-packages"
TORCH = f"{SITE}/torch"
LIBRARY = "/usr/lib/python3.11"
PLACES = Places("/project/train.py", "/project", (LIBRARY,), (LIBRARY,), ("/own/training_profiler", TORCH))
WORKER = f"{TORCH}/utils/data/_utils/worker.py"

# A frame is (file, function, line that calls the next one); the call is the function's second line.
Row = tuple[str, str, str]
TRAIN: Row = ("/project/train.py", "main", "call()")
LOOP: Row = (WORKER, "_worker_loop", "call()")


def kept(frame: FrameType, count: int) -> KeptFrame:
    back = None if count == 1 or frame.f_back is None else kept(frame.f_back, count - 1)
    return KeptFrame(frame.f_code, frame.f_lasti, back)


def stack(*rows: Row) -> tuple[KeptFrame, CodeType]:
    """Return the innermost frame of a stack, which is given the outermost first, and the code of its loop."""
    frames: list[KeptFrame] = []
    loop: CodeType = stack.__code__

    def function() -> None:
        frames.append(kept(sys._getframe(1), len(rows)))  # the instructions of calls under way

    class Anything:
        """Calls the next function, whatever it is called."""

        def __init__(self, called: object) -> None:
            self.called = called

        def __getattr__(self, name: str) -> object:
            return self.called

    for file, qualified, line in reversed(rows):
        name = qualified.rpartition(".")[2]
        names = {"call": function, "dataset": Anything(function), "self": Anything(function)}
        exec(compile(f"def f():\n    {line}\n", file, "exec"), names)
        made = names["f"]
        made.__code__ = made.__code__.replace(co_qualname=qualified, co_name=name)
        if (file, name) == LOOP[:2]:
            loop = made.__code__
        function = made
    function()
    return frames[0], loop


def rows_of(text: str) -> list[Row]:
    """Return the frames of "file function (call) > ...": "/" begins the user's files, "@" the standard library's."""
    rows = []
    for each in text.split(" > "):
        place, _, call = each.removesuffix(")").partition(" (")
        file, name = place.rsplit(" ", 1)
        folder = "" if file[0] in "/<" else f"{LIBRARY}/" if file[0] == "@" else f"{SITE}/"
        rows.append((folder + file.removeprefix("@"), name, call or "call()"))
    return rows


def shown(location: Location | None) -> str:
    fields = {} if location is None else location._asdict()
    return ", ".join(f"{name}: {value}" for name, value in fields.items() if value)
