"""The tree for /opt/fenced: launcher, packages, byte code, units, bill of materials, list of files. Relocatable.

    bin/fenced      the launcher: the system's interpreter, isolated, with `lib` as its only folder of packages
    lib/            what the rules of `prune` keep of each wheel, with byte code
    share/systemd/  the units and an example configuration; share/sbom.json
    files.sha256    every file with its digest; image.json: the envelope to be signed by the role `release`

Two builds from the same checkout and pins are equal, byte for byte, on any machine with the same minor Python.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.image import hash_file, tree_files
from lab.image.bytecode import compile_tree
from lab.image.prune import select
from lab.image.sbom import bill_of_materials
from lab.image.target import ImageTarget
from lab.image.wheels import CHECKOUT, Wheel, build_own, fetch, members, requirement
from lab.refusal import LabRefusal, LabRefused
from signing.envelope import BUNDLE_PAYLOAD_TYPE, Envelope
from signing.image import ENVELOPE_NAME, LIST_NAME, ImageStatement, encode, encode_list

FILE_LIMIT = 900
SIZE_LIMIT_BYTES = 100 << 20
ACCELERATOR_FILE_LIMIT = 1600
ACCELERATOR_SIZE_LIMIT_BYTES = 160 << 20
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}  # elf.h: EM_X86_64, EM_AARCH64
_LAUNCHER = '''#!{interpreter} -IBS
"""`fenced` from this tree: isolated from the environment, the user's folder and the system's own packages."""

import os
import sys

if sys.version_info[:2] != ({version}):
    sys.exit("fenced: this image is for Python {python}, not " + sys.version.split()[0] + "; install python{python}")
sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "lib"))

from client.cli import main  # noqa: E402

sys.exit(main())
'''


@dataclass(frozen=True)
class ImageReport:
    """What was built. `size_bytes` is the sum of the files' sizes; `wheels` are names and versions with kept files."""

    tree: Path
    version: str
    target: ImageTarget
    files: int
    size_bytes: int
    wheels: tuple[tuple[str, str, int], ...]


def build_image(
    tree: Path, target: ImageTarget, wheels_folder: Path, *, accelerator: bool = False, source: Path = CHECKOUT
) -> ImageReport:
    """Build the unsigned image into `tree`, which must not exist; pinned wheels are kept in `wheels_folder`.

    `accelerator`: with the part of tinygrad that drivers other than the CPU's need. Raises LabRefused, ValueError and
    OSError; then no `tree` is left.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if target.python != here:
        raise LabRefused(
            LabRefusal.TOOL_MISSING, "the image's byte code", expected=f"Python {target.python}, which writes it",
            found=f"Python {here}", todo="run fenced-lab with that version",
        )  # fmt: skip
    if tree.exists():
        raise FileExistsError(errno.EEXIST, "File exists", str(tree))
    with tempfile.TemporaryDirectory(prefix=f".{tree.name}.", dir=tree.parent) as temporary:
        work = Path(temporary)
        requirements = _requirements(source, work, accelerator=accelerator)
        pinned = fetch(requirements, target, wheels_folder)
        own = build_own(source, _made(work / "own"))
        made = _made(work / "tree")
        kept = [(wheel, _unpack(wheel, made / "lib")) for wheel in (own, *_wanted(pinned, requirements))]
        _check_machines(made / "lib", target)
        compile_tree(made / "lib", shown_as="lib")
        _write_rest(made, target, own.version, source, [one for one in kept if one[1]])
        _set_modes(made)
        report = _report(tree, made, own.version, target, kept)
        _require_bounds(report, accelerator=accelerator)
        os.rename(made, tree)
    return report


def _requirements(source: Path, work: Path, *, accelerator: bool) -> list[Path]:
    paths = [source / "requirements.txt"]
    if accelerator:
        path = work / "accelerator.txt"
        path.write_text(requirement((source / "lab" / "requirements.txt").read_text(), "tinygrad"))
        paths.append(path)
    return paths


def _wanted(pinned: Sequence[Wheel], requirements: Sequence[Path]) -> list[Wheel]:
    """Of the wheels in the folder those that the requirements pin, by name; others may lie there."""
    text = "\n".join(path.read_text() for path in requirements).lower()
    return sorted((one for one in pinned if f"{one.project}=={one.version} " in text), key=lambda one: one.project)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _unpack(wheel: Wheel, folder: Path) -> int:
    """Write what is kept of a wheel below `folder`; returns how many files."""
    kept = select(wheel.project, members(wheel))
    with zipfile.ZipFile(wheel.path) as archive:
        for name in kept:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as file, path.open("xb") as copy:
                shutil.copyfileobj(file, copy)
    return len(kept)


def _check_machines(folder: Path, target: ImageTarget) -> None:
    """Raise ValueError for a shared object of another architecture."""
    for path in sorted(folder.rglob("*.so*")):
        with path.open("rb") as file:
            head = file.read(20)
        machine = int.from_bytes(head[18:20], "little")
        if head[:4] != b"\x7fELF" or machine != _ELF_MACHINES[target.arch]:
            raise ValueError(f"{path.relative_to(folder)} is not for {target.arch} (ELF machine {machine})")


def _write_rest(made: Path, target: ImageTarget, version: str, source: Path, kept: list[tuple[Wheel, int]]) -> None:
    """Launcher, units and bill of materials; then the list of all files, and the envelope over it."""
    major, minor = target.python.split(".")
    text = _LAUNCHER.format(interpreter=target.interpreter, python=target.python, version=f"{major}, {minor}")
    _made(made / "bin").joinpath("fenced").write_text(text)
    share = _made(made / "share")
    # the exporter is the lab's, and no part of a vehicle's image
    shutil.copytree(source / "systemd", share / "systemd", ignore=shutil.ignore_patterns("fenced-exporter.*"))
    shutil.copy(source / "LICENSE", share / "LICENSE")
    (share / "sbom.json").write_bytes(bill_of_materials(version, target, kept))
    digests = {path: hash_file(str(made / path)) for path in tree_files(str(made))}
    listed = encode_list(digests)
    (made / LIST_NAME).write_bytes(listed)
    digest = hash_file(str(made / LIST_NAME))
    payload = encode(ImageStatement(version, target.arch, target.python, digest))
    (made / ENVELOPE_NAME).write_bytes(Envelope(BUNDLE_PAYLOAD_TYPE, payload, ()).encode())


def _set_modes(made: Path) -> None:
    for path in made.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    made.chmod(0o755)


def _report(tree: Path, made: Path, version: str, target: ImageTarget, kept: list[tuple[Wheel, int]]) -> ImageReport:
    sizes = [path.stat().st_size for path in made.rglob("*") if path.is_file()]
    wheels = tuple((wheel.project, wheel.version, count) for wheel, count in kept if count)
    return ImageReport(tree, version, target, len(sizes), sum(sizes), wheels)


def _require_bounds(report: ImageReport, *, accelerator: bool) -> None:
    """An image that grows unseen is a defect: raise ValueError above the limits."""
    files = ACCELERATOR_FILE_LIMIT if accelerator else FILE_LIMIT
    size_bytes = ACCELERATOR_SIZE_LIMIT_BYTES if accelerator else SIZE_LIMIT_BYTES
    if report.files > files or report.size_bytes > size_bytes:
        raise ValueError(
            f"the image has {report.files} files of {report.size_bytes} bytes, at most {files} of {size_bytes}: "
            "leave out what the vehicle does not need (lab/image/prune.py), or raise the limit knowingly"
        )
