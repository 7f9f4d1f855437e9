"""Command ``psframe watch RUN`` (:func:`main`): the ranks of a running job on a page of this host, for a browser.

It is read-only, and wants the token of the address that it prints: other users of the host could ask it, too.
"""

import json
import secrets
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.doctor.live.snapshot import Live
from psframe.errors import UserError, reason
from psframe.record.view import say

USAGE = "psframe watch [RUN] [--port N] [--host ADDRESS]"
EXAMPLE = "psframe watch runs/fashion-20261121-204643 --port 8808"
POLICY = "; ".join(
    [*(f"{of}-src 'self'" for of in ("script", "style", "connect")), "img-src data:", "default-src 'none'"]
)
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
PAGES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}
LOOK_S = 1.0  # between two looks, of all pages together
KEYS = ("epoch", "loss", "accuracy", "epoch_s", "samples_per_s")  # of a record, that the page draws


def parser() -> Parser:
    cli = Parser(USAGE, "Serve a page on a running job, until Ctrl-C or its end.", EXAMPLE)
    cli.add_argument("run", nargs="?", help="the folder of a run that trains (default: your newest one on this host)")
    cli.add_argument("--port", type=int, default=0, help="(default: a free one)")
    cli.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    return cli


def _arguments(argv: Sequence[str]) -> Namespace:
    cli = parser()
    arguments = cli.parse_args(argv)
    if not 0 <= arguments.port < 1 << 16:
        cli.error(f"--port must be 0 to 65535, got {arguments.port}")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Raise UserError where no such job trains here, or the port is taken."""
    arguments = _arguments(argv)
    server = made(Live(Path(arguments.run) if arguments.run else None), arguments.host, arguments.port)
    say(server.address)
    while not server.live.has_ended:
        server.handle_request()
    say("the job has ended")
    return 0


class Server(ThreadingHTTPServer):
    """Server of a running job.

    Attributes
    ----------
    token : str
        What a request must bring.
    """

    daemon_threads = True
    timeout = 1.0  # until it looks whether the job has ended

    def __init__(self, live: Live, host: str, port: int):
        self.live, self.lock, self.host, self.token = live, Lock(), host, secrets.token_urlsafe(16)
        self.looked = -LOOK_S
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/?token={self.token}"

    def data(self) -> dict[str, Any]:
        """Return a look at the job, as plain values."""
        with self.lock:  # rates are those since the last look, whoever asked for it
            if time.monotonic() - self.looked >= LOOK_S:
                self.snapshot, self.looked = self.live.look(), time.monotonic()
            snapshot = self.snapshot
        plain = asdict(snapshot)
        plain["epochs"] = [{key: record.get(key) for key in KEYS} for record in snapshot.epochs]
        last = {key: value for key, value in snapshot.last.items() if isinstance(value, str | int | float)}
        return plain | {"last": last, "ended": self.live.has_ended}


def made(live: Live, host: str, port: int) -> Server:
    """Return a server that listens. Raises UserError if it cannot."""
    try:
        return Server(live, host, port)
    except OSError as error:
        raise UserError(
            f"watch must have an address of this host and a free port, got {host}:{port} ({reason(error)}); give "
            "another --port"
        ) from None


class Handler(BaseHTTPRequestHandler):
    """Answers GET, of the page and of the data."""

    server: Server
    server_version = sys_version = ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        is_page = url.path in PAGES and url.path != "/"  # of psframe's own, the same for everyone
        token = parse_qs(url.query).get("token", [""])[0]
        if not is_page and not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(403, "text/plain", b"a token is missing: see the address that psframe watch has printed\n")
        elif url.path == "/data":
            self._answer(200, "application/json", json.dumps(self.server.data()).encode())
        elif url.path in PAGES:
            name = PAGES[url.path]
            body = (files("psframe.doctor.live") / name).read_bytes()
            self._answer(200, KINDS[name.partition(".")[2]], body)
        else:
            self._answer(404, "text/plain", b"there is no such page\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *given: Any) -> None:
        """Say nothing of requests."""


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
