"""Enters the server into the configuration of an assistant's client, or removes it; the user sees the change first."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final, NamedTuple

from training_profiler.base.errors import ProfilerError
from training_profiler.cli.common import say, write

SERVER: Final = "training-profiler"
SKILL: Final = Path(__file__).with_name("SKILL.md")
_TABLE: Final = f"[mcp_servers.{SERVER}]"


class Client(NamedTuple):
    """An assistant's client: its file, below the project or the home folder, and what holds the servers there."""

    path: str
    key: str = "mcpServers"
    skill: str = ""  # file that teaches how to use the server


CLIENTS: Final = {
    "claude": Client(".mcp.json", skill=f".claude/skills/{SERVER}/SKILL.md"),
    "codex": Client("~/.codex/config.toml"),
    "cursor": Client(".cursor/mcp.json"),
    "vscode": Client(".vscode/mcp.json", "servers"),
}


def set_up(name: str, is_undone: bool, is_agreed: bool, ask: Callable[[str], str] = input) -> int:
    """Show the change of a client's files, ask, and write it; return the exit status: 1 if the user declines."""
    client = CLIENTS[name]
    path = Path(os.path.expanduser(client.path))
    change = _toml if path.suffix == ".toml" else _json
    wanted = {path: change(path, client, is_undone)}
    if client.skill:
        wanted[Path(client.skill)] = "" if is_undone else SKILL.read_text(encoding="utf-8")
    changes = {path: (_text(path), new) for path, new in wanted.items() if _text(path) != new}
    if not changes:
        say(f"{path}: nothing to change")
        return 0
    for path, (old, new) in changes.items():
        lines = unified_diff(old.splitlines(), new.splitlines(), str(path), str(path), lineterm="")
        write("\n".join(lines) + "\n")
    if not is_agreed:
        if not sys.stdin.isatty():
            raise ProfilerError("to write this without a terminal: add --yes")
        if ask("Write this? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    for path, (_, new) in changes.items():
        if new:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
        else:
            path.unlink()
            with suppress(OSError):  # it has other files
                path.parent.rmdir()
    return 0


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _words() -> list[str]:
    """Return the command that serves this folder."""
    found = shutil.which(SERVER)
    return [*([found] if found else [sys.executable, "-m", "training_profiler"]), "mcp", "--run"]


def _json(path: Path, client: Client, is_undone: bool) -> str:
    """Return the file with the server, or without it; "" where nothing else would be left in it."""
    old, (command, *arguments) = _text(path), _words()
    entry = {"command": command, "args": arguments}
    try:
        data: dict[str, Any] = json.loads(old or "{}")
        servers = dict(data.get(client.key, {}))
    except (ValueError, TypeError, AttributeError):
        manually = json.dumps({SERVER: entry})
        raise ProfilerError(f"{path} is not plain JSON; add this to {client.key!r} yourself: {manually}") from None
    servers.pop(SERVER, None)
    data = {**data, client.key: servers if is_undone else {**servers, SERVER: entry}}
    if is_undone and not servers:
        del data[client.key]
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n" if data else ""


def _toml(path: Path, client: Client, is_undone: bool) -> str:
    """Return the file with the server's table at its end, or without it."""
    kept, is_ours = [], False
    for line in _text(path).splitlines():
        is_ours = line.strip() == _TABLE or (is_ours and not line.lstrip().startswith("["))
        kept += [] if is_ours else [line]
    text = "\n".join(kept).rstrip() + "\n" if any(line.strip() for line in kept) else ""
    command, *arguments = map(json.dumps, _words())  # a basic string of TOML is one of JSON
    table = f"{_TABLE}\ncommand = {command}\nargs = [{', '.join(arguments)}]\n"
    return text if is_undone else f"{text}\n{table}" if text else table
