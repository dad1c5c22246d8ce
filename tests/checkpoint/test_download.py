"""Files from addresses: whole, the right ones, brought once, whatever servers, networks and users do meanwhile.

The folders that cannot be written lie under a file, or the lock is taken away: root may write into any other.
"""

import hashlib
import logging
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rfdetr_train.checkpoint import download as download_module
from rfdetr_train.checkpoint.download import Unavailable, download, fetch_address
from rfdetr_train.errors import UserError

SCRIPT = """
import logging, sys
from pathlib import Path
from rfdetr_train.checkpoint.download import download
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
download(sys.argv[1], Path(sys.argv[2]), "", lambda done, total: print(done, flush=True))
assert "torch" not in sys.modules
"""


def md5(content: bytes) -> str:
    return f"md5={hashlib.md5(content, usedforsecurity=False).hexdigest()}"


def sha256(content: bytes) -> str:
    return f"sha256={hashlib.sha256(content).hexdigest()}"


def names(folder: Path) -> set[str]:
    """What lies in a folder besides locks."""
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def a_process(address: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, address, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def broken_off(server, path: Path, after: int) -> None:
    """Download all but the end: every try of one call is cut, the last one where `after` bytes are there."""
    server.cuts = [after, 0, 0]
    with pytest.raises(Unavailable, match=f"cut off after {after} of {len(server.content)} bytes"):
        download(server.address(), path, md5(server.content))
    assert path.with_name(f"{path.name}.part").read_bytes() == server.content[:after]
    server.asked.clear()


@pytest.mark.parametrize("checksum", [md5, sha256, lambda content: ""])
def test_a_whole_file_and_its_progress(server, tmp_path: Path, checksum) -> None:
    path, told = tmp_path / "new/cache/x.pth", []
    download(server.address(), path, checksum(server.content), lambda done, total: told.append((done, total)))
    assert path.read_bytes() == server.content
    assert told[-1] == (len(server.content), len(server.content))
    assert told == sorted(told)
    assert names(path.parent) == {"x.pth"}
    (neighbour := tmp_path / "neighbour").touch()
    assert path.stat().st_mode == neighbour.stat().st_mode


def test_a_file_that_is_there_is_used_without_a_server_or_a_lock(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a folder that can only be read; without `FileLock` every attempt to lock is an error."""
    path = tmp_path / "x.pth"
    path.write_bytes(server.content)
    monkeypatch.setattr(download_module, "FileLock", None)
    with caplog.at_level(logging.INFO):
        download(server.address(), path, md5(server.content))
    assert f"is in the cache: {path}" in caplog.text
    assert server.asked == []


def test_another_file_under_the_name_is_the_users_to_remove(server, tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(b"else")
    with pytest.raises(UserError, match=rf"x\.pth: is not the file of {server.address()}: md5=.* instead.*remove it"):
        download(server.address(), tmp_path / "x.pth", md5(server.content))
    assert (tmp_path / "x.pth").read_bytes() == b"else"


def test_what_broke_off_is_gone_on_from_within_a_call(server, tmp_path: Path) -> None:
    server.cuts = [1000, 500]
    download(server.address(), tmp_path / "x.pth", md5(server.content))
    assert server.ranges() == [None, "bytes=1000-", "bytes=1500-"]
    assert (tmp_path / "x.pth").read_bytes() == server.content


def test_and_by_the_next_call(server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.pth"
    broken_off(server, path, 1000)
    assert not path.exists()
    assert (tmp_path / "x.pth.part").stat().st_mode & 0o777 == 0o600  # nobody else's until it is whole
    told: list[int] = []
    with caplog.at_level(logging.INFO):
        download(server.address(), path, md5(server.content), lambda done, total: told.append(done))
    assert server.ranges() == ["bytes=1000-"]
    assert told[0] > 1000
    assert "going on after 1000 bytes" in caplog.text
    assert path.read_bytes() == server.content
    assert names(tmp_path) == {"x.pth"}


def test_a_part_that_lacks_nothing_but_its_name(server, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    broken_off(server, path, 1000)
    (tmp_path / "x.pth.part").write_bytes(server.content)
    download(server.address(), path, md5(server.content))
    assert path.read_bytes() == server.content


@pytest.mark.parametrize(("change", "ranges"), [
    ({"takes_ranges": False}, ["bytes=1000-"]),
    ({"content": b"new"}, ["bytes=1000-", None]),  # 416
])  # fmt: skip
def test_what_cannot_be_gone_on_from_begins_afresh(server, tmp_path: Path, change: dict, ranges: list) -> None:
    broken_off(server, tmp_path / "x.pth", 1000)
    vars(server).update(change)
    download(server.address(), tmp_path / "x.pth", md5(server.content))
    assert server.ranges() == ranges
    assert (tmp_path / "x.pth").read_bytes() == server.content
    assert names(tmp_path) == {"x.pth"}


def test_a_part_of_another_file_is_found_out_and_removed(server, tmp_path: Path) -> None:
    broken_off(server, tmp_path / "x.pth", 1000)
    server.content = b"new" * 5000
    with pytest.raises(Unavailable, match="another file"):
        download(server.address(), tmp_path / "x.pth", md5(server.content))
    assert names(tmp_path) == set()
    download(server.address(), tmp_path / "x.pth", md5(server.content))
    assert server.ranges() == ["bytes=1000-", None]
    assert (tmp_path / "x.pth").read_bytes() == server.content


def test_without_a_checksum_nothing_tells_that_the_file_is_the_same(server, tmp_path: Path) -> None:
    (tmp_path / "x.pth.part").write_bytes(b"else" * 100)
    server.cuts = [1000]
    download(server.address(), tmp_path / "x.pth", "")
    assert server.ranges() == [None, None]
    assert (tmp_path / "x.pth").read_bytes() == server.content


def test_another_checksum_leaves_nothing_and_the_next_call_begins_afresh(server, tmp_path: Path) -> None:
    right, server.content = server.content, server.content[:-1] + b"x"
    with pytest.raises(Unavailable, match=f"another file: {md5(server.content)} instead of {md5(right)}"):
        download(server.address(), tmp_path / "x.pth", md5(right))
    assert names(tmp_path) == set()
    server.content = right
    download(server.address(), tmp_path / "x.pth", md5(right))
    assert server.ranges() == [None, None]


@pytest.mark.parametrize(("path", "reason", "requests"), [
    ("/missing", "HTTP Error 404", 1), ("/babble", "what?", 3), ("/half-a-chunk", "IncompleteRead", 3),
    ("/to:http://example.org/x.pth", "http://example.org/x.pth is no https address", 1),
    ("/to:ftp://example.org/x.pth", "ftp://example.org/x.pth is no https address", 1),
    ("/to:http://127.0.0.1:80@example.org/x", "http://127.0.0.1:80@example.org/x is no https address", 1),
    ("/to:file:///etc/hostname", "not allowed", 1),
])  # fmt: skip
def test_refusals_name_the_address_the_reason_and_the_place(
    server, tmp_path: Path, path: str, reason: str, requests: int
) -> None:
    with pytest.raises(Unavailable) as refusal:
        download(server.address(path), tmp_path / "x.pth", "")
    message = str(refusal.value)
    assert message.startswith(f"{server.address(path)} cannot be fetched: ")
    assert reason in message
    assert f"put {server.address(path)} at {tmp_path / 'x.pth'}" in message
    assert not (tmp_path / "x.pth").exists()
    assert len(server.asked) == requests


@pytest.mark.parametrize("address", ["http://example.org/x.pth", "file:///etc/hostname", "data:,x", "x"])
def test_only_secure_addresses_are_asked(tmp_path: Path, address: str) -> None:
    with pytest.raises(Unavailable, match=r"no https address|unknown url type"):
        download(address, tmp_path / "x.pth", "")


def test_redirections_on_this_machine_are_followed_and_a_resumed_one_too(server, tmp_path: Path) -> None:
    broken_off(server, tmp_path / "x.pth", 1000)
    download(server.address("/to:/file.pth"), tmp_path / "x.pth", md5(server.content))
    assert server.asked == [("/to:/file.pth", "bytes=1000-"), ("/file.pth", "bytes=1000-")]


def test_a_server_that_is_busy_is_asked_again(server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server.statuses = [503, 429]
    download(server.address(), tmp_path / "x.pth", md5(server.content))
    assert caplog.text.count("trying again") == 2


def test_a_web_page_is_no_file(server, tmp_path: Path) -> None:
    server.headers = {"Content-Type": "text/html; charset=utf-8"}
    with pytest.raises(Unavailable, match="web page"):
        download(server.address(), tmp_path / "x.pth", "")
    assert names(tmp_path) == set()


def test_a_stalled_server_is_an_error_not_a_hang(server, tmp_path: Path) -> None:
    server.halfway, started = threading.Event(), time.monotonic()
    with pytest.raises(Unavailable, match="timed out"):
        download(server.address(), tmp_path / "x.pth", md5(server.content), timeout_s=0.2)
    assert time.monotonic() - started < 5  # three times 0.2 s, on a busy machine
    half = len(server.content) // 2
    assert server.ranges() == [None, f"bytes={half}-", f"bytes={half + half // 2}-"]


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "PAUSE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/x.pth"
    with pytest.raises(Unavailable, match=rf"{address} cannot be fetched.*refused.*by hand.*x\.pth"):
        download(address, tmp_path / "x.pth", "")


def test_of_two_processes_one_downloads_and_the_other_waits(server, tmp_path: Path) -> None:
    server.halfway = threading.Event()
    with a_process(server.address(), tmp_path / "x.pth") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == f"downloading {server.address()} to {tmp_path / 'x.pth'}\n"
        with a_process(server.address(), tmp_path / "x.pth") as second:
            assert second.stdout is not None
            assert "another process is downloading it; waiting" in second.stdout.readline()
            server.halfway.set()
            assert "is in the cache" in second.stdout.read()
        first.stdout.read()
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(server.asked) == 1
    assert (tmp_path / "x.pth").read_bytes() == server.content


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_process_leaves_a_part_to_go_on_from_and_no_lock(server, tmp_path: Path, number: int) -> None:
    server.halfway = threading.Event()
    half = len(server.content) // 2
    with a_process(server.address(), tmp_path / "x.pth") as process:
        assert process.stdout is not None
        process.stdout.readline()  # downloading ...
        while int(process.stdout.readline()) < half:
            pass
        process.send_signal(number)
    assert process.returncode == -number
    assert names(tmp_path) == {"x.pth.part"}
    done = (tmp_path / "x.pth.part").stat().st_size
    assert done == half if number == signal.SIGINT else 0 < done <= half
    server.halfway.set()
    download(server.address(), tmp_path / "x.pth", md5(server.content))
    assert server.ranges() == [None, f"bytes={done}-"]


def test_a_folder_that_cannot_be_written_is_named_with_its_key(server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file/cache"
    with pytest.raises(UserError, match=f"weights_dir={folder}: cannot be written .*give another folder"):
        download(server.address(), folder / "x.pth", "")


def test_a_full_disk_is_refused_before_anything_is_written(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2_000_000))
    server.content = bytes(3_000_000)
    with pytest.raises(UserError, match=r"weights_dir=.*: x\.pth wants 3 MB, 2 MB are free; make room"):
        download(server.address(), tmp_path / "x.pth", "")
    assert not (tmp_path / "x.pth.part").exists()


class TestAddresses:
    def test_equal_last_parts_do_not_collide_and_a_copy_is_reused(
        self, server, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = fetch_address(server.address("/a/x.pth"), tmp_path, print)
        first_content, server.content = server.content, b"other"
        second = fetch_address(server.address("/b/x.pth"), tmp_path, print)
        third = fetch_address(server.address("/b/x.pth?version=2"), tmp_path, print)
        assert len({first, second, third}) == 3
        assert all(path.name.endswith("-x.pth") for path in (first, second, third))
        with caplog.at_level(logging.INFO):
            assert fetch_address(server.address("/a/x.pth"), tmp_path, print) == first
        assert f"is in the cache: {first}" in caplog.text
        assert first.read_bytes() == first_content
        assert len(server.asked) == 3

    @pytest.mark.parametrize("path", ["/", "/..", "/%2e%2e%2fx", "/" + "y" * 300, "/a b".replace(" ", "%20")])
    def test_every_name_stays_in_the_folder(self, server, tmp_path: Path, path: str) -> None:
        fetched = fetch_address(server.address(path), tmp_path, print)
        assert fetched.resolve().parent == tmp_path.resolve()
        assert fetched.is_file()

    def test_a_checksum_is_checked_each_time_and_not_sent(
        self, server, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for checksum in (md5(server.content), sha256(server.content), sha256(server.content).upper()):
            path = fetch_address(f"{server.address()}#{checksum}", tmp_path, print)
        assert server.asked == [("/file.pth", None)]
        assert "NOT VERIFIED" not in caplog.text
        with pytest.raises(UserError, match=f"{path}: is not the file of {server.address()}"):
            fetch_address(f"{server.address()}#md5={'0' * 32}", tmp_path, print)

    def test_without_one_the_log_says_so_and_gives_it(
        self, server, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        fetch_address(server.address(), tmp_path, print)
        assert "NOT VERIFIED" in caplog.text
        assert f"weights='{server.address()}#{sha256(server.content)}'" in caplog.text
