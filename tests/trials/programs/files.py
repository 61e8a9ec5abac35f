"""Changes, removes and makes files in every common way, and asserts that it sees its own: ``files.py [outside]``.

The current folder, the home folder and ``../elsewhere`` belong to the test, which prepares them with ``prepare``. The
name of the shared memory that ``devices`` leaves goes to standard error.
"""

import csv
import multiprocessing
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def prepare(root: Path) -> None:
    """Make what the functions below change, in ``root/project``, ``root/home`` and ``root/elsewhere``."""
    for folder in ("project/out/old", "project/first/inner", "home/.cache", "elsewhere"):
        (root / folder).mkdir(parents=True)
    for path in (
        "project/out/old/a.txt",
        "project/out/b.txt",
        "project/first/inner/c.txt",
        "elsewhere/d.txt",
        "project/plain.txt",
    ):
        (root / path).write_text("as it was")
    (root / "project/checkpoint.pt").write_bytes(pickle.dumps({"step": 0}))
    (root / "project/log.csv").write_text("step,loss\n")
    (root / "project/latest").symlink_to("out")
    (root / "project/link").symlink_to("../elsewhere")
    (root / "home/.state").write_text("as it was")
    np.save(root / "project/array.npy", np.zeros(4))
    database = sqlite3.connect(root / "project/runs.db")
    with database:
        database.execute("create table runs (name text)")
    database.close()


def checkpoint_overwritten() -> None:
    for step in range(10, 40, 10):
        with open("checkpoint.pt", "wb") as file:
            pickle.dump({"step": step}, file)
        assert pickle.loads(Path("checkpoint.pt").read_bytes()) == {"step": step}


def appended_to_a_csv() -> None:
    with open("log.csv", "a", newline="") as file:
        csv.writer(file).writerow([1, 0.5])
    assert Path("log.csv").read_text().splitlines() == ["step,loss", "1,0.5"]


def output_deleted_first() -> None:
    shutil.rmtree("out")
    assert not os.path.exists("out/b.txt")
    os.makedirs("out/new")
    Path("out/new/e.txt").write_text("new")
    assert [(folder, sorted(names)) for folder, _, names in os.walk("out")] == [("out", []), ("out/new", ["e.txt"])]


def home_written() -> None:
    home = Path.home()
    (home / ".cache" / "new" / "deep").mkdir(parents=True)
    (home / ".cache" / "new" / "deep" / "f.bin").write_bytes(b"x" * 1000)
    with open(home / ".state", "r+") as file:
        file.write("AS")
    assert (home / ".state").read_text() == "AS it was"
    assert (home / ".cache/new/deep/f.bin").stat().st_size == 1000


def replaced_at_once() -> None:
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
        file.write("replaced")
    os.replace(file.name, "plain.txt")
    assert Path("plain.txt").read_text() == "replaced"
    assert not os.path.exists(file.name)


def temporary_files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "g.txt").write_text("x")
        assert os.listdir(folder) == ["g.txt"]
    assert not os.path.exists(folder)
    left = Path(tempfile.mkdtemp())
    (left / "left behind").touch()


def outside_written() -> None:
    Path("/tmp/made by a trial").write_text("x")
    Path("link/d.txt").write_text("through a link")
    assert Path("../elsewhere/d.txt").read_text() == "through a link"
    assert Path("/tmp/made by a trial").read_text() == "x"


def database() -> None:
    for count in (1, 2):
        connection = sqlite3.connect("runs.db")
        with connection:
            connection.execute("insert into runs values ('a')")
        assert connection.execute("select count(*) from runs").fetchone() == (count,)
        connection.close()


def memory_map() -> None:
    array = np.lib.format.open_memmap("array.npy", mode="r+")
    array[1] = 7
    array.flush()
    assert np.load("array.npy").tolist() == [0, 7, 0, 0]


def links() -> None:
    assert Path("link/d.txt").read_text() == Path("../elsewhere/d.txt").read_text()
    os.symlink("first", "latest.new")
    os.replace("latest.new", "latest")
    assert os.readlink("latest") == "first"
    assert Path("latest/inner/c.txt").read_text() == "as it was"
    Path("latest/inner/h.txt").touch()
    assert sorted(os.listdir("first/inner")) == ["c.txt", "h.txt"]


def names_and_times() -> None:
    Path("first/i.txt").write_text("x")
    os.link("first/i.txt", "first/j.txt")
    os.truncate("first/inner/c.txt", 2)
    os.chmod("first/inner/c.txt", 0o640)
    os.utime("first/inner/c.txt", (1, 1))
    os.rename("first", "second")
    status = os.stat("second/inner/c.txt")
    assert (status.st_size, status.st_mode & 0o777, status.st_mtime) == (2, 0o640, 1)
    assert not os.path.exists("first")
    assert sorted(entry.name for entry in os.scandir("second")) == ["i.txt", "inner", "j.txt"]


def another_folder() -> None:
    os.makedirs("run/1")
    before = os.getcwd()
    os.chdir("run/1")
    Path("metrics.txt").write_text("x")
    assert os.getcwd() == before + "/run/1"
    assert os.path.abspath("metrics.txt") == before + "/run/1/metrics.txt"
    read = "import sys; sys.stdout.write(open('metrics.txt').read())"
    assert subprocess.run([sys.executable, "-c", read], capture_output=True, check=True).stdout == b"x"
    os.chdir(before)
    command = [sys.executable, "-c", read]
    assert subprocess.run(command, capture_output=True, check=True, cwd="run/1").stdout == b"x"


def _write_in_worker(name: str) -> None:
    Path("workers", name).write_text(name)
    Path("plain.txt").unlink(missing_ok=True)


def worker_processes() -> None:
    os.makedirs("workers", exist_ok=True)
    for method in ("fork", "spawn"):
        Path("plain.txt").write_text("for the worker to remove")
        process = multiprocessing.get_context(method).Process(target=_write_in_worker, args=(method,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert Path("workers", method).read_text() == method
        assert not os.path.exists("plain.txt")


def devices() -> None:
    with open(os.devnull, "w") as file:
        file.write("x")
    from multiprocessing import shared_memory

    memory = shared_memory.SharedMemory(create=True, size=100)
    memory.buf[0] = 1
    print(memory.name, file=sys.stderr)
    memory.close()  # and never unlinked


CHANGES = (
    checkpoint_overwritten,
    appended_to_a_csv,
    output_deleted_first,
    replaced_at_once,
    temporary_files,
    database,
    memory_map,
    another_folder,
    worker_processes,
    links,
    names_and_times,
    devices,
)
OUTSIDE = (home_written, outside_written)

if __name__ == "__main__":
    for change in (*CHANGES, *(OUTSIDE if "outside" in sys.argv else ())):
        change()
        print("done", change.__name__, flush=True)
