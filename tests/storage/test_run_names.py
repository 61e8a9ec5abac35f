from pathlib import Path

from training_profiler.settings.settings import Settings
from training_profiler.storage.run_folder import META, make_run_folder, run_ending, write_json
from training_profiler.storage.run_lookup import run_named


def make_run(parent: Path, stamp: str, name: str, settings: dict[str, str] | None = None) -> Path:
    folder = parent / f"{stamp}{run_ending(name)}"
    folder.mkdir(parents=True)
    write_json(folder / META, {"settings": {"name": name} if settings is None else settings})
    return folder


def test_name_is_the_end_of_the_folder(tmp_path: Path) -> None:
    assert make_run_folder(tmp_path, run_ending("lr-3")).name.endswith("-lr-3")
    assert len(make_run_folder(tmp_path, run_ending(Settings().name)).name) == len("20261121-142530")


def test_newest_run_of_a_name_is_found(tmp_path: Path) -> None:
    make_run(tmp_path, "20261121-142530", "a")
    newest = make_run(tmp_path, "20261122-142530", "a")
    make_run(tmp_path, "20261123-142530", "b")
    assert run_named("a", tmp_path) == newest


def test_run_whose_name_ends_like_a_second_run_is_another(tmp_path: Path) -> None:
    first = make_run(tmp_path, "20261121-142530", "a")
    other = make_run(tmp_path, "20261122-142530", "a-2")
    assert run_named("a", tmp_path) == first
    assert run_named("a-2", tmp_path) == other


def test_folder_name_is_a_name_too(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "20261121-142530", "a")
    assert run_named(folder.name, tmp_path) == folder


def test_unknown_name_and_missing_folder_are_none(tmp_path: Path) -> None:
    make_run(tmp_path, "20261121-142530", "a")
    for name in ("b", "..", "a/b", "", "."):
        assert run_named(name, tmp_path) is None
    assert run_named("a", tmp_path / "missing") is None
