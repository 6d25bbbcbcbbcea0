"""Whether a bundle fits beside what is loaded already: asked before it is read, and before its code is mapped.

What serves, what served before it and a shadow all stay loaded, so a candidate needs room of its own. The room is the
least of what the configuration leaves, what the machine has (MemAvailable), what the process may have (RLIMIT_AS,
RLIMIT_DATA) and what its cgroups may have (memory.max, or version 1's limit; page cache that can be dropped counts as
free). The files are opened once: the seal of the guard lets no other be opened later. What a kernel or a sandbox does
not show is not asked.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from abi.graph import BufferKind, Graph
from daemon.refusal import ModelCode, ModelRefused, Step
from daemon.ring import place_views

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED_BYTES = 1 << 60  # cgroup version 1 says 2^63 rounded down to a page
_OUTPUT_SETS = 2
_LIMITS = ((resource.RLIMIT_AS, "RLIMIT_AS", 0), (resource.RLIMIT_DATA, "RLIMIT_DATA", 5))  # with the field of statm
_CGROUPS = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


class Room(NamedTuple):
    """Bytes that are free, and whose limit that is."""

    bytes: int
    by: str


@dataclass(frozen=True)
class Need:
    """What a loaded bundle takes beside its file, in bytes."""

    arena: int
    state: int
    weights: int  # 0 where the device works on the sealed file's own pages
    code: int
    bound: int  # frames, aux inputs and outputs of the self-test; outputs and aux inputs of the pipeline
    ring: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.arena + self.state + self.weights + self.code + self.bound + self.ring

    def __str__(self) -> str:
        parts = ((name, getattr(self, name)) for name in ("arena", "state", "weights", "code", "bound", "ring"))
        return f"{self.total} bytes: " + ", ".join(f"{name} {size}" for name, size in parts if size)


def need_of(graph: Graph, code_bytes: int, weights_bytes: int, *, ring_slots: int, maps_weights: bool) -> Need:
    """What a driver, the self-test and a pipeline allocate for the graph. `maps_weights`: as the CPU driver does."""
    sizes = {kind: sum(one.size_bytes for one in graph.buffers if one.kind is kind) for kind in BufferKind}
    outputs = tuple(output.view for output in graph.outputs)  # all of them: no index of it is proved yet
    tested = sizes[BufferKind.FRAME] + sizes[BufferKind.AUX] + sizes[BufferKind.OUTPUT]
    served = sizes[BufferKind.AUX] + _OUTPUT_SETS * sizes[BufferKind.OUTPUT]
    return Need(
        arena=graph.arena_bytes,
        state=sizes[BufferKind.STATE],
        weights=0 if maps_weights else weights_bytes,
        code=code_bytes,
        bound=max(tested, served),
        ring=ring_slots * place_views(outputs)[1],
    )


class MemoryRoom:
    """Opens what tells of memory; keeps it open."""

    def __init__(
        self, limit_bytes: int, held_bytes: Callable[[], int], *, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup"
    ) -> None:
        """limit_bytes: for everything that is loaded, 0: none. held_bytes: what is loaded now."""
        self._limit_bytes = limit_bytes
        self._held_bytes = held_bytes
        self._meminfo = _open(f"{proc}/meminfo")
        self._statm = _open(f"{proc}/self/statm")
        self._groups = [*_groups(proc, cgroups)]

    def close(self) -> None:
        """Closes what it holds open, once."""
        for descriptor in (self._meminfo, self._statm, *(one for group in self._groups for one in group.descriptors)):
            if descriptor is not None:
                os.close(descriptor)
        self._meminfo, self._statm, self._groups = None, None, []

    def require_file(self, path: str, limit_bytes: int) -> None:
        """Raises ModelRefused where the file at `path` cannot be held in memory.

        One that is not there, or above `limit_bytes`, is refused by whoever reads it.
        """
        try:
            size = os.stat(path).st_size
        except OSError:
            return
        if size > limit_bytes:
            return
        self._require(f"the file {path[:256]}", size, f"{size} bytes", self.free())

    def require(self, label: str, need: Need, file_bytes: int) -> None:
        """Raises ModelRefused, with the numbers, where the need is more than the room. file_bytes: read already."""
        self._require(label, need.total, str(need), self.free(file_bytes))

    def free(self, file_bytes: int = 0) -> Room | None:
        """The least room that a limit leaves; None where there is no limit that can be seen.

        file_bytes: memory that holds a bundle of which nothing is loaded yet.
        """
        return min(self._rooms(file_bytes), default=None)

    def _require(self, label: str, need_bytes: int, found: str, room: Room | None) -> None:
        if room is None or need_bytes <= room.bytes:
            return
        raise ModelRefused(
            Step.LOAD,
            ModelCode.MEMORY,
            f"memory for {label}",
            expected=f"at most the {max(0, room.bytes)} bytes that {room.by} leaves",
            found=found,
            todo="end a shadow, free memory or raise that limit; what serves and what served before it stay loaded",
        )

    def _rooms(self, file_bytes: int) -> Iterator[Room]:
        if self._limit_bytes:
            yield Room(self._limit_bytes - self._held_bytes() - file_bytes, "limits.loaded_bytes")
        for line in _read(self._meminfo).splitlines():
            if line.startswith("MemAvailable:"):
                yield Room(int(line.split()[1]) * 1024, "the machine (MemAvailable)")
        pages = _read(self._statm).split()
        for limit, name, field in _LIMITS:
            soft, _ = resource.getrlimit(limit)
            if soft != resource.RLIM_INFINITY and pages:
                yield Room(soft - int(pages[field]) * _PAGE_BYTES, name)
        for group in self._groups:
            yield from group.rooms()


class _Group:
    """One cgroup with a limit on memory."""

    def __init__(self, folder: str, limit: str, usage: str, droppable: str) -> None:
        self._name = f"the cgroup ({folder}/{limit})"
        self._limit, self._usage = _open(f"{folder}/{limit}"), _open(f"{folder}/{usage}")
        self._stat = _open(f"{folder}/memory.stat")
        self._droppable = droppable

    @property
    def descriptors(self) -> tuple[int | None, ...]:
        """What it holds open; None where a file is not there."""
        return self._limit, self._usage, self._stat

    def rooms(self) -> Iterator[Room]:
        limit, usage = _read(self._limit).strip(), _read(self._usage).strip()
        if not limit.isdigit() or not usage.isdigit() or int(limit) >= _UNLIMITED_BYTES:
            return
        words = _read(self._stat).split()
        dropped = int(words[words.index(self._droppable) + 1]) if self._droppable in words else 0
        yield Room(int(limit) - int(usage) + dropped, self._name)


def _groups(proc: str, root: str) -> Iterator[_Group]:
    """The process's own cgroup and those above it, as far as they can be seen."""
    membership = _open(f"{proc}/self/cgroup")
    lines = _read(membership).splitlines()
    if membership is not None:
        os.close(membership)
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = _CGROUPS.get(controllers)
        if names is None:
            continue
        mount, limit, usage, droppable = names
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            folder = "/".join(one for one in (root, mount, *parts[:count]) if one)
            if os.path.exists(f"{folder}/{limit}"):
                yield _Group(folder, limit, usage, droppable)


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _read(descriptor: int | None) -> str:
    """The file from its start, as it is now: the kernel makes such files anew for each reading."""
    try:
        return "" if descriptor is None else os.pread(descriptor, 1 << 16, 0).decode("ascii", "replace")
    except OSError:
        return ""
