"""The bootstrap on PYTHONPATH waits for torch, runs a hidden sitecustomize, and reports if nothing was measured."""

import ast
import os
import runpy
import shutil
import sys
import venv
from pathlib import Path

import pytest

from tests.system.launching import BOOTSTRAP, NOTHING, Ended, execute, stand_ins
from training_profiler.base.switch import OFF_WORDS, ON_WORDS, SWITCH
from training_profiler.base.switch import ROOT as ROOT_VARIABLE
from training_profiler.settings.settings import Settings

# Stands in for the profiler: prints each call to stdout.
LIVE = """
import sys, time
def start_instrumentation(begin_ns, imported, is_requested):
    assert 0 < time.perf_counter_ns() - begin_ns < 240e9
    print("started", "torch" in sys.modules, flush=True)
def why_nothing():
    return None
"""
WHY = "training_profiler: nothing measured: "


def script(cwd: Path, text: str) -> list[str]:
    (cwd / "train.py").write_text(text)
    return [sys.executable, "train.py"]


def run_prepared(cwd: Path, text: str, torch: str = "", live: str = LIVE, **options: object) -> Ended:
    """Run a script in a prepared shell with the switch set."""
    return in_shell(cwd, text, stand_ins(cwd, torch, live), **options)  # type: ignore[arg-type]


def in_shell(cwd: Path, text: str, *folders: object, profile: str | None = "1", **options: object) -> Ended:
    """Run a script with the bootstrap first on PYTHONPATH, before other folders."""
    path = os.pathsep.join(map(str, (BOOTSTRAP, *folders)))
    return execute(cwd, script(cwd, text), profile, path, **options)  # type: ignore[arg-type]


def both(cwd: Path, text: str, torch: str = "", live: str = LIVE) -> tuple[Ended, Ended]:
    """Run a script without the profiler, and in a prepared shell."""
    ours = run_prepared(cwd, text, torch, live)
    return execute(cwd, script(cwd, text), None, str(cwd / "stand_ins")), ours


def test_profiling_starts_once_after_torch_is_imported(tmp_path: Path) -> None:
    text = "print('first')\ndef f():\n    from torch import tensor\n    return tensor\nprint(f())\nimport torch"
    assert run_prepared(tmp_path, text, "tensor = 5; print('torch')") == Ended(0, "first\ntorch\nstarted True\n5\n", "")


@pytest.mark.parametrize("options", [[], ["-u", "-X", "utf8"]])
@pytest.mark.parametrize("name", ["torch.distributed.run", "torchrun", "other"])
def test_a_launcher_is_not_profiled_and_the_processes_it_starts_are(
    tmp_path: Path, name: str, options: list[str]
) -> None:
    path = os.pathsep.join([str(BOOTSTRAP), stand_ins(tmp_path, "", LIVE)])
    (tmp_path / "train.py").write_text("import torch")
    starts_it = "import subprocess, sys\nsubprocess.run([sys.executable, 'train.py'])"
    if name.startswith("torch."):
        package = tmp_path / "stand_ins" / "torch" / "distributed"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "run.py").write_text(starts_it)
        words = ["-m", name]
    else:
        (tmp_path / name).write_text(f"import torch\n{starts_it}")
        words = [name]
    ended = execute(tmp_path, [sys.executable, *options, *words], "1", path)
    assert ended.stdout == "started True\n" * (2 if name == "other" else 1)
    why = "" if name == "other" else f"{WHY}no process that {name} started has trained\n"
    assert ended == Ended(0, ended.stdout, why)


# An import hook as trackers, coverage tools and wrapt have them: before ours, after it, or past all others.
HOOK = """
import importlib.machinery, importlib.util, sys
class Proxy:
    def __init__(self, loader):
        self.loader, self.exec_module = loader, loader.exec_module
    def __getattr__(self, name):
        return getattr(self.loader, name)
class Hook:
    is_busy = False
    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.is_busy:
            return None
        self.is_busy = True
        find = importlib.machinery.PathFinder.find_spec if {past_others} else importlib.util.find_spec
        spec = find(name)
        self.is_busy = False
        loader, execute = spec.loader, spec.loader.exec_module
        def exec_module(module):
            execute(module)
            print("hooked")
        loader.exec_module = exec_module
        if {is_proxy}:
            spec.loader = Proxy(loader)
        return spec
sys.meta_path.insert({at}, Hook())
import torch
print("exec_module" in vars(torch.__loader__))
import colorsys
"""


