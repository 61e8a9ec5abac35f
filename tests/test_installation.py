"""An installation has the recorder in C where there is a compiler, and succeeds without one."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NATIVE = "training_profiler/recording/_native"
START_UP = ("training_profiler.pth", "training_profiler.start", "training_profiler_start.py")
HEADER = Path(sysconfig.get_paths()["include"], "Python.h")
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a copy of what a wheel is built from, small because of one package alone."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", *START_UP):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "training_profiler" / "bootstrap", tmp_path / "training_profiler" / "bootstrap")
    shutil.copytree(ROOT / "native", tmp_path / "native")
    package = ROOT / "training_profiler" / "recording"
    shutil.copytree(package, tmp_path / "training_profiler" / "recording", ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "training_profiler" / "__init__.py").touch()
    return tmp_path


def build(source: Path, **variables: str) -> tuple[str, set[str]]:
    """Return the tag of a wheel that is built with these variables, and the names of its files."""
    words = [sys.executable, "setup.py", "--quiet", "bdist_wheel"]
    built = subprocess.run(words, cwd=source, env={**os.environ, **variables}, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = (source / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        return wheel.stem.split("-", 2)[2], set(archive.namelist())


# The second makes Python.h an empty file to the compiler.
@pytest.mark.parametrize(
    "variables", [{"CC": "/bin/false"}, {"CFLAGS": "-DPy_PYTHON_H"}], ids=["no compiler", "no headers"]
)
def test_without_what_it_takes_a_wheel_is_for_every_platform(source: Path, variables: dict[str, str]) -> None:
    tag, files = build(source, **variables)
    assert tag == "py3-none-any"
    assert {
        f"{NATIVE}.pyi",
        "training_profiler/recording/recorder.py",
        *START_UP,
    } <= files  # not in a folder of a platform
    assert not [name for name in files if name.endswith((".so", ".c", ".h"))]


@pytest.mark.skipif(
    not HEADER.exists() or shutil.which(COMPILER) is None, reason="no compiler, or no headers of Python"
)
def test_with_a_compiler_a_wheel_of_python_3_11_is_for_every_python_and_another_for_its_own(source: Path) -> None:
    tag, files = build(source)
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert set(START_UP) <= files
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    serves_all = own == "cp311"
    assert tag == f"{own}-{'abi3' if serves_all else own}-{platform}"
    suffix = ".abi3.so" if serves_all else sysconfig.get_config_var("EXT_SUFFIX")
    assert [name for name in files if name.startswith(NATIVE) and not name.endswith(".pyi")] == [f"{NATIVE}{suffix}"]
    assert not [name for name in files if name.endswith((".c", ".h"))]


def installed(bare: Path) -> set[str]:
    return {path.name for path in (bare / "lib").glob("python*/site-packages/*")}  # pip removes an empty folder


def is_armed(python: str, **variables: str) -> bool:
    text = "import sys; print(hasattr(sys, '_training_profiler_hook'), 'torch' in sys.modules)"
    environ = {"RECTIFIED_FLOW_PROFILE": "1", **variables}
    shown = subprocess.run([python, "-c", text], env=environ, capture_output=True, text=True, check=True)
    assert (shown.stderr, shown.stdout.split()[1]) == ("", "False")
    return shown.stdout.split()[0] == "True"


@pytest.mark.parametrize("options", [[], ["--editable"], ["--target"]], ids=["plain", "editable", "target"])
def test_start_up_files_come_with_an_installation_and_go_with_it(
    source: Path, tmp_path_factory: pytest.TempPathFactory, options: list[str]
) -> None:
    bare = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python, target = str(bare / "bin" / "python"), tmp_path_factory.mktemp("target")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python]
    # A new environment has nothing to build with.
    hook = "build_editable" if options == ["--editable"] else "build_wheel"
    make = [sys.executable, "-c", f"from setuptools import build_meta; build_meta.{hook}('dist')"]
    subprocess.run(make, cwd=source, env={**os.environ, "CC": "/bin/false"}, check=True, capture_output=True)
    (wheel,) = (source / "dist").glob("*.whl")
    words = ["--target", str(target)] if options == ["--target"] else []
    run = [*pip, "install", "--no-deps", "--no-index", *words, str(wheel)]
    subprocess.run(run, check=True, capture_output=True)
    if options == ["--target"]:  # Python reads no start-up files there
        assert set(START_UP) <= {path.name for path in target.iterdir()}
        assert not is_armed(python, PYTHONPATH=str(target))
        return
    assert set(START_UP[:2]) <= installed(bare)
    assert is_armed(python)
    subprocess.run([*pip, "uninstall", "--yes", "training-profiler"], check=True, capture_output=True)
    assert not {name for name in installed(bare) if "training" in name}
    assert not is_armed(python)
