"""Published weights, from a server on this machine."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rfdetr_train.checkpoint import published
from rfdetr_train.checkpoint.published import PUBLISHED, PublishedFile, Unavailable, fetch
from rfdetr_train.errors import UserError

CONTENT = bytes(range(256)) * 5000


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path == "/babble":  # no status line: http.client.BadStatusLine
            self.wfile.write(b"what?\r\n\r\n")
            return
        if self.path == "/half-a-chunk":  # http.client.IncompleteRead
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"ffff\r\n" + CONTENT[:100])
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2] if self.path == "/cut" else CONTENT)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def publish(monkeypatch: pytest.MonkeyPatch, address: str, md5: str | None = None) -> None:
    digest = md5 or hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    monkeypatch.setitem(PUBLISHED, "nano", PublishedFile("rf-detr-nano.pth", address, digest))


def test_a_file_is_fetched_once_and_its_progress_told(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, f"{server}/whole")
    told: list[tuple[int, int | None]] = []
    path = fetch("nano", tmp_path / "cache", lambda done, total: told.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    publish(monkeypatch, f"{server}/missing")  # a second fetch does not ask the server
    assert fetch("nano", tmp_path / "cache") == path


@pytest.mark.parametrize(("page", "md5", "reason"), [
    ("cut", None, "MD5"), ("missing", None, "404"), ("whole", "0" * 32, "MD5"),
    ("babble", None, "what?"), ("half-a-chunk", None, "IncompleteRead"),
])  # fmt: skip
def test_what_is_not_the_file_is_refused_and_leaves_nothing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, md5: str | None, reason: str
) -> None:
    publish(monkeypatch, f"{server}/{page}", md5)
    with pytest.raises(Unavailable) as refusal:
        fetch("nano", tmp_path)
    message = str(refusal.value)
    assert reason in message
    assert f"put {server}/{page} at {tmp_path / 'rf-detr-nano.pth'}" in message
    assert list(tmp_path.iterdir()) == []


def test_no_network_names_the_address_and_where_to_put_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "http://127.0.0.1:9/closed")
    monkeypatch.setattr(published, "TIMEOUT_S", 0.5)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9/closed.*by hand.*rf-detr-nano\.pth"):
        fetch("nano", tmp_path)


def test_a_cached_file_that_is_not_the_published_one_is_the_users_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "http://127.0.0.1:9/closed")
    (tmp_path / "rf-detr-nano.pth").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"rf-detr-nano\.pth: is not the published file.*remove it"):
        fetch("nano", tmp_path)


def test_the_table_is_the_published_one() -> None:
    assert PUBLISHED["nano"].md5 == "fb6504cce7fbdc783f7a46991f07639f"
    assert PUBLISHED["large"].address == "https://storage.googleapis.com/rfdetr/rf-detr-large-2026.pth"
    assert all(file.address.startswith("https://") for file in PUBLISHED.values())
