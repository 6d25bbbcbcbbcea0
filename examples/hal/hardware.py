"""The board of the worked example: what a vendor's chip and firmware would be.

It takes commands from a queue, runs programs of one instruction each out of the bundle's code, and reports by writing
memory and an eventfd. It is a thread here; nothing in the driver beside it knows that.
"""

from __future__ import annotations

import ctypes
import os
import queue
import struct
import threading
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abi.graph import Graph
from hal.bindings import bound_buffers
from hal.fence import RECORD_WORDS, RUN_CANCELLED, RUN_OK

SLOTS = 8
WIDEN, ADD, ROUNDS, TOTAL, SCALE = range(5)  # the instructions


@dataclass(frozen=True)
class Command:
    """One run: its timeline value, its entrypoint, and the addresses of the bound buffers."""

    value: int
    entrypoint: int
    addresses: tuple[int, ...]


class Board(threading.Thread):
    """The hardware. It owns the timeline's memory: nobody else writes `word` and `records`."""

    def __init__(self, graph: Graph, code: memoryview, bases: dict[int, int]) -> None:
        super().__init__(name="board", daemon=True)
        self.commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.word = memoryview(bytearray(8)).cast("Q")
        self.records = memoryview(bytearray(8 * RECORD_WORDS * SLOTS)).cast("q")
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.launches = 0
        self.cancel_through = 0
        self._graph, self._bases = graph, bases
        self._opcodes = [struct.unpack_from("<I", code, program.code_offset)[0] for program in graph.programs]

    def run(self) -> None:
        while (command := self.commands.get()) is not None:
            started_ns = time.monotonic_ns()
            status = self._execute(command)
            at = command.value % SLOTS * RECORD_WORDS
            for offset, item in enumerate((command.value, started_ns, time.monotonic_ns(), status)):
                self.records[at + offset] = item
            self.word[0] = command.value  # last: whoever sees the value sees the record and the outputs
            os.eventfd_write(self.event, 1)

    def _execute(self, command: Command) -> int:
        entry = self._graph.entrypoints[command.entrypoint]
        where = self._bases | dict(zip(bound_buffers(self._graph, entry), command.addresses, strict=True))
        for launch in self._graph.launches[entry.first_launch : entry.first_launch + entry.launch_count]:
            if self.cancel_through >= command.value:
                return RUN_CANCELLED
            memory = [_bytes(where[a.buffer] + a.offset, a.size_bytes) for a in launch.arguments]
            _compute(self._opcodes[launch.program], memory, launch.values)
            self.launches += 1
        return RUN_OK


def _bytes(address: int, size_bytes: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


def _compute(opcode: int, memory: list[NDArray[np.uint8]], values: tuple[int, ...]) -> None:
    out = memory[0].view(np.float32)
    if opcode == WIDEN:
        out[:] = memory[1]
    elif opcode == ADD:
        out[:] = memory[1].view(np.float32) + values[0]
    elif opcode == ROUNDS:
        rounds = int(memory[1][:4].view(np.uint32)[0])
        scratch = np.ones(1 << 14, np.float32)
        for _ in range(rounds):
            np.sqrt(scratch, out=scratch)
        out[:] = np.arange(out.size) + rounds
    elif opcode == TOTAL:
        out += memory[2]
        memory[1].view(np.float32)[:] = out
    elif opcode == SCALE:
        out[:] = memory[1] * memory[2].view(np.float32)[0]
