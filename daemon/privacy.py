"""Closes this process to the others of its user: nobody attaches to it, nor opens its descriptors and memory in /proc.

Between the hashing of a bundle and the sealing of its memory stands a moment in which whoever may open
`/proc/PID/fd/N` could still write there. A process that is not dumpable (prctl(2), PR_SET_DUMPABLE; proc(5)) has
its /proc entries owned by root and is refused to ptrace; its own threads are not affected. It leaves no core dump
either. Root, and whoever holds CAP_SYS_PTRACE, stay able to: the kernel guards nobody against them.
"""

import ctypes
import os

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4  # linux/prctl.h


def close_process() -> None:
    """Makes the process undumpable for good: nothing in it starts another program. OSError if the kernel will not."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 or prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"PR_SET_DUMPABLE: {os.strerror(number)}; others could write the daemon's memory")
