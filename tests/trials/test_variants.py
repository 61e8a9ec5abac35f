"""A patch and a commit become the files that differ; nothing of the user's folder or repository changes."""

import os
import subprocess

import pytest

from training_profiler.base.errors import ProfilerError
from training_profiler.trials.isolated_program import write_files
from training_profiler.trials.variants import LINK, of_arguments, of_commit, of_patch

AUTHOR = ["-c", "user.name=A", "-c", "user.email=a@example.org"]


def git(folder, *words):
    return subprocess.run(["git", *AUTHOR, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    """A repository whose second commit changes, adds, removes and links files; its folder has uncommitted work."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for name, text in {
        "train.py": "one\n",
        "gone.py": "gone\n",
        "sub/kept.py": "kept\n",
        ".gitignore": "data\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    (folder / "train.py").write_text("two\n")
    (folder / "gone.py").unlink()
    (folder / "new é.sh").write_text("new\n")
    (folder / "new é.sh").chmod(0o755)
    (folder / "link").symlink_to("sub")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "two")
    (folder / "train.py").write_text("uncommitted\n")
    (folder / "data").write_text("large\n")
    return folder


def state_of(folder):
    """Return everything in a folder, with the time of each change."""
    paths = sorted(path for path in folder.rglob("*") if "objects" not in path.parts)
    return [(str(path), path.lstat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in paths]


def seen(variant, folder):
    return {os.path.relpath(each.path, folder): each.mode and each.content for each in variant.files}


def test_a_commit_has_the_files_that_differ_from_the_folder_as_it_is(repository):
    before = state_of(repository)
    first, second = of_commit("HEAD~1", repository), of_commit("HEAD", repository / "sub")
    assert seen(second, repository) == {"train.py": b"two\n"}
    assert seen(first, repository) == {"train.py": b"one\n", "gone.py": b"gone\n", "new é.sh": 0, "link": 0}
    assert state_of(repository) == before
    git(repository, "checkout", "--quiet", "--force", "HEAD~1")
    later = {os.path.basename(each.path): each for each in of_commit("HEAD@{1}", repository).files}
    assert (later["link"].mode, later["link"].content, later["new é.sh"].mode) == (LINK, b"sub", 0o100755)


PATCH = """--- a/train.py
+++ b/train.py
@@ -1 +1 @@
-uncommitted
+patched
"""


@pytest.mark.parametrize("form", [PATCH, PATCH.replace("a/", "").replace("b/", "")])
def test_a_patch_is_applied_to_the_folder_as_it_is(repository, tmp_path, form):
    (tmp_path / "fix.diff").write_text(form)
    before = state_of(repository)
    for folder in (repository, repository / "sub"):  # paths from the top of the repository, as git writes them
        variant = of_patch(tmp_path / "fix.diff", folder)
        assert (variant.name, seen(variant, repository)) == ("fix.diff", {"train.py": b"patched\n"})
    assert state_of(repository) == before


def test_a_patch_of_git_adds_removes_and_moves_files(repository, tmp_path):
    git(repository, "mv", "sub/kept.py", "moved.py")
    git(repository, "rm", "--quiet", "--force", "train.py")
    (repository / "added.py").write_text("added\n")
    git(repository, "add", "added.py")
    (tmp_path / "all.diff").write_text(git(repository, "diff", "--cached", "--binary"))
    git(repository, "reset", "--quiet", "--hard")
    assert seen(of_patch(tmp_path / "all.diff", repository), repository) == {
        "train.py": 0,
        "sub/kept.py": 0,
        "moved.py": b"kept\n",
        "added.py": b"added\n",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "does not apply"),
        ("what is this", "does not apply to .*: No valid patches in input$"),
        (PATCH.replace("-uncommitted", "-other"), "patch failed: train.py:1"),
        (PATCH.replace("train.py", "../outside.py"), "does not apply"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_patch_that_does_not_apply_is_refused_in_a_line(repository, tmp_path, text, problem):
    patch = tmp_path / "fix.diff"
    if text is not None:
        patch.write_text(text)
    with pytest.raises(ProfilerError, match=problem) as refused:
        of_patch(patch, repository)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "outside.py").exists()


def test_a_commit_or_arguments_that_are_none_are_refused_with_an_example(repository, tmp_path):
    with pytest.raises(ProfilerError, match=r"'mian' is not a commit of .*; example: HEAD"):
        of_commit("mian", repository)
    with pytest.raises(ProfilerError, match="not a git repository"):
        of_commit("HEAD", tmp_path)
    with pytest.raises(ProfilerError, match="No closing quotation; example: --args"):
        of_arguments("--name 'x")
    assert of_arguments("--lr 1e-3 --name 'a b'").arguments == ("--lr", "1e-3", "--name", "a b")


def test_a_submodule_in_another_state_is_refused(repository):
    commit = git(repository, "rev-parse", "HEAD").strip()
    for state in (commit, git(repository, "rev-parse", "HEAD~1").strip()):
        git(repository, "update-index", "--add", "--cacheinfo", f"160000,{state},library")
        git(repository, "commit", "--quiet", "-m", state)
    with pytest.raises(ProfilerError, match="library is a submodule that HEAD~1 has in another state"):
        of_commit("HEAD~1", repository)


def test_files_are_written_below_the_copy_and_nowhere_else(tmp_path):
    users, top = tmp_path / "users", tmp_path / "layers"
    copied = top / str(users)[1:]
    (copied / "inner").mkdir(parents=True)
    users.mkdir()
    (users / "large").mkdir()
    (users / "data.txt").write_text("data")
    (copied / "large").symlink_to(users / "large")
    (copied / "data.txt").symlink_to(users / "data.txt")
    (content := tmp_path / "content").write_text("data.txt")
    write_files(
        [
            (f"{users}/data.txt", 0o100644, str(content)),
            (f"{users}/made/here.py", 0o100755, str(content)),
            (f"{users}/link", LINK, str(content)),
            (f"{users}/absent", 0, ""),
        ],
        str(top),
    )
    assert (users / "data.txt").read_text() == "data"
    assert (copied / "data.txt").read_text() == "data.txt"
    assert os.access(copied / "made" / "here.py", os.X_OK)
    assert os.readlink(copied / "link") == "data.txt"
    with pytest.raises(OSError, match="too large to be copied"):
        write_files([(f"{users}/large/x.py", 0o100644, str(content))], str(top))
    assert os.listdir(users / "large") == []
