"""What hand-off is measured beside: the least that two Python processes can do, each in the same run as ours.

    ping       one SOCK_SEQPACKET packet of a Submit's size, taken by one blocking recv
    copy       the same, and then the frame copied out of shared memory, as a receiver must that cannot trust the sender
    iceoryx2   a loaned sample of the frame's size, sent and announced by an event, received by the other process
    packets    so many bare packets taken and sent, in one process: what the protocol costs a loop at the least

Each but the last gives the one-way time between two CLOCK_MONOTONIC readings in two processes, from the call that sends
to the call that received having returned. As a camera does, each sender has just written a whole frame, so that caches
are as cold as ours. No peer checks anything of what it is sent.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abi.flat import SUBMIT
from abi.packet import HEADER_BYTES
from hal.memory import create_sealed

PACKET_BYTES = HEADER_BYTES + SUBMIT.size_bytes
OneWay = Callable[[], int]
"""Writes a frame and sends it once; nanoseconds from sending until it was received."""
Pixels = NDArray[np.uint8]
_LOOK_MS = 200  # how often the iceoryx2 process looks whether the bench is over


@contextlib.contextmanager
def _other_process(run: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """A socket to a forked process that runs `run` on its end until ours is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def child() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever ends the bench ends this, by closing the socket
        ours.close()
        run(theirs)

    process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def _tell(end: socket.socket, received_ns: int) -> None:
    with contextlib.suppress(OSError):  # the bench is over
        end.send(struct.pack("<q", received_ns))


def _hear(end: socket.socket) -> int:
    (received_ns,) = struct.unpack("<q", end.recv(8))
    return int(received_ns)


def _by_packet(end: socket.socket, picture: Pixels, frame: Pixels) -> OneWay:
    def one_way() -> int:
        np.copyto(frame, picture)
        sent_ns = time.monotonic_ns()
        end.send(bytes(PACKET_BYTES))
        return _hear(end) - sent_ns

    return one_way


@contextlib.contextmanager
def ping(picture: Pixels) -> Iterator[OneWay]:
    """A bare ping."""

    def answer(end: socket.socket) -> None:
        while end.recv(4096):
            _tell(end, time.monotonic_ns())

    with _other_process(answer) as end:
        yield _by_packet(end, picture, np.zeros_like(picture))


@contextlib.contextmanager
def copy(picture: Pixels) -> Iterator[OneWay]:
    """A ping, and one copy of the frame."""
    descriptor = create_sealed("bench-frame", picture.nbytes)
    shared: Pixels = np.frombuffer(mmap.mmap(descriptor, picture.nbytes), np.uint8)

    def answer(end: socket.socket) -> None:
        private = np.zeros_like(picture)
        while end.recv(4096):
            np.copyto(private, shared)
            _tell(end, time.monotonic_ns())

    try:
        with _other_process(answer) as end:
            yield _by_packet(end, picture, shared)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def packets(count: int, received: int, sent: int) -> Iterator[OneWay]:
    """Processor time of this thread to take `received` packets of each of `count` sockets and send `sent` to each."""
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        for one in (end for pair in pairs for end in pair):
            stack.enter_context(one)
        packet = bytes(PACKET_BYTES)

        def once() -> int:
            for _, other in pairs:
                for _ in range(received):
                    other.send(packet)
            began_ns = time.thread_time_ns()
            for end, _ in pairs:
                for _ in range(received):
                    end.recv(4096)
                for _ in range(sent):
                    end.send(packet)
            taken_ns = time.thread_time_ns() - began_ns
            for _, other in pairs:
                for _ in range(sent):
                    other.recv(4096)
            return taken_ns

        yield once


def iceoryx2_module() -> ModuleType | None:
    """The package, or None where it is not installed."""
    try:
        import iceoryx2  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    return iceoryx2  # type: ignore[no-any-return]


@contextlib.contextmanager
def iceoryx2(picture: Pixels) -> Iterator[OneWay]:
    """Publish a loaned sample and notify; the other process waits for the event and receives. Needs the package."""
    iox: Any = iceoryx2_module()
    frame_bytes = picture.nbytes
    name = f"fenced-bench-{os.getpid()}"

    def answer(end: socket.socket) -> None:
        node, samples, events = _services(iox, name)
        subscriber, listener = samples.subscriber_builder().create(), events.listener_builder().create()
        end.send(b"ready")
        while node is not None and not select.select([end], [], [], 0)[0]:  # until the other end is closed
            listener.timed_wait(iox.Duration.from_millis(_LOOK_MS))
            sample = subscriber.receive()
            if sample is not None:
                _tell(end, time.monotonic_ns())
                sample.delete()

    with _other_process(answer) as end:
        node, samples, events = _services(iox, name)
        publisher = samples.publisher_builder().initial_max_slice_len(frame_bytes).max_loaned_samples(2).create()
        notifier = events.notifier_builder().create()
        end.recv(16)

        def one_way() -> int:
            loaned = publisher.loan_slice_uninit(frame_bytes)
            ctypes.memmove(loaned.payload_ptr, picture.ctypes.data, frame_bytes)
            sample = loaned.assume_init()
            sent_ns = time.monotonic_ns()
            sample.send()
            notifier.notify()
            return _hear(end) - sent_ns

        yield one_way
        del node


def _services(iox: Any, name: str) -> tuple[Any, Any, Any]:
    """Node, publish-subscribe service and event service; the node must live as long as they do."""
    iox.set_log_level(iox.LogLevel.Error)
    node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
    service = iox.ServiceName.new(name)
    samples = node.service_builder(service).publish_subscribe(iox.Slice[ctypes.c_uint8]).open_or_create()
    return node, samples, node.service_builder(service).event().open_or_create()
