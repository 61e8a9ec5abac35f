"""``metrics.prom`` in the run folder: the newest values in Prometheus' text format, for a textfile collector.

With a port, a Prometheus server can scrape the same from an endpoint.

The characters of a name that Prometheus does not allow become ``_``; what varies in a name is a label:
``profiling/timing_forward_pass_avg`` is ``profiling_timing_avg{section="forward_pass"}``.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from training_profiler.safety.files import replace_file
from training_profiler.settings.settings import Address
from training_profiler.sinks.prometheus_endpoint import PrometheusEndpoint
from training_profiler.sinks.sink import MetricRow, Sink, SinkContext, folder_for
from training_profiler.tables.trackers import PROMETHEUS

FILE: Final = "metrics.prom"
# (pattern of a metric's name, its name for Prometheus, its name in the documentation)
_LABELLED: Final = tuple(
    (re.compile(pattern), prometheus_name, documented_name)
    for pattern, prometheus_name, documented_name in (
        (r"profiling/timing_(?P<section>.+)_avg", "profiling_timing_avg", "profiling/timing_{section}_avg"),
        (
            r"profiling/(?P<rest>interval|epoch)_(?P<section>.+)_percentage",
            "profiling_{rest}_percentage",
            "profiling/{rest}_{section}_percentage",
        ),
        (
            r"profiling/(?P<rest>epoch_max|bottleneck)_gpu_(?P<gpu>\d+)_memory",
            "profiling_{rest}_gpu_memory",
            "profiling/{rest}_gpu_{gpu}_memory",
        ),
        (r"profiling/gpu_(?P<gpu>\d+)_(?P<rest>\w+)", "profiling_gpu_{rest}", "profiling/gpu_{gpu}_{rest}"),
        (
            r"profile/(?P<phase>train|val)/dl_(?P<loader>.+)/(?P<rest>\w+)",
            "profile_dl_{rest}",
            "profile/{phase}/dl_{loader}/{rest}",
        ),
    )
)


def prometheus_name(name: str) -> tuple[str, dict[str, str], str]:
    """Return a metric's name for Prometheus, its labels, and its documented name with the labels in braces."""
    for pattern, short_name, documented_name in _LABELLED:
        match = pattern.fullmatch(name)
        if match is not None:
            labels = match.groupdict()
            rest = labels.pop("rest", "")
            return short_name.replace("{rest}", rest), labels, documented_name.replace("{rest}", rest)
    return re.sub(r"[^a-zA-Z0-9_:]", "_", name), {}, name


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
        """Import the client."""
        import prometheus_client

        self._path = folder_for(folder) / FILE
        self._client = prometheus_client
        self._registry = prometheus_client.CollectorRegistry()
        address = None if self._context is None else self._context.settings.prometheus_port
        if address is not None:
            self._listen(address)

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Write the newest value of each metric."""
        if self._path is None or not rows:
            return
        for row in rows:
            self._set("profiling/step", row.step)
            for name, value in row.metrics.items():
                self._set(name, value)
        replace_file(self._path, self._client.generate_latest(self._registry))

    def close(self) -> None:
        """Stop listening."""
        if self._endpoint is not None:
            self._endpoint.close()

    def after_fork_in_child(self) -> None:
        """Leave the port to the parent process."""
        if self._endpoint is not None:
            self._endpoint.after_fork_in_child()

    def notes(self) -> list[str]:
        """Return a sentence if nothing could listen."""
        return list(self._notes)

    def _listen(self, address: Address) -> None:
        # Where it cannot listen, the file is still written.
        guard = self._context.guard if self._context is not None else lambda work: work()
        try:
            self._endpoint = PrometheusEndpoint(
                address.host,
                address.port,
                self._client.CONTENT_TYPE_LATEST,
                lambda: bytes(self._client.generate_latest(self._registry)),
                lambda part, work: guard(work),
            )
        except (OSError, RuntimeError) as error:
            self._notes.append(f"no endpoint for Prometheus at {address.host}:{address.port}: {error}")

    def _set(self, name: str, value: float) -> None:
        gauge_name, labels, documented_name = prometheus_name(name)
        gauge = self._gauges.get(gauge_name)
        if gauge is None:
            help_text = f"{documented_name} (docs/reference/metrics.md)"
            gauge = self._client.Gauge(gauge_name, help_text, list(labels), registry=self._registry)
            self._gauges[gauge_name] = gauge
        (gauge.labels(**labels) if labels else gauge).set(value)
