"""What the daemon asks of the kernel so that frames do not wait: cores, a priority, resident memory, a memory limit.

Each is asked for once, before anything else begins, and a right that is missing is a refusal, never a warning: without
it deadlines would be missed only where the machine is loaded, where nobody looks any more. Threads that load bundles
inherit the cores and not the priority (SCHED_RESET_ON_FORK), so that verifying a release never delays a frame; the
device's workers have their own settings (`device.fifo_priority`, `device.pin_cores`).
"""

from __future__ import annotations

import ctypes
import os
import resource
from enum import Enum

from daemon.config import Realtime

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4  # sys/mman.h
_CAP_IPC_LOCK = 14  # linux/capability.h
_DROP_IN = "copy fenced-realtime.conf to /etc/systemd/system/fenced.service.d"


class RealtimeCode(Enum):
    """Which right is missing."""

    CORES = "realtime-cores"
    PRIORITY = "realtime-priority"
    LOCKED_MEMORY = "realtime-locked-memory"
    MEMORY_LIMIT = "realtime-memory-limit"


class RealtimeRefused(Exception):
    """The kernel does not give what `[realtime]` asks for."""

    def __init__(self, code: RealtimeCode, key: str, *, expected: str, found: str, todo: str) -> None:
        super().__init__(f"{code.value}: realtime.{key}: expected {expected}, found {found}; {todo}")
        self.code = code
        self.key = key
        self.expected = expected
        self.found = found
        self.todo = todo


def apply(wanted: Realtime) -> None:
    """Asks for everything on the calling thread, which is the one that serves. Raises RealtimeRefused."""
    if wanted.memory_limit_bytes:
        _limit_memory(wanted.memory_limit_bytes)
    if wanted.cores:
        _use_cores(frozenset(wanted.cores))
    if wanted.fifo_priority:
        _take_priority(wanted.fifo_priority)
    if wanted.lock_memory:
        _lock_memory()


def _limit_memory(size_bytes: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))
    except (OSError, ValueError) as error:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        raise RealtimeRefused(
            RealtimeCode.MEMORY_LIMIT, "memory_limit_bytes", expected=f"at most the hard limit, {hard} bytes",
            found=f"{size_bytes} ({error})", todo=f"lower it, raise LimitDATA, or {_DROP_IN}",
        ) from error  # fmt: skip


def _use_cores(cores: frozenset[int]) -> None:
    usable = os.sched_getaffinity(0)
    if not cores <= usable:
        raise RealtimeRefused(
            RealtimeCode.CORES, "cores", expected=f"cores of {sorted(usable)}, which the process may use",
            found=str(sorted(cores)), todo="name others, or widen CPUAffinity or the cpuset of the service",
        )  # fmt: skip
    try:
        for task in os.listdir("/proc/self/task"):  # libraries have begun threads of their own
            os.sched_setaffinity(int(task), cores)
    except OSError as error:
        raise RealtimeRefused(
            RealtimeCode.CORES, "cores", expected="the right to choose cores", found=str(error),
            todo=f"{_DROP_IN}, or leave it to CPUAffinity",
        ) from error  # fmt: skip


def _take_priority(priority: int) -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError as error:
        soft, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
        raise RealtimeRefused(
            RealtimeCode.PRIORITY, "fifo_priority", expected=f"the right to SCHED_FIFO {priority}",
            found=f"{error}; RLIMIT_RTPRIO {soft}", todo=f"{_DROP_IN} (LimitRTPRIO), or lower it",
        ) from error  # fmt: skip


def _lock_memory() -> None:
    """mlockall(2), also for what is mapped later: under a limit a camera's memory or a release would fail one day.

    Pages stay from when they are first used; what never is, such as the far end of each thread's stack, takes nothing.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = f"RLIMIT_MEMLOCK {soft}"
    if soft == resource.RLIM_INFINITY or _has_capability(_CAP_IPC_LOCK):
        libc = ctypes.CDLL(None, use_errno=True)
        if not libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT):
            return
        found = os.strerror(ctypes.get_errno())
    raise RealtimeRefused(
        RealtimeCode.LOCKED_MEMORY, "lock_memory", expected="the right to lock all memory, without a limit",
        found=found, todo=f"{_DROP_IN} (LimitMEMLOCK=infinity)",
    )  # fmt: skip


def _has_capability(number: int) -> bool:
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False
