import shutil
import subprocess

import pytest

from training_profiler.cli.env import shell_lines

SHELLS = [shell for shell in ("sh", "bash", "dash", "ksh", "zsh") if shutil.which(shell)]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("folder", ["/a/bootstrap", '/with space/it\'s "$HOME"/b*'])
@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "{}"), ("", "{}"), ("/x:/y z", "{}:/x:/y z"), ("/x:{}:/y", "/x:{}:/y")],
)
def test_folder_is_first_on_pythonpath_once(shell, folder, before, after):
    environment = {} if before is None else {"PYTHONPATH": before.format(folder)}
    command = 'set -u; eval "$1"; eval "$1"; printenv PYTHONPATH'
    done = subprocess.run(
        [shutil.which(shell), "-c", command, "-", shell_lines(folder)],
        env={**environment, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout == after.format(folder) + "\n"
    assert done.stderr == ""


def test_unquoted_eval_works():
    done = subprocess.run(
        ["sh", "-c", "unset PYTHONPATH; eval $1; echo $PYTHONPATH", "-", shell_lines("/a")],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout == "/a\n"
    code = [line for line in shell_lines("/a").splitlines() if not line.startswith("#")]
    assert "RECTIFIED_FLOW_PROFILE" not in "".join(code)  # so the line alone profiles nothing
