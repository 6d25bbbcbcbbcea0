"""`fenced-lab image`: build the tree, sign it, check it as a vehicle would, pack it as a .deb."""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daemon.image import verify_tree
from lab.image.deb import write_deb
from lab.image.sign import sign_image
from lab.image.target import DEB_ARCHITECTURES, ImageTarget
from lab.json_text import json_text
from lab.sign.cli import read_passphrase
from lab.sign.root import read_root
from lab.sign.signer import open_signer

if TYPE_CHECKING:
    from lab.image.tree import ImageReport


def add_commands(commands: Any) -> None:
    """Add this room's commands to the command line's subparsers."""
    image = commands.add_parser("image", help="the vehicle's image: build, sign, check, deb")
    steps = image.add_subparsers(required=True, metavar="STEP")
    build = steps.add_parser("build", help="make the unsigned tree for /opt/fenced from pinned wheels")
    build.add_argument("tree", type=Path, help="folder, made anew")
    build.add_argument("--arch", choices=DEB_ARCHITECTURES, default=platform.machine())
    build.add_argument("--accelerator", action="store_true", help="with the drivers' part of tinygrad (opencl, hcq)")
    build.add_argument("--wheels", type=Path, help="where pinned wheels are kept; default: build/image/ARCH")
    build.set_defaults(command=_build)
    sign = steps.add_parser("sign", help="add a signature of the role release")
    sign.add_argument("tree", type=Path)
    sign.add_argument("--key", type=Path, required=True)
    sign.add_argument("--root", type=Path, help="refuse a key that this root does not know in the role")
    sign.add_argument("--passphrase-file", type=Path, help="its first line unlocks the private key")
    sign.set_defaults(command=_sign)
    check = steps.add_parser("check", help="would a vehicle with this root start from the tree?")
    check.add_argument("tree", type=Path)
    check.add_argument("--root", type=Path, required=True)
    check.set_defaults(command=_check)
    deb = steps.add_parser("deb", help="pack the tree and the units as a Debian package")
    deb.add_argument("tree", type=Path)
    deb.add_argument("-o", "--output", type=Path, help="default: TREE.deb")
    deb.set_defaults(command=_deb)


def _build(arguments: argparse.Namespace) -> int:
    from lab.image.tree import build_image  # noqa: PLC0415 (brings CycloneDX in, which no other command needs)

    target = ImageTarget(arguments.arch)
    wheels: Path = arguments.wheels or Path("build/image") / target.arch
    arguments.tree.parent.mkdir(parents=True, exist_ok=True)
    report = build_image(arguments.tree, target, wheels, accelerator=arguments.accelerator)
    print(json_text(_tree_of(report)) if arguments.json else _text_of(report))
    return 0


def _tree_of(report: ImageReport) -> dict[str, object]:
    return {
        "tree": str(report.tree),
        "version": report.version,
        "arch": report.target.arch,
        "python": report.target.python,
        "files": report.files,
        "size_bytes": report.size_bytes,
        "wheels": [{"name": name, "version": version, "files": files} for name, version, files in report.wheels],
    }


def _text_of(report: ImageReport) -> str:
    target = report.target
    lines = [f"{report.tree}: fenced {report.version} for {target.arch}, Python {target.python}; not signed yet"]
    lines += [f"  {name:14}{version:10}{files:5} files" for name, version, files in report.wheels]
    lines.append(f"  {report.files} files, {report.size_bytes / 1e6:.1f} MB")
    return "\n".join(lines)


def _sign(arguments: argparse.Namespace) -> int:
    root = read_root(arguments.root) if arguments.root else None
    key = sign_image(arguments.tree, open_signer(arguments.key, read_passphrase(arguments.passphrase_file)), root=root)
    print(f"{arguments.tree}: signed as release by {key.keyid}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    image = verify_tree(str(arguments.tree), read_root(arguments.root), int(time.time()))
    print(f"{arguments.tree}: fenced {image.version} for {image.arch}, Python {image.python}: as it was signed")
    return 0


def _deb(arguments: argparse.Namespace) -> int:
    tree: Path = arguments.tree
    output: Path = arguments.output or tree.with_name(f"{tree.name}.deb")
    size_bytes = write_deb(tree, output)
    print(f"{output}: {size_bytes / 1e6:.1f} MB")
    return 0
