"""What would get past an audit hook because it raises no event, or one that does not say enough: wrapped or taken away.

Part of `daemon.guard`, which says when and what becomes of a try; imported before anything else, so of the interpreter
only. Processes and memory as code are forbidden from the start; after the seal also modules that are built in or frozen
(their loaders can be called by name), and files and folders that are made or entered without being opened.
"""

import _imp
import _posixsubprocess
import mmap
import os
import posix
from collections.abc import Callable
from operator import index
from types import ModuleType
from typing import Any, NoReturn

Forbid = Callable[[str], NoReturn]

_MAKES_MODULES = ("create_builtin", "init_frozen", "get_frozen_object")
_MAKES_FILES = ("mkfifo", "mknod", "chroot", "fchdir")


def take_processes_and_code(forbid_process: Forbid, forbid_code: Forbid) -> None:
    """From the start: no process by `fork_exec`, no memory mapped as code by `mmap.mmap`."""
    _replace(_posixsubprocess, "fork_exec", forbid_process)
    vars(mmap)["mmap"] = _mapping(forbid_code)


def take_modules_and_files(forbid_import: Forbid, forbid_file: Forbid) -> None:
    """After the seal, when nothing in the daemon calls these any more."""
    for name in _MAKES_MODULES:
        _replace(_imp, name, forbid_import)
    for module in (os, posix):
        for name in _MAKES_FILES:
            _replace(module, name, forbid_file)


def _replace(module: ModuleType, name: str, forbid: Forbid) -> None:
    def forbidden(*arguments: object, **named: object) -> NoReturn:
        forbid(f"{name}{str(arguments)[:120]}")

    vars(module)[name] = forbidden


def _mapping(forbid: Forbid) -> type[mmap.mmap]:
    class Mapping(mmap.mmap):
        """Mapped memory that is never code: that comes through the dynamic linker, which takes only verified code."""

        __slots__ = ()

        def __new__(cls, *arguments: Any, **named: Any) -> "Mapping":
            """As `mmap.mmap`, whose audit event does not tell the protection (its fourth argument, `prot`)."""
            if len(arguments) > 3:
                arguments = (*arguments[:3], index(arguments[3]), *arguments[4:])
            elif "prot" in named:
                named["prot"] = index(named["prot"])
            if (arguments[3] if len(arguments) > 3 else named.get("prot", 0)) & mmap.PROT_EXEC:
                forbid("memory mapped as code")
            return super().__new__(cls, *arguments, **named)

    return Mapping
