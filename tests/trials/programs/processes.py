"""Leaves a daemon with an empty environment that listens on a port: ``processes.py FOLDER``."""

import os
import socket
import sys
import time
from pathlib import Path

PORT = Path(sys.argv[1], "port")

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        server = socket.create_server(("127.0.0.1", 0))
        server.set_inheritable(True)
        PORT.with_suffix(".new").write_text(str(server.getsockname()[1]))
        PORT.with_suffix(".new").rename(PORT)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
while not PORT.exists():
    time.sleep(0.01)