@pytest.mark.parametrize("is_proxy", [False, True], ids=["set on the loader", "proxy of the loader"])
@pytest.mark.parametrize(
    ("at", "past_others"), [(0, False), (1, False), (0, True)], ids=["before ours", "after ours", "past ours"]
)
def test_torch_is_detected_beside_import_hooks_of_others(
    tmp_path: Path, at: int, past_others: bool, is_proxy: bool
) -> None:
    text = HOOK.format(at=at, past_others=past_others, is_proxy=is_proxy)
    alone, ours = both(tmp_path, text)
    assert alone == Ended(0, "hooked\nTrue\n", "")
    assert (ours.status, ours.stderr) == (0, "")
    assert sorted(ours.stdout.splitlines()) == ["True", "hooked", "started True"]


PROBE = """
import importlib.util
spec = importlib.util.find_spec("torch")
print(type(spec).__name__, type(spec.loader).__name__, spec.origin is not None)
"""


def test_find_spec_starts_and_changes_nothing(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, PROBE * 2)
    assert ours == plain._replace(stderr=NOTHING)
    imported = in_shell(tmp_path, PROBE + "import torch", tmp_path / "stand_ins")
    assert imported.stdout.endswith("True\nstarted True\n")


@pytest.mark.parametrize(
    "load",
    [
        "module = module_from_spec(spec)\nsys.modules['torch'] = module\nspec.loader.exec_module(module)",
        "spec.loader = LazyLoader(spec.loader)\nmodule = module_from_spec(spec)\nsys.modules['torch'] = module\n"
        "spec.loader.exec_module(module)\nprint('lazy')\nmodule.tensor",
    ],
    ids=["directly", "lazily"],
)
def test_torch_loaded_from_its_spec_is_detected(tmp_path: Path, load: str) -> None:
    text = f"import sys\nfrom importlib.util import *\nspec = find_spec('torch')\n{load}\nprint('end')"
    ours = run_prepared(tmp_path, text, "tensor = 1")
    assert (ours.status, ours.stderr) == (0, "")
    assert ours.stdout.endswith("started True\nend\n")


def test_torch_and_the_import_system_are_unchanged(tmp_path: Path) -> None:
    look = "import sys; print(sorted(vars(__spec__)), vars(__loader__), __spec__.loader is __loader__, sys.path)"
    text = """
import importlib, sys, torch
print(sorted(vars(torch)), vars(torch.__loader__), type(torch.__loader__), type(torch.__spec__))
print([type(finder).__name__ for finder in sys.meta_path if "istutils" not in str(finder)])
importlib.reload(torch)
print(sorted(vars(torch)), vars(torch.__loader__))
"""
    live = "def start_instrumentation(*arguments): pass\ndef why_nothing(): pass"
    plain, ours = both(tmp_path, text, look, live)
    assert (plain.status, plain.stderr) == (0, "")
    assert ours == plain


@pytest.mark.parametrize(
    "torch",
    ["raise ImportError('no libcuda.so')", "1 / 0", "x = = 1", "import no_such_library", "raise KeyboardInterrupt"],
)
def test_error_while_importing_torch_is_unchanged(tmp_path: Path, torch: str) -> None:
    plain, ours = both(tmp_path, "import torch", torch)
    assert plain.status != 0
    assert ours == plain


def test_an_import_that_fails_is_the_reason_unless_a_second_one_succeeds(tmp_path: Path) -> None:
    torch = "import builtins\nif not hasattr(builtins, 'ready'): raise ImportError"
    text = "import builtins\ntry:\n    import torch\nexcept ImportError:\n    pass"
    assert run_prepared(tmp_path, text, torch) == Ended(0, "", WHY + "importing torch failed\n")
    again = in_shell(tmp_path, text + "\nbuiltins.ready = True\nimport torch", tmp_path / "stand_ins")
    assert again == Ended(0, "started True\n", "")


def test_warning_of_torch_names_the_importing_line(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, "import torch", "import warnings\nwarnings.warn('old driver', stacklevel=2)")
    assert "train.py:1: UserWarning: old driver" in plain.stderr
    assert ours.stderr == plain.stderr


