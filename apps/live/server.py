"""The page's server: to this machine alone, to who knows its address, and only for reading."""

import hmac
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flwr_vertical.log import logger
from flwr_vertical.whole_files import TEMPORARY_PREFIX, write_text_atomically

from .page import POLICY, page_of
from .status import LiveStatus

PATTERN = f"{TEMPORARY_PREFIX}*.live"
"""What files with addresses are called."""

_LOOPBACK = "127.0.0.1"
# A page from elsewhere can have its own name lead to this machine, but comes with that name.
_HOSTS = frozenset({_LOOPBACK, "localhost"})
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def address_file(folder: Path) -> Path:
    """Return the file beside a run's folder that holds the address of its page."""
    return folder.with_name(PATTERN.replace("*", folder.name))


@contextmanager
def serving(status: LiveStatus, folder: Path) -> Iterator[str]:
    """Serve the page of a run while it lasts, and yield its address.

    The address has a secret part, since other users of the machine can reach the port. It is in
    the log, and in a file beside the run's folder that only its owner can read.
    """
    secret = secrets.token_urlsafe(16)
    server = ThreadingHTTPServer((_LOOPBACK, 0), partial(_Handler, status, f"/{secret}/"))
    address = f"http://{_LOOPBACK}:{server.server_port}/{secret}/"
    threading.Thread(target=_serve, args=(server,), daemon=True).start()
    file = write_text_atomically(address_file(folder), address, mode=0o600)
    try:
        logger.info("this run's page, for this machine: %s (or `flwr-vertical watch`)", address)
        yield address
    finally:
        with suppress(OSError):
            file.unlink()
        # It waits for the thread's next look, for which the run need not wait.
        threading.Thread(target=server.shutdown, daemon=True).start()


def _serve(server: ThreadingHTTPServer) -> None:
    with server:
        server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "flwr-vertical", ""
    timeout = 10.0  # seconds for a request; browsers open connections that they do not use

    def __init__(self, status: LiveStatus, root: str, *connection: Any) -> None:
        self._status, self._root = status, root
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Answer with the page, or with what it shows as JSON."""
        if self.headers.get("Host", "").partition(":")[0] not in _HOSTS:
            self.send_error(403, "this page is for the machine that it runs on")
        elif self._is("status.json"):
            self._send("application/json", json.dumps(self._status.read()))
        elif self._is(""):
            self._send("text/html; charset=utf-8", page_of(self._status.read()))
        else:
            self.send_error(404)

    def _is(self, name: str) -> bool:
        return hmac.compare_digest(self.path.encode(), f"{self._root}{name}".encode())

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        for name, value in {"Content-Type": kind, **_HEADERS}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing: Flower's log is the run's."""
