"""The wheels that an image is made of: our own, built from the checkout, and the pinned ones, each checked by its hash.

Pinned wheels are fetched for the vehicle's platform, which need not be this machine's; pip compares every file with the
hashes in the requirements, also those that it finds in its own cache. Nothing is built from source but our own wheel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lab.image.target import ImageTarget
from lab.refusal import LabRefusal, LabRefused

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("abi", "hal", "signing", "client", "daemon")
_BUILD = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Wheel:
    """A wheel's file, and the name and version that it has (PyPA binary distribution format)."""

    path: Path
    name: str
    version: str

    @property
    def project(self) -> str:
        """Its normalised name (PEP 503)."""
        return re.sub(r"[-_.]+", "-", self.name).lower()


def open_wheel(path: Path) -> Wheel:
    """The wheel at `path`, by its file's name. ValueError for a name that is no wheel's."""
    parts = path.name.removesuffix(".whl").split("-")
    if not path.name.endswith(".whl") or len(parts) not in (5, 6) or not _NAME.fullmatch(parts[0]):
        raise ValueError(f"{path} is not a wheel")
    return Wheel(path, parts[0], parts[1])


def requirement(text: str, name: str) -> str:
    """The pinned entry of one distribution in the text of a requirements file, with its hashes. ValueError: none."""
    found = re.search(rf"^{re.escape(name)}==.*(?:(?<=\\)\n.*)*", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no pin of {name}; run `make lock`")
    return found[0] + "\n"


def fetch(requirements: Sequence[Path], target: ImageTarget, folder: Path) -> list[Wheel]:
    """Put the pinned wheels for `target` into `folder`, which is made; those that lie there already are checked again.

    Raises LabRefused with pip's words where one cannot be had or differs from its hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", "--require-hashes",
               "--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", target.python,
               "--abi", f"cp{target.python.replace('.', '')}", "--abi", "abi3", "--abi", "none",
               "-d", str(folder)]  # fmt: skip
    for platform in target.platforms:
        command += ["--platform", platform]
    for path in requirements:
        command += ["-r", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabRefused(
            LabRefusal.TOOL_MISSING, f"the pinned wheels for {target.arch}", expected="to find them",
            found=done.stderr.strip()[-800:], todo="see that pip reaches its registry, or fill the folder of --wheels",
        )  # fmt: skip
    return [open_wheel(path) for path in sorted(folder.glob("*.whl"))]


def build_own(source: Path, folder: Path) -> Wheel:
    """Build the wheel `fenced` from a copy of the checkout `source`, in `folder`, which must be empty; return it."""
    ignored = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(source / package, folder / package, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(source / name, folder / name)
    done = subprocess.run([sys.executable, "-c", _BUILD], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"the wheel cannot be built from {source}: {done.stderr.strip()[-800:]}")
    (built,) = (folder / "dist").glob("*.whl")
    return open_wheel(built)


def members(wheel: Wheel) -> list[str]:
    """The paths of the files in a wheel. ValueError for one that would lie outside the tree."""
    with zipfile.ZipFile(wheel.path) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    for name in names:
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts:
            raise ValueError(f"{wheel.path}: {name!r} lies outside the tree")
    return names