def test_import_hook_that_asks_all_finders_gets_an_answer(tmp_path: Path) -> None:
    hook = """
import importlib.util, sys
class Hook:
    asking = False
    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.asking: return None
        self.asking = True
        try: return importlib.util.find_spec(name)
        finally: self.asking = False
for place in (0, len(sys.meta_path)):
    sys.meta_path.insert(place, Hook())
import torch
"""
    assert run_prepared(tmp_path, hook) == Ended(0, "started True\n", "")


CUSTOM = "import sys\nprint('custom', __name__, sys.modules[__name__].__file__, sys.path[:1])\nvalue = 7\n"


@pytest.mark.parametrize("profile", [None, "1"])
def test_hidden_sitecustomize_runs_under_its_own_name(tmp_path: Path, profile: str | None) -> None:
    plain, ours = with_custom(
        tmp_path,
        CUSTOM,
        "import sys, sitecustomize as s\nprint(s.value, s.__file__, s.__spec__.origin, sys.path)",
        profile,
    )
    assert plain.stdout.startswith("custom sitecustomize ")
    assert ours == plain._replace(stderr=NOTHING if profile else "")


def with_custom(cwd: Path, custom: str, text: str, profile: str | None = "1") -> tuple[Ended, Ended]:
    """Run a script under a sitecustomize of the user's, without the profiler and with it."""
    (cwd / "custom").mkdir()
    (cwd / "custom" / "sitecustomize.py").write_text(custom)
    plain = execute(cwd, script(cwd, text), None, str(cwd / "custom"))
    return plain, in_shell(cwd, text, cwd / "custom", profile=profile)


@pytest.mark.parametrize(
    "custom", ["1 / 0", "import no_such_module", "raise ImportError('x', name='sitecustomize')", "raise SystemExit(5)"]
)
def test_failing_hidden_sitecustomize_raises_the_usual_error(tmp_path: Path, custom: str) -> None:
    plain, ours = with_custom(tmp_path, custom, "import sys; print('sitecustomize' in sys.modules)")
    assert (ours.status, ours.stdout) == (plain.status, plain.stdout)
    assert ours.stderr.replace(NOTHING, "").splitlines()[-1:] == plain.stderr.splitlines()[-1:]


@pytest.mark.parametrize("profile", [None, "", "0", " OFF "])
def test_disabled_bootstrap_leaves_no_trace(tmp_path: Path, profile: str | None) -> None:
    text = "import sys\nprint(sorted(sys.modules), [type(f).__name__ for f in sys.meta_path], sys.path)"
    plain = execute(tmp_path, script(tmp_path, text), profile)
    assert in_shell(tmp_path, text, profile=profile) == plain


def bare_python(cwd: Path) -> str:
    """Return a Python without any packages."""
    venv.create(cwd / "bare", symlinks=True)
    return str(cwd / "bare" / "bin" / "python")


def test_a_bare_python_gets_the_package_from_beside_the_bootstrap_and_its_usual_errors(tmp_path: Path) -> None:
    python, folder = bare_python(tmp_path), Path(stand_ins(tmp_path))
    package = tmp_path / "elsewhere" / "training_profiler"
    shutil.copytree(BOOTSTRAP, package / "bootstrap")
    (package / "__init__.py").write_text("")
    (package / "api.py").write_text(LIVE)

    def run(text: str, bootstrap: Path = BOOTSTRAP, profile: str | None = "1") -> Ended:
        path = os.pathsep.join(map(str, (bootstrap, folder) if profile else (folder,)))
        return execute(tmp_path, [python, *script(tmp_path, text)[1:]], profile, path)

    beside = run("import torch, sys; print('elsewhere' in str(sys.path))", package / "bootstrap")
    assert beside == Ended(0, "started True\nFalse\n", "")

    ours = run("import torch, sys; print([m for m in sys.modules if m == 'training_profiler'])")  # without numpy
    assert (ours.status, ours.stdout) == (0, "[]\n")
    (line,) = ours.stderr.splitlines()
    assert line.startswith("training_profiler: nothing is measured: ")
    assert line.endswith(f" is missing; {python} -m pip install msgspec numpy tabulate")

    shutil.rmtree(folder / "torch")
    plain = run("import torch", profile=None)
    assert "No module named 'torch'" in plain.stderr
    assert run("import torch") == plain


