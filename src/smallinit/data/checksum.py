"""The checksum of a file."""

import hashlib
from pathlib import Path


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
