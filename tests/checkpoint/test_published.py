"""Published weights, from a server on this machine."""

import hashlib
from pathlib import Path

import pytest

from rfdetr_train.checkpoint.published import HOST, PUBLISHED, Unavailable, fetch
from rfdetr_train.errors import UserError


@pytest.fixture
def host(server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A host that publishes the server's content as nano."""
    md5 = hashlib.md5(server.content, usedforsecurity=False).hexdigest()
    monkeypatch.setitem(PUBLISHED, "nano", (*PUBLISHED["nano"][:2], md5))
    return server.address("/")


def test_a_file_is_fetched_once_and_its_progress_told(server, host: str, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    path = fetch("nano", tmp_path / "cache", lambda done, total: told.append((done, total)), host)
    assert path == tmp_path / "cache/rf-detr-nano.pth"
    assert path.read_bytes() == server.content
    assert told[-1] == (len(server.content), len(server.content))
    assert fetch("nano", tmp_path / "cache", host=host) == path
    assert server.asked == [("/nano_coco/checkpoint_best_regular.pth", None)]


def test_what_is_not_the_published_file_is_refused(server, tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as refusal:
        fetch("nano", tmp_path, host=server.address("/"))
    message = str(refusal.value)
    assert "instead of md5=fb6504cce7fbdc783f7a46991f07639f" in message
    address = server.address("/nano_coco/checkpoint_best_regular.pth")
    assert f"put {address} at {tmp_path / 'rf-detr-nano.pth'}" in message
    assert not (tmp_path / "rf-detr-nano.pth").exists()


def test_a_cached_file_that_is_not_the_published_one_is_the_users_to_remove(tmp_path: Path) -> None:
    (tmp_path / "rf-detr-nano.pth").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"rf-detr-nano\.pth: is not the file of https://.*; remove it"):
        fetch("nano", tmp_path)


def test_the_table_is_the_published_one() -> None:
    assert HOST == "https://storage.googleapis.com/rfdetr/"
    assert {name: (place, md5[:8]) for name, (_, place, md5) in PUBLISHED.items()} == {
        "nano": ("nano_coco/checkpoint_best_regular.pth", "fb6504cc"),
        "small": ("small_coco/checkpoint_best_regular.pth", "fb37061c"),
        "medium": ("medium_coco/checkpoint_best_regular.pth", "7223f764"),
        "large": ("rf-detr-large-2026.pth", "5cb72153"),
        "base": ("rf-detr-base-coco.pth", "b4d3ce46"),
    }
