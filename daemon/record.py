"""Compares this installation with its wheel's RECORD: a file changed, removed or added makes the process dirty.

RECORD (PyPA "Recording installed projects") lists every file of the wheel with its SHA-256 in unpadded URL-safe
base64. Compiled `__pycache__` files are not listed with digests and are not looked at; the image is read-only.
"""

import csv
import hashlib
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterator

from daemon.guard import DirtyProcess

PACKAGES = ("abi", "hal", "signing", "client", "daemon")


def assert_as_installed(site: str | None = None) -> int:
    """Returns how many files were compared; raises DirtyProcess when one differs, is missing or was added.

    `site` is the folder that holds the packages; by default the one this module was imported from.
    """
    root = site or os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    recorded = _read_record(root)
    for path, digest in recorded.items():
        try:
            with open(os.path.join(root, path), "rb") as file:
                found = urlsafe_b64encode(hashlib.sha256(file.read()).digest()).rstrip(b"=").decode()
        except OSError as error:
            raise DirtyProcess(
                f"{path}: {error.strerror}, but the wheel's RECORD lists it; install the wheel again"
            ) from error
        if found != digest:
            raise DirtyProcess(f"{path} differs from the wheel's RECORD; install the wheel again")
    for path in _present(root):
        if path not in recorded:
            raise DirtyProcess(f"{path} is not of the wheel; install the wheel into an empty environment")
    return len(recorded)


def _read_record(root: str) -> dict[str, str]:
    """Path to digest of our packages' files, from `fenced-*.dist-info/RECORD`."""
    found = [name for name in os.listdir(root) if name.startswith("fenced-") and name.endswith(".dist-info")]
    if len(found) != 1:
        raise DirtyProcess(
            f"{root} holds {len(found)} installed fenced wheels, expected 1; install the wheel, not the sources"
        )
    recorded = {}
    with open(os.path.join(root, found[0], "RECORD"), encoding="utf-8", newline="") as file:
        for path, digest, *_ in csv.reader(file):
            if path.split("/")[0] in PACKAGES and digest.startswith("sha256="):
                recorded[path] = digest.removeprefix("sha256=")
    missing = [package for package in PACKAGES if f"{package}/__init__.py" not in recorded]
    if missing:
        raise DirtyProcess(
            f"the wheel's RECORD lists nothing of {', '.join(missing)}; install the wheel, not the sources"
        )
    return recorded


def _present(root: str) -> Iterator[str]:
    for package in PACKAGES:
        for folder, folders, files in os.walk(os.path.join(root, package)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in files:
                yield os.path.relpath(os.path.join(folder, name), root)
