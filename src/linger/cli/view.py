# SPDX-License-Identifier: Apache-2.0
"""linger view: a file as a graph in the browser, drawn by Netron, served to this machine only."""

from __future__ import annotations

import html
import mimetypes
import signal
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlsplit

import typer

from linger.cli import say, say_result
from linger.cli.arguments.options import Json
from linger.errors import UsageError

HOST = "127.0.0.1"
"""The address of this machine for itself. No option changes it."""

_LOCAL_ONLY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; worker-src 'self' blob:"
)
"""Netron's page would ask servers of others for the country and tell them that it was opened. This keeps a browser from it."""


def view(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    port: Annotated[int, typer.Option(help="The port to listen on; 0: a free one.", min=0, max=65535)] = 0,
    *,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
    as_json: Json = False,
) -> None:
    """Show a file as a graph in the browser, until Ctrl-C.

    Netron draws it. A dialect node is one box; where the file holds its function, the sign f in the box shows the
    function's body. The page is served to this machine only, at 127.0.0.1, and asks no other server.

    Exit code 1: the file is no complete model

    Examples:
        linger view digits.onnx
        linger view digits.onnx --port 8080 --no-browser
    """
    import webbrowser

    import netron

    from linger.graph.files.summary import summarize

    pages, data_files = Path(netron.__file__).parent, frozenset(summarize(model).data_files)
    with _Server(pages, model, data_files, port) as server:
        address = f"http://{HOST}:{server.server_address[1]}/"
        if as_json:
            say_result("view", {"model": str(model), "address": address})
        else:
            say(f"{model} is shown at {address} until you press Ctrl-C.")
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            # Ctrl-C is how this command ends when all is well; no Exception, which the server would take for one of a request
            signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
        if browser:
            webbrowser.open(address)
        server.serve_forever()


class _Server(ThreadingHTTPServer):
    """Serves Netron's page, one model and its data files."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, pages: Path, model: Path, data_files: frozenset[str], port: int) -> None:
        self.pages, self.model, self.data_files = pages.resolve(), model, data_files
        try:
            super().__init__((HOST, port), _Answer)
        except OSError as error:
            raise UsageError(
                f"view: port {port} cannot be used ({error.strerror}). Choose another one, or 0 for a free one."
            ) from error

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a browser that went away."""

    def content(self, path: str) -> bytes | None:
        """What lies at a path of the page; None where nothing does."""
        if path == "/":
            return self._index()
        if path.startswith("/data/"):
            name = path.removeprefix("/data/")
            known = name == self.model.name or name in self.data_files
            return (self.model.parent / name).read_bytes() if known else None
        file = (self.pages / path.lstrip("/")).resolve()
        return file.read_bytes() if file.is_relative_to(self.pages) and file.is_file() else None

    def _index(self) -> bytes:
        """Netron's page with the model's name in it."""
        name = self.model.name
        entries = {"type": "Python", "file": f"/data/{quote(name)}", "name": name, "identifier": name}
        lines = "\n".join(f'<meta name="{key}" content="{html.escape(value)}">' for key, value in entries.items())
        page = (self.pages / "index.html").read_text(encoding="utf-8")
        return page.replace("<head>", f"<head>\n{lines}", 1).encode()


class _Answer(BaseHTTPRequestHandler):
    """Answers one request."""

    server: _Server

    def do_GET(self) -> None:
        """Send a file of the page, the model, or 404."""
        path = unquote(urlsplit(self.path).path)
        is_asked_here = self.headers.get("Host", "").partition(":")[0] in (HOST, "localhost")
        content = self.server.content(path) if is_asked_here else None
        self.send_response(HTTPStatus.NOT_FOUND if content is None else HTTPStatus.OK)
        self.send_header(
            "Content-Type", "text/html" if path == "/" else mimetypes.guess_type(path)[0] or "application/octet-stream"
        )
        self.send_header("Content-Security-Policy", _LOCAL_ONLY)
        self.send_header("Set-Cookie", "consent=1")  # nothing is collected, so nothing needs a question
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: Any) -> None:
        """Say nothing of each request."""
