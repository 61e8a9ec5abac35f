"""An assistant's client, the SDK's own, asks ``training-profiler mcp`` over standard input and output."""

import asyncio
import json
import os
import shutil
import sys

import pytest

from tests.cli.test_compare import write_run
from tests.cli.test_trace import training
from tests.system.launching import RUN
from tests.system.scripts import environment
from tests.system.test_try import SLEEPING
from training_profiler.storage.history import INDEX

pytestmark = pytest.mark.integrations


def test_a_client_of_the_sdk_reads_runs_and_nothing_else(tmp_path):
    mcp = pytest.importorskip("mcp")
    runs = tmp_path / "runs"
    before, after = write_run(runs, "20261121-142530"), write_run(runs, "20261121-142531", 0.12)
    captures = after / "captures"
    captures.mkdir()
    training().write(captures)
    kept = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-c", RUN, "mcp", str(runs)], cwd=tmp_path, env=dict(os.environ)
    )

    async def ask():
        async with mcp.Client(server, read_timeout_seconds=60) as client:
            tools = (await client.list_tools()).tools
            answers = {
                name: await client.call_tool(name, words)
                for name, words in (
                    ("list_runs", {}),
                    ("findings", {}),
                    ("report", {"run": before.name}),
                    ("compare", {"before": before.name}),
                    ("history", {}),
                    ("list_traces", {}),
                )
            }
            trace = await client.call_tool("trace", {"path": answers["list_traces"].structured_content["result"][0]})
            refused = [
                await client.call_tool(name, words)
                for name, words in (
                    ("findings", {"run": "/etc"}),
                    ("trace", {"path": "../outside.json"}),
                    ("compare", {}),
                )
            ]
            return tools, answers, trace, refused

    tools, answers, trace, refused = asyncio.run(ask())
    names = {"findings", "explain", "list_runs", "report", "compare", "history", "list_traces", "trace"}
    assert {tool.name for tool in tools} == names
    assert all(tool.annotations.read_only_hint and len(tool.description) > 40 for tool in tools)
    assert not any(answer.is_error for answer in (*answers.values(), trace))
    assert len(answers["list_runs"].structured_content["result"]) == 2
    assert json.loads(answers["findings"].content[0].text)["steps"] == 60
    assert "=== Final Profiling Summary (60 steps) ===" in answers["report"].content[0].text
    assert answers["compare"].structured_content["verdict"] == "slower"
    assert "=== Recommendations ===" in trace.content[0].text
    assert all(answer.is_error for answer in refused)
    assert "/etc is not a run that is served" in refused[0].content[0].text
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.name != INDEX} == kept


def test_a_client_runs_a_program_and_hears_why_a_patch_cannot_be_tried(tmp_path):
    mcp = pytest.importorskip("mcp")
    shutil.copy(SLEEPING, tmp_path / "train.py")
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-c", RUN, "mcp", "--run"], cwd=tmp_path, env=environment(None)
    )
    progress = []

    async def note(part, total, message):
        progress.append((part, message))

    async def ask():
        async with mcp.Client(server, read_timeout_seconds=300) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            ran = await client.call_tool("run", {"program": ["train.py", "300"]}, progress_callback=note)
            patch = {"program": ["train.py"], "patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}
            return tools, ran, await client.call_tool("try_patch", patch)

    tools, ran, refused = asyncio.run(ask())
    assert not any(tools[name].annotations.read_only_hint for name in ("run", "try", "try_patch"))
    assert not ran.is_error, ran.content[0].text
    assert ran.structured_content["steps"] == 300
    assert ran.structured_content["next_step"]
    assert len(ran.content[0].text) < 16_000
    assert all("train.py 300" in message for _, message in progress)
    assert refused.is_error
    assert "change.diff does not apply" in refused.content[0].text
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.txt", "runs", "train.py"]
