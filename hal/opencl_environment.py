"""What must be so before the OpenCL loader is opened: no foreign settings, and a private folder for program binaries.

Environment variables make the loader and PoCL load other libraries or change their compiler; they are taken away. PoCL
unpacks program binaries to files before it maps them, and takes files that it finds for its own: it gets a folder that
is new, empty and only this process's, so nothing old or foreign can stand in for signed code.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

from hal.error import HalCode, HalError

FOREIGN_VARIABLES = ("OCL_ICD_", "OPENCL_", "POCL_", "CL_CONFIG_")
_KEPT_VARIABLES = ("POCL_CACHE_DIR", "POCL_MAX_PTHREAD_COUNT", "POCL_AFFINITY")
_SHARED_MEMORY_FOLDER = Path("/dev/shm")
_FOLDER_PREFIX = "fenced-opencl-"


@cache
def prepare_environment() -> Path:
    """Once, before the OpenCL loader is opened: a private folder for program binaries, and no foreign settings.

    The folder is made in POCL_CACHE_DIR, in systemd's RUNTIME_DIRECTORY or in /dev/shm, and removed at exit. It is
    always new: PoCL takes files that it finds there for its own, so an old one could stand in for signed code.
    """
    base = _base_folder()
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-", dir=base))
    for name in list(os.environ):
        if name.startswith(FOREIGN_VARIABLES) and name not in _KEPT_VARIABLES:
            del os.environ[name]
    os.environ["POCL_CACHE_DIR"] = str(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _base_folder() -> Path:
    given = os.environ.get("POCL_CACHE_DIR") or os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    base = Path(given) if given else _SHARED_MEMORY_FOLDER
    try:
        status = base.stat()
    except OSError as error:
        raise HalError(
            HalCode.NOT_PERMITTED, f"no folder {base} for program binaries", found=error.strerror or "",
            todo="give the service a RuntimeDirectory, or set POCL_CACHE_DIR to a folder on tmpfs",
        ) from error  # fmt: skip
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(status.st_mode) or (others and not status.st_mode & stat.S_ISVTX):
        raise HalError(HalCode.NOT_PERMITTED, f"{base} is no place for program binaries",
                       expected="a folder that others cannot write, or a sticky one",
                       found=stat.filemode(status.st_mode), todo="chmod it")  # fmt: skip
    if os.statvfs(base).f_flag & os.ST_NOEXEC:  # PoCL ends the process when it cannot map what it unpacked
        raise HalError(HalCode.NOT_PERMITTED, f"{base} is no place for program binaries",
                       expected="a folder that code may be mapped from", found="a noexec mount",
                       todo="name another in POCL_CACHE_DIR, or add it to the service's ExecPaths")  # fmt: skip
    return base


def _sweep(base: Path) -> None:
    """Remove what a killed process of this user left."""
    for entry in base.glob(f"{_FOLDER_PREFIX}*"):
        owner = entry.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and entry.lstat().st_uid == os.getuid():
            shutil.rmtree(entry, ignore_errors=True)
