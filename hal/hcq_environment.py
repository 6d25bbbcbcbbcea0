"""What must be so before tinygrad is imported in a vehicle process: no compiler, no disk cache, no foreign settings.

tinygrad reads its environment when it is imported, and its variables load other libraries (…_PATH), send memory to
other machines (REMOTE), or write profiles. They are taken away; compiling is made an error. Two of its modules are
replaced by empty ones before they can be asked for: the data sets, which fetch from the network, and the pool of
compiler processes, which brings `multiprocessing`. A process in which tinygrad runs already (the lab's) is left alone.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from hal.error import HalCode, HalError

NODES = {"AMD": ("/dev/kfd", "KFD"), "NV": ("/dev/nvidiactl", "NVK"), "QCOM": ("/dev/kgsl-3d0", "")}
"""By backend: the device node that shows its kernel driver, and tinygrad's interface to that driver."""
_INTERFACES = {"AMD": ("KFD", "PCI", "MOCKKFD"), "NV": ("NVK", "PCI"), "QCOM": ("",)}
_RENDERERS = {"NV": ":NVCC"}  # named so that none is searched for; it compiles nothing until it is asked to
_DEV = re.compile(r"(?:(?P<interface>[A-Z]+)(?::(?P<index>\d+))?\+)?(?P<backend>[A-Z]+)(?::[A-Z]+)?(?P<more>;.*)?")
_FOREIGN = re.compile(
    r"[A-Z0-9]+_PATH|(AMD|NV|QCOM|CL|CPU|HCQ|MOCKGPU|VIZ|SQTT|PMC|PMA|CC)(_.*)?|CACHE.*|REMOTE|IOCTL|PROFILE|HCQ2|DEBUG|BEAM"
    r"|LRU|TYPED|RUN_PROCESS_REPLAY|CAPTURE_PROCESS_REPLAY|VALIDATE_WITH_CPU|EMULATED_DTYPES|WAVES_PER_SH"
)
_KEPT = ("LD_LIBRARY_PATH",)
_SETTINGS = {"ASSERT_COMPILE": "1", "CCACHE": "0", "CACHELEVEL": "0", "HCQDEV_WAIT_TIMEOUT_MS": "2000"}
_BURIED = {
    "tinygrad.nn.datasets": ("mnist", "cifar"),
    "tinygrad.engine.worker": ("get_worker_pool", "terminate_worker_pool"),
}


@dataclass(frozen=True, slots=True)
class Interface:
    """Which of tinygrad's devices is opened, and by what way. dev: what `DEV` says of it.

    own_process: tinygrad is loaded for this driver alone, and so without the libraries of its other devices.
    """

    backend: str
    dev: str
    emulated: bool
    own_process: bool = False


def prepare_environment(backend: str) -> Interface:
    """Before tinygrad is imported. backend: "AMD", "NV", "QCOM", or "" for the one whose kernel driver is there.

    `DEV` may name an interface of the table above, as tinygrad spells it. Raises HalError DRIVER_UNAVAILABLE.
    """
    interface = _choose(backend, os.environ.get("DEV", ""))
    if "tinygrad" not in sys.modules:
        for name in list(os.environ):
            if _FOREIGN.fullmatch(name) and name not in _KEPT:
                del os.environ[name]
        os.environ.update(_SETTINGS, DEV=interface.dev)
        for name, members in _BURIED.items():
            sys.modules[name] = _tombstone(name, members)
        return replace(interface, own_process=True)
    return interface


def _choose(backend: str, dev: str) -> Interface:
    found = _DEV.fullmatch(dev)
    if found is not None and found["backend"] in NODES and backend in ("", found["backend"]):
        backend, interface = found["backend"], found["interface"] or NODES[found["backend"]][1]
        if interface not in _INTERFACES[backend]:
            raise _unavailable(f"DEV names the interface {interface}", ", ".join(_INTERFACES[backend]), dev)
        emulated = interface.startswith("MOCK")
        more = (found["more"] or "") if emulated else ""  # how the emulator itself runs
        return Interface(backend, _spell(backend, interface, found["index"] or "") + more, emulated)
    if not backend:
        there = [name for name, (node, _) in NODES.items() if Path(node).exists()]
        if len(there) != 1:
            wanted = "one of the device nodes " + ", ".join(node for node, _ in NODES.values())
            what = "which GPU is meant is not certain" if there else "no GPU"
            raise _unavailable(what, wanted, ", ".join(there) or "none of them")
        backend = there[0]
    return Interface(backend, _spell(backend, NODES[backend][1], ""), emulated=False)


def _spell(backend: str, interface: str, index: str) -> str:
    prefix = f"{interface}:{index}+" if index else f"{interface}+"
    return (prefix if interface else "") + backend + _RENDERERS.get(backend, "")


def _tombstone(name: str, members: tuple[str, ...]) -> ModuleType:
    def refuse(*arguments: object, **keywords: object) -> NoReturn:
        raise HalError(HalCode.NOT_PERMITTED, f"{name} has no place in a vehicle process", todo="report this as a bug")

    module = ModuleType(name, "Taken away: see hal.hcq_environment.")
    vars(module).update(dict.fromkeys(members, refuse))
    return module


def _unavailable(what: str, expected: str, found: str) -> HalError:
    return HalError(HalCode.DRIVER_UNAVAILABLE, what, expected=expected, found=found,
                    todo="install the GPU's kernel driver, or name the device in the configuration")  # fmt: skip
