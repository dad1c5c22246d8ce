"""A server of one file on this machine, as good or as bad as a test wants it."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rfdetr_train.checkpoint import download as download_module


class FileServer(http.server.ThreadingHTTPServer):
    """Serves `content` under every path but those that `Handler` names."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = bytes(range(256)) * 1000
        self.takes_ranges = True
        self.cuts: list[int] = []
        """After how many bytes of the body each of the next answers breaks off."""
        self.halfway: threading.Event | None = None
        """Waited for in the middle of the body."""
        self.headers: dict[str, str] = {}
        self.statuses: list[int] = []
        """What the next answers are instead of the file."""
        self.asked: list[tuple[str, str | None]] = []
        """Path and Range of every request."""

    def address(self, path: str = "/file.pth") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def ranges(self) -> list[str | None]:
        return [range_ for _, range_ in self.asked]


class Handler(http.server.BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        if self.server.statuses:
            self.send_error(self.server.statuses.pop(0))
        elif self.path == "/missing":
            self.send_error(404)
        elif self.path.startswith("/to:"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to:"))
            self.end_headers()
        elif self.path == "/babble":  # no status line: http.client.BadStatusLine
            self.wfile.write(b"what?\r\n\r\n")
        elif self.path == "/half-a-chunk":  # http.client.IncompleteRead
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"ffff\r\n" + self.server.content[:100])
        else:
            self.send_file(wanted)

    def send_file(self, wanted: str | None) -> None:
        server, begin = self.server, 0
        if wanted and server.takes_ranges:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if begin and begin >= len(server.content):
            self.send_error(416)
            return
        body = server.content[begin:]
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body)))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(server.content) - 1}/{len(server.content)}")
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if server.cuts:
            body = body[: server.cuts.pop(0)]
        self.wfile.write(body[: len(body) // 2])
        if server.halfway is not None:
            server.halfway.wait(20)
        with contextlib.suppress(ConnectionError):  # the one who asked may have gone
            self.wfile.write(body[len(body) // 2 :])

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(download_module, "PAUSE_S", 0.0)
    with FileServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        if running.halfway is not None:
            running.halfway.set()
        running.shutdown()
        thread.join()
