"""Marks a test whose training may not be slower than at another commit: ``@pytest.mark.training_speed``.

The test returns the program as after `python`, which runs in turns as it is and at the commit, as `try --base` does.
Nothing else is imported before such a test runs: each run of pytest loads this module.
"""

TYPE_CHECKING = False  # typing takes longer to import than this module
if TYPE_CHECKING:
    from typing import Any

MARK = "training_speed"
USAGE = (
    f"{MARK}(max_slower='3%', base='main', budget='5m', undecided='skip'): the program that the test returns, such as "
    "['train.py', '--steps', '500'] in the root folder, may not be shown to be so much slower than at the commit `base`"
)


def pytest_configure(config: "Any") -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", USAGE)


def pytest_pyfunc_call(pyfuncitem: "Any") -> bool | None:
    """Run a marked test."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return None
    words = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
    _check(words, pyfuncitem.config.rootpath, *mark.args, **mark.kwargs)
    return True


def _check(
    words: "Any", folder: "Any", max_slower: str = "3%", base: str = "main", budget: str = "5m", undecided: str = "skip"
) -> None:
    import json
    import subprocess
    import sys

    import pytest

    if not isinstance(words, (list, tuple)) or not words:
        pytest.fail(f"{words!r} is not a program; example: return ['train.py', '--steps', '500']", pytrace=False)
    flags = ["--json", "--base", base, "--budget", budget, "--fail-if-slower", max_slower]
    command = [sys.executable, "-m", "training_profiler", "try", *flags, *map(str, words)]
    streams: Any = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=folder, text=True, stdin=subprocess.DEVNULL, **streams) as process:
        try:
            output, errors = process.communicate()
        except KeyboardInterrupt:  # it has come to that process as well, which ends its trainings
            process.wait()
            raise
    if not output:
        why = errors.strip().rpartition("\n")[2].removeprefix("training-profiler: ")
        pytest.skip(why) if why.startswith("no file differs") else pytest.fail(why, pytrace=False)
    found = json.loads(output)
    if process.returncode:
        pytest.fail(found["text"], pytrace=False)
    verdict, effect = found["rows"][0]["verdict"], found["rows"][0]["effect"]
    high = None if effect is None or verdict == "undecided" else effect["high"]
    if high is None or 100 * high > float(max_slower.rstrip("%")):
        why = f"not shown to be less than {max_slower} slower: {found['text']}"
        pytest.fail(why, pytrace=False) if undecided == "fail" else pytest.skip(why)
