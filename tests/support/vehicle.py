"""A vehicle environment for tests: the `fenced` wheel built from this checkout, and its dependencies, nothing else.

It is a folder of packages, not a venv: the wheel is unpacked there (so RECORD is the real one) and numpy, pycapnp and
cryptography are linked from the environment that runs the tests. `python -P -S` with PYTHONPATH on that folder then
sees nothing of the lab. (`make demo` runs in a real venv, `.venv/vehicle`.)
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("abi", "hal", "signing", "client", "daemon")
_DEPENDENCIES = ("numpy", "numpy.libs", "capnp", "cryptography", "_cffi_backend*", "cffi", "pycparser")
_BUILD = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"


def build_wheel(folder: Path) -> Path:
    """Builds the wheel from a copy of the sources in `folder`, so that the checkout stays clean; returns its path."""
    source = folder / "source"
    source.mkdir()
    for package in PACKAGES:
        shutil.copytree(CHECKOUT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(CHECKOUT / name, source / name)
    done = subprocess.run([sys.executable, "-c", _BUILD], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return source / "dist" / done.stdout.splitlines()[-1]


def build_site(folder: Path) -> Path:
    """Makes the environment below `folder`; returns the folder to put on PYTHONPATH."""
    wheel = build_wheel(folder)
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    installed = Path(sysconfig.get_paths()["platlib"])
    for pattern in _DEPENDENCIES:
        for found in installed.glob(pattern):
            (site / found.name).symlink_to(found)
    return site


def program(folder: Path) -> Path:
    """Makes the environment below `folder` with its `fenced` command; returns the folder that holds `bin/fenced`."""
    site, place = build_site(folder), folder / "vehicle"
    (place / "bin").mkdir(parents=True)
    script = place / "bin" / "fenced"
    words = f"{sys.executable} -P -S -m client.cli"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={site} PYTHONDONTWRITEBYTECODE=1 exec {words} "$@"\n')
    script.chmod(0o755)
    return place


def environment(site: Path, **more: str) -> dict[str, str]:
    """The environment variables of a vehicle process."""
    return {"PATH": os.defpath, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", **more}


def command(*arguments: str) -> list[str]:
    """A Python command line that sees only the vehicle's packages and the standard library."""
    return [sys.executable, "-P", "-S", *arguments]
