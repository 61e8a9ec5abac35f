"""``metrics.prom`` in the run folder: the newest values in Prometheus' text format, for a textfile collector.

With a port, a Prometheus server can scrape the same from an endpoint.

The characters of a name that Prometheus does not allow become ``_``; what varies in a name is a label:
``profiling/timing_forward_pass_avg`` is ``profiling_timing_avg{section="forward_pass"}``.
"""

import re
import socket
import socketserver
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

from training_profiler.base.trackers import PROMETHEUS
from training_profiler.safety.fault_guard import BackgroundThread, Guard
from training_profiler.safety.files import replace_file
from training_profiler.sinks.sink import MetricRow, Sink, SinkContext, folder_for

PATHS: Final = ("/metrics", "/")
LOOK_S: Final = 0.2  # between two checks for the end of the run
CLIENT_S: Final = 2.0  # for a client to send its request and to take the answer
END_S: Final = 1.0
PART: Final = "prometheus endpoint"


class PrometheusEndpoint(socketserver.TCPServer):
    """Serves what ``render`` returns, one client after the other. ``HTTPServer`` would look up the host's name.

    ``render`` is called on the endpoint's thread, which ``guard`` runs.

    Raises:
        OSError: the address cannot be used.
    """

    allow_reuse_address = True
    timeout = LOOK_S

    def __init__(self, host: str, port: int, content_type: str, render: Callable[[], bytes], guard: Guard) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.content_type, self.render = content_type, render
        super().__init__((host, port), _Handler)
        self.port = int(self.server_address[1])
        self._thread = BackgroundThread(PART, self._serve, guard, PART)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._thread.stop()
        self._thread.join(END_S)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client has gone."""

    def _serve(self, thread: BackgroundThread) -> None:
        while self.socket.fileno() >= 0 and not thread.wait_for_stop(0.0):
            self.handle_request()  # waits for ``timeout``


class _Handler(BaseHTTPRequestHandler):
    server: PrometheusEndpoint
    timeout = CLIENT_S
    server_version = "training_profiler"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in PATHS:
            self.send_error(404)
            return
        text = self.server.render()
        self.send_response(200)
        self.send_header("Content-Type", self.server.content_type)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: standard error is the program's."""


FILE: Final = "metrics.prom"
# Names of metrics with labels; the group "rest" is part of the name.
_LABELLED: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"profiling/timing_(?P<section>.+)_avg",
        r"profiling/(?P<rest>interval|epoch)_(?P<section>.+)_percentage",
        r"profiling/(?P<rest>epoch_max|bottleneck)_gpu_(?P<gpu>\d+)_memory",
        r"profiling/gpu_(?P<gpu>\d+)_(?P<rest>\w+)",
        r"profile/(?P<phase>train|val)/dl_(?P<loader>.+)/(?P<rest>\w+)",
    )
)


def prometheus_name(name: str) -> tuple[str, dict[str, str], str]:
    """Return a metric's name for Prometheus, its labels, and its documented name with the labels in braces."""
    match = next((match for pattern in _LABELLED if (match := pattern.fullmatch(name))), None)
    labels, documented = {}, name
    if match is not None:
        labels = match.groupdict()
        documented = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", match.re.pattern)
        documented = documented.replace("{rest}", labels.pop("rest", ""))
        name = re.sub(r"\{\w+\}[_/]", "", documented)
    return re.sub(r"[^a-zA-Z0-9_:]", "_", name), labels, documented


class PrometheusText(Sink):
    """Replaces the file with each write; readers never see a part of it. The endpoint ends with the run."""

    name = PROMETHEUS.name

    def __init__(self) -> None:
        self._path: Path | None = None
        self._client: Any = None
        self._registry: Any = None
        self._gauges: dict[str, Any] = {}
        self._context: SinkContext | None = None
        self._endpoint: PrometheusEndpoint | None = None
        self._notes: list[str] = []

    def connect(self, context: SinkContext) -> None:
        """Get the settings of the run, which may have a port."""
        self._context = context

    def open(self, folder: Path | None) -> None:
        """Import the client, and listen. Where that cannot be, the file is still written."""
        import prometheus_client

        self._path = folder_for(folder) / FILE
        self._client = prometheus_client
        self._registry = prometheus_client.CollectorRegistry()
        context = self._context
        address = None if context is None else context.settings.prometheus_port
        if context is None or address is None:
            return
        try:
            self._endpoint = PrometheusEndpoint(
                address.host,
                address.port,
                prometheus_client.CONTENT_TYPE_LATEST,
                lambda: bytes(prometheus_client.generate_latest(self._registry)),
                lambda part, work: context.guard(work),
            )
        except (OSError, RuntimeError) as error:
            self._notes.append(f"no endpoint for Prometheus at {address.host}:{address.port}: {error}")

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Write the newest value of each metric."""
        if self._path is None or not rows:
            return
        for row in rows:
            for name, value in {"profiling/step": row.step, **row.metrics}.items():
                gauge_name, labels, documented_name = prometheus_name(name)
                gauge = self._gauges.get(gauge_name)
                if gauge is None:
                    help_text = f"{documented_name} (docs/reference/metrics.md)"
                    gauge = self._client.Gauge(gauge_name, help_text, list(labels), registry=self._registry)
                    self._gauges[gauge_name] = gauge
                (gauge.labels(**labels) if labels else gauge).set(value)
        replace_file(self._path, self._client.generate_latest(self._registry))

    def close(self) -> None:
        """Stop listening."""
        if self._endpoint is not None:
            self._endpoint.close()

    def after_fork_in_child(self) -> None:
        """Leave the port to the parent process."""
        if self._endpoint is not None:
            self._endpoint.server_close()

    def notes(self) -> list[str]:
        """Return a sentence if nothing could listen."""
        return list(self._notes)
