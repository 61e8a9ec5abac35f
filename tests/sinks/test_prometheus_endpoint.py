import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.settings.settings import Settings, read_settings
from training_profiler.sinks.prometheus_text import PrometheusEndpoint, PrometheusText
from training_profiler.sinks.sink import MetricRow, SinkContext

LONG_S = 30.0


@pytest.fixture
def endpoint() -> Iterator[PrometheusEndpoint]:
    made = PrometheusEndpoint("127.0.0.1", 0, "text/plain", lambda: b"steps 3\n", FaultGuard().run)
    yield made
    made.close()


def read(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONG_S) as answer:
        return str(answer.read().decode())


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_metrics_are_served_and_other_paths_are_not_found(endpoint: PrometheusEndpoint) -> None:
    assert read(endpoint.port) == read(endpoint.port, "/metrics?name=x") == "steps 3\n"
    with pytest.raises(urllib.error.HTTPError) as error:
        read(endpoint.port, "/etc/passwd")
    assert error.value.code == 404


def test_client_that_leaves_harms_nothing(endpoint: PrometheusEndpoint, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
        client.sendall(b"nonsense\r\n\r\n")
    assert read(endpoint.port) == "steps 3\n"
    assert capfd.readouterr() == ("", "")


def test_end_of_the_run_ends_thread_and_port() -> None:
    threads = set(threading.enumerate())
    endpoint = PrometheusEndpoint("127.0.0.1", 0, "text/plain", lambda: b"", FaultGuard().run)
    endpoint.close()
    assert not is_listening(endpoint.port)
    assert set(threading.enumerate()) <= threads


def write_row(folder: Path, port: int) -> PrometheusText:
    pytest.importorskip("prometheus_client")
    sink = PrometheusText()
    sink.connect(SinkContext(lambda work: work(), lambda: None, read_settings({"prometheus_port": port}, {})))
    sink.open(folder)
    sink.write([MetricRow(7, 0.0, {"profiling/mfu": 0.5})])
    return sink


def test_sink_serves_its_newest_values_while_the_run_lasts(tmp_path: Path) -> None:
    port = free_port()
    sink = write_row(tmp_path, port)
    assert "profiling_mfu 0.5" in read(port)
    sink.close()
    assert not is_listening(port)
    assert "profiling_mfu 0.5" in (tmp_path / "metrics.prom").read_text()


def test_port_in_use_is_a_note_and_the_file_is_written(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        sink = write_row(tmp_path, port)
        sink.close()
    (note,) = sink.notes()
    assert note.startswith(f"no endpoint for Prometheus at 127.0.0.1:{port}: ")
    assert (tmp_path / "metrics.prom").exists()


def test_a_port_chooses_the_sink_and_nothing_listens_by_default() -> None:
    assert read_settings({"prometheus_port": 9400, "sinks": "jsonl"}, {}).sinks == ("jsonl", "prometheus")
    assert Settings().prometheus_port is None
