"""The change of a client's file is shown, asked for, written and taken back; what else is in the file stays."""

import json
import tomllib

import pytest

from training_profiler.base.errors import ProfilerError
from training_profiler.cli import main
from training_profiler.cli.assistants import CLIENTS, SERVER, SKILL, set_up

OTHERS = {
    "json": {"mcpServers": {"other": {"command": "x"}}, "servers": {"other": {"command": "x"}}, "kept": [1]},
    "toml": '# mine\nmodel = "m"\n\n[mcp_servers.other]\ncommand = "x"\n',
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def file_of(home, name):
    path = CLIENTS[name].path
    return home / "home" / path[2:] if path.startswith("~/") else home / "project" / path


def servers_in(path, name):
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text())["mcp_servers"]
    return json.loads(path.read_text())[CLIENTS[name].key]


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("has_others", [False, True])
def test_a_client_gets_the_server_and_loses_it_again(home, capsys, name, has_others):
    path = file_of(home, name)
    if has_others:
        path.parent.mkdir(parents=True, exist_ok=True)
        others = OTHERS[path.suffix[1:]]
        path.write_text(others if isinstance(others, str) else json.dumps(others, indent=2) + "\n")
    before = path.read_text() if has_others else None
    for _ in range(2):  # a second time changes nothing
        assert main(["mcp", "--setup", name, "--yes"]) == 0
    assert "nothing to change" in capsys.readouterr().err
    found = servers_in(path, name)
    assert found[SERVER]["args"][-2:] == ["mcp", "--run"]
    assert ("other" in found) == has_others
    skill = home / "project" / ".claude/skills/training-profiler/SKILL.md"
    assert skill.exists() == (name == "claude")
    assert main(["mcp", "--setup", name, "--undo", "--yes"]) == 0
    assert (path.read_text() if path.exists() else None) == before
    assert not skill.parent.exists()


def test_nothing_is_written_without_a_yes(home, monkeypatch, capsys):
    with pytest.raises(ProfilerError, match="add --yes"):
        set_up("cursor", False, False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer, status in (("", 1), ("no", 1), ("y", 0)):
        assert set_up("cursor", False, False, lambda question, answer=answer: answer) == status
        assert file_of(home, "cursor").exists() == (status == 0)
    assert '+    "training-profiler": {' in capsys.readouterr().out


@pytest.mark.parametrize("text", ["// comment\n{}", "[1]", '{"servers": 7}'])
def test_a_file_that_is_not_plain_json_is_left_alone(home, text):
    path = file_of(home, "vscode")
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ProfilerError, match=r'is not plain JSON; add this to .servers. yourself: \{"training-profiler'):
        set_up("vscode", False, True)
    assert path.read_text() == text


def test_the_skill_names_tools_that_there_are():
    text = SKILL.read_text()
    assert text.startswith("---\nname: training-profiler\ndescription: ")
    assert all(f"`{tool}(" in text for tool in ("run", "findings", "explain", "report", "try_patch", "try"))