def test_user_module_with_our_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "training_profiler.py").write_text("print('mine')")
    ours = in_shell(tmp_path, "import torch", stand_ins(tmp_path))
    message = f"another module is called training_profiler: {tmp_path / 'training_profiler.py'}"
    assert ours == Ended(0, "", f"training_profiler: nothing is measured: ImportError: {message}\n")


@pytest.mark.parametrize(
    ("live", "message"),
    [
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("def start_instrumentation(begin_ns, imported, is_requested): raise ValueError('bad')", "ValueError: bad"),
        ("old = True", "AttributeError: module 'training_profiler.api' has no attribute 'start_instrumentation'"),
    ],
)
def test_failing_profiler_prints_one_line_and_the_program_goes_on(tmp_path: Path, live: str, message: str) -> None:
    ours = run_prepared(tmp_path, "import torch; print('trained'); raise SystemExit(4)", live=live)
    assert ours == Ended(4, "trained\n", f"training_profiler: nothing is measured: {message}\n")


def test_broken_stderr_harms_nothing(tmp_path: Path) -> None:
    assert run_prepared(tmp_path, "import sys; sys.stderr.close(); print('end')") == Ended(0, "end\n", "")
    assert execute(tmp_path, [sys.executable, "-c", "import sys; sys.stderr = None"], "1", str(BOOTSTRAP)).status == 0


SPAWN = """
import os, subprocess, sys
import torch
print('trained', flush=True)
if len(sys.argv) < 2: subprocess.run([sys.executable, __file__, "child"], check=True)
"""
BECAUSE = LIVE.replace("return None", "return 'no optimizer was seen'")


def test_program_without_measurements_gets_the_reason_at_its_end_from_the_parent_alone(tmp_path: Path) -> None:
    text = "import atexit, torch\natexit.register(print, 'end')"
    ours = run_prepared(tmp_path, text, live=BECAUSE)
    assert ours == Ended(0, "started True\nend\n", WHY + "no optimizer was seen\n")
    ours = in_shell(tmp_path, SPAWN + "if not os.fork(): raise SystemExit", tmp_path / "stand_ins")
    assert ours.stderr == WHY + "no optimizer was seen\n"


@pytest.mark.parametrize("launch", ["os.environ[ROOT].partition(':')[2]", "'another'"])
def test_run_folder_of_a_child_counts_if_it_belongs_to_this_launch(tmp_path: Path, launch: str) -> None:
    text = f"""
import json, os, sys
ROOT = {ROOT_VARIABLE!r}
if not os.fork():
    os.makedirs("runs/20261121-142530-2")
    json.dump({{"launch": {launch}}}, open("runs/20261121-142530-2/meta.json", "w"))
    os._exit(0)
os.wait()
os.chdir("/")
"""
    (tmp_path / "runs" / "Nov21_of_another_tool").mkdir(parents=True)
    ours = run_prepared(tmp_path, text)
    assert ours == Ended(0, "", NOTHING if launch == "'another'" else "")


@pytest.mark.parametrize(
    "words", [["-c", "1"], ["-m", "pip", "--version"], ["-i", "train.py"], ["-m", "training_profiler"]]
)
def test_other_python_commands_print_nothing_in_a_prepared_shell(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "train.py").write_text("")
    ours = execute(tmp_path, [sys.executable, *words], "1", str(BOOTSTRAP))
    assert NOTHING not in ours.stderr


def test_sitecustomize_parses_in_old_pythons_and_shares_our_constants() -> None:
    source = (BOOTSTRAP / "sitecustomize.py").read_text()
    ast.parse(source, feature_version=(3, 4))
    assert not any(isinstance(node, (ast.JoinedStr, ast.FunctionDef)) for node in ast.walk(ast.parse(source)))
    ours = runpy.run_path(str(BOOTSTRAP / "sitecustomize.py"))
    hook = runpy.run_path(str(BOOTSTRAP / "training_profiler_hook.py"))
    assert (ours["SWITCH"], ours["ROOT"], ours["OFF_WORDS"]) == (SWITCH, ROOT_VARIABLE, OFF_WORDS)
    assert (hook["SWITCH"], hook["ON_WORDS"], hook["DEFAULT_DIR"]) == (SWITCH, ON_WORDS, Settings().dir)
