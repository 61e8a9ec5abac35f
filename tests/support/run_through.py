"""Counts the files of the package that the end of a training and a report of it run through: two numbers on a line.

Those that two trainings share count: on a busy machine one of them has findings and samples by chance.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def files_of(function: Callable[[], Any]) -> list[str]:
    """Return the files of the package that the main thread runs through in ``function``."""
    found: set[str] = set()
    sys.setprofile(lambda frame, event, _: found.add(frame.f_code.co_filename))
    function()
    sys.setprofile(None)
    return [file for file in found if "training_profiler" in Path(file).parts]


def train() -> tuple[list[str], list[str]]:
    """Train for two epochs; return the files of the end and of the report."""
    os.environ["RECTIFIED_FLOW_PROFILE"] = "1"
    import torch

    import training_profiler
    from training_profiler import cli

    with tempfile.TemporaryDirectory() as folder:
        os.environ["RECTIFIED_FLOW_PROFILE_DIR"] = folder
        training_profiler.start_training_profiling()
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(80, 8)), batch_size=4)
        for _ in range(2):
            for (batch,) in batches:
                with training_profiler.profile_section("my_op"):
                    loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        end = files_of(training_profiler.stop_training_profiling)
        report = files_of(lambda: cli.main(["report", folder]))
    return end, report


def main() -> None:
    """Train in this process where it is asked for, else in two others."""
    if sys.argv[1:] == ["once"]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            files = train()
        print(json.dumps(files))
        return
    once = [sys.executable, "-m", "tests.support.run_through", "once"]
    first, second = (json.loads(subprocess.check_output(once)) for _ in range(2))
    print(*(len(set(one) & set(other)) for one, other in zip(first, second, strict=True)))


if __name__ == "__main__":
    main()
