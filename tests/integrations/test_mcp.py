"""An assistant's client, the SDK's own, asks ``training-profiler mcp`` over standard input and output."""

import asyncio
import json
import os
import sys

import pytest

from tests.cli.test_compare import write_run
from tests.cli.test_trace import training
from tests.system.launching import RUN

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
    assert {tool.name for tool in tools} == {"findings", "list_runs", "report", "compare", "list_traces", "trace"}
    assert all(tool.annotations.read_only_hint and len(tool.description) > 40 for tool in tools)
    assert not any(answer.is_error for answer in (*answers.values(), trace))
    assert len(answers["list_runs"].structured_content["result"]) == 2
    assert json.loads(answers["findings"].content[0].text)["steps"] == 60
    assert "=== Final Profiling Summary (60 steps) ===" in answers["report"].content[0].text
    assert answers["compare"].structured_content["verdict"] == "slower"
    assert "=== Recommendations ===" in trace.content[0].text
    assert all(answer.is_error for answer in refused)
    assert "/etc is not a run that is served" in refused[0].content[0].text
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == kept
