"""An HTTP endpoint that a Prometheus server scrapes, on a thread that ends with the run."""

import socket
import socketserver
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from training_profiler.safety.background_thread import BackgroundThread
from training_profiler.safety.fault_guard import Guard

PATHS: Final = ("/metrics", "/")
LOOK_S: Final = 0.2  # between two checks for the end of the run
CLIENT_S: Final = 2.0  # for a client to send its request and to take the answer
END_S: Final = 1.0


class PrometheusEndpoint:
    """Serves what ``render`` returns, one client after the other.

    Args:
        host: the address to listen on.
        port: the port to listen on.
        content_type: of the answers.
        render: returns the metrics in the text format; called on the endpoint's thread.
        guard: runs the thread.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(self, host: str, port: int, content_type: str, render: Callable[[], bytes], guard: Guard) -> None:
        self._server: _Server | None = _Server((host, port), _handler(content_type, render))
        self.port = int(self._server.server_address[1])
        self._thread = BackgroundThread("prometheus endpoint", self._serve, guard, "prometheus endpoint")
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._thread.stop()
        self._thread.join(END_S)
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Close the socket, which the child has inherited."""
        server, self._server = self._server, None
        if server is not None:
            server.server_close()

    def _serve(self, thread: BackgroundThread) -> None:
        server = self._server
        while server is not None and not thread.wait_for_stop(0.0):
            server.handle_request()  # waits for ``server.timeout``


class _Server(socketserver.TCPServer):
    # Not HTTPServer, which looks up the host's name and may wait for that.
    allow_reuse_address = True
    timeout = LOOK_S

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client has gone."""


def _handler(content_type: str, render: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_S
        server_version = "training_profiler"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in PATHS:
                self.send_error(404)
                return
            text = render()
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing: standard error is the program's."""

    return Handler
