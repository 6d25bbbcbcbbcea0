"""Shared memory that a peer could take away, write or leak: refused, impossible, or back to the start."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from abi import messages as m
from abi.flat import SUBMIT, Submit
from abi.messages import Role
from abi.packet import Kind, RefusalCode, encode_header
from hal.memory import create_sealed
from lab.hil.bench import Bench, Need
from lab.hil.clients import LIMIT_S, ended, picture, run_one, submit
from lab.hil.faults.fault import Fault
from lab.hil.raw_peer import RawPeer, as_refusal, close_all
from lab.hil.verdict import Unavailable, WrongAnswer, expect, expect_in

__all__ = ["FAULTS"]

CYCLES, SETTLED_AFTER = 500, 20
F_GET_SEALS, F_SEAL_FUTURE_WRITE = 1034, 0x10  # fcntl(2)
WARM_FRAMES = 300
NOISE_KIB = 512  # allocator arenas come and go


def shrinkable(bench: Bench) -> str:
    """A buffer without the shrink seal; it is shrunk after it was offered."""
    with RawPeer(bench.sockets) as peer:
        opened = peer.ask(m.OpenStream(bench.stream, bench.format))
        if not isinstance(opened, m.StreamOpened):
            raise WrongAnswer("answer to OpenStream", "StreamOpened", str(opened))
        unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        os.ftruncate(unsealed, bench.format.buffer_bytes)
        descriptors = (create_sealed("lease", 64), unsealed)
        try:
            refusal = as_refusal(peer.ask(m.RegisterBuffers(opened.stream_id, 1), descriptors))
            os.ftruncate(unsealed, 1)  # which it could, so it was right to be refused
        finally:
            close_all(descriptors)
    expect("code", refusal.code, RefusalCode.BAD_BUFFER)
    expect_in("expected", refusal.expected, ["F_SEAL_SHRINK"])
    return f"{refusal.what}: expected {refusal.expected}, found {refusal.found}"


def ring(bench: Bench) -> str:
    """A consumer tries to map and to write the result ring, through its descriptor and through /proc."""
    with RawPeer(bench.sockets, Role.CONSUMER) as peer:
        peer.send(peer.session.send(m.Subscribe(bench.first.name)))
        packet, ancillary, _, _ = peer.socket.recvmsg(1 << 16, 64)
        (descriptor,) = array.array("i", ancillary[0][2])
        (subscribed,) = peer.session.receive(packet, 1)
    if not isinstance(subscribed, m.Subscribed):
        raise WrongAnswer("answer to Subscribe", "Subscribed", str(subscribed))
    size = subscribed.slots * subscribed.slot_bytes
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)  # root may open it so
    try:
        for name, write in {
            "a writable mapping": lambda: _map(descriptor, size),
            "a writable mapping by /proc": lambda: _map(again, size),
            "a write": lambda: os.pwrite(again, b"x", 0),
            "a truncation": lambda: os.ftruncate(again, 0),
        }.items():
            _require_denied(name, write)
        if not fcntl.fcntl(again, F_GET_SEALS) & F_SEAL_FUTURE_WRITE:
            raise WrongAnswer("seals of the ring", "F_SEAL_FUTURE_WRITE", "none")
    finally:
        close_all((again, descriptor))
    return "every way to write the ring is denied"


def _map(descriptor: int, size: int) -> object:
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _require_denied(name: str, write: Callable[[], object]) -> None:
    try:
        write()
    except PermissionError:
        return
    raise WrongAnswer(f"{name} of the result ring", "PermissionError", "success")


def leaks(bench: Bench) -> str:
    """Connect, register and disconnect 500 times, every third time with a frame in the daemon's hands."""
    pid, stream, format = bench.status()["pid"], bench.stream, bench.format
    before = (0, 0)
    with bench.control() as control:
        for cycle in range(CYCLES):
            with RawPeer(bench.sockets) as peer:
                stream_id = peer.open_stream(stream=stream, format=format)
                if cycle % 3 == 0:
                    now_ns = time.monotonic_ns()
                    packet = SUBMIT.pack(Submit(stream_id, 0, 1, 1, now_ns, now_ns, 0, 0, 0))
                    peer.send(encode_header(Kind.SUBMIT) + packet)
            _until(lambda: not _is_held(control.status(), stream), "the camera gone and its frame given back")
            if cycle == SETTLED_AFTER:
                before = _held(pid)
        _until(lambda: all(now <= then for now, then in zip(_held(pid), before, strict=True)),
               f"at most {before} descriptors and mappings")  # fmt: skip
    return f"{CYCLES} cycles: {before[0]} descriptors and {before[1]} shared mappings before and after"


def _is_held(status: dict[str, object], stream: str) -> bool:
    peers, streams = status["peers"], status["streams"]
    assert isinstance(peers, dict)
    assert isinstance(streams, dict)
    return bool(peers["camera"] or streams[stream]["held"])


def _held(pid: int) -> tuple[int, int]:
    """Descriptors and memfd mappings of the daemon. Raises Unavailable where its /proc is closed to us."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd")), Path(f"/proc/{pid}/maps").read_text().count("memfd:")
    except PermissionError:
        raise Unavailable("needs root: the daemon closes its /proc entries to its user") from None


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise WrongAnswer("the daemon", f"{what} within {LIMIT_S:g} s", "not")


def disconnect(bench: Bench) -> str:
    """A camera goes while its frame is on the device; the memory must live until the fence."""
    model = "slow"
    before = bench.status()["streams"].get(model, {}).get("run", 0)
    with bench.consumer(model) as consumer:
        with bench.camera(model) as camera:
            pixels = picture(7, first=200)
            submit(camera, 1, pixels)
            bench.wait_for(
                lambda status: (
                    any(one["busy"] for one in status["models"] if one["name"] == model)
                    or status["streams"][model]["run"] > before
                )
            )
        delivery = consumer.recv(timeout_s=LIMIT_S)
    if (delivery.outputs["values"] != pixels).any():
        raise WrongAnswer("the result of the frame", "that of the pixels submitted", "another")
    status = bench.wait_for(lambda status: status["streams"][model]["held"] == 0)
    expect("internal errors", status["faults"]["internal_errors"], 0)
    return "the frame ran to its fence out of the memory of a camera that had gone; then it was given back"


def slope(bench: Bench) -> str:
    """Frame after frame: resident memory does not grow."""
    pid, frames = bench.status()["pid"], bench.memory_frames
    with bench.camera() as camera, bench.consumer() as consumer:
        for sequence in range(WARM_FRAMES):
            run_one(camera, consumer, sequence, picture(1))
        before_kib = _resident_kib(pid)
        for sequence in range(WARM_FRAMES, WARM_FRAMES + frames):
            run_one(camera, consumer, sequence, picture(1))
        grown_kib = _resident_kib(pid) - before_kib
        expect("frames run", ended(camera)["run"], WARM_FRAMES + frames)
    if grown_kib > NOISE_KIB:
        raise WrongAnswer(f"resident memory over {frames} frames", f"at most {NOISE_KIB} KiB more", f"{grown_kib} KiB")
    return f"{grown_kib} KiB more resident after {frames} frames"


def _resident_kib(pid: int) -> int:
    """Resident memory that is the process's own: pages of files come and go as the machine has room for them."""
    fields = dict(line.partition(":")[::2] for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(fields[name].removesuffix(" kB")) for name in ("RssAnon", "RssShmem"))


FAULTS = (
    Fault("frames/17", "descriptors leak", "descriptor count and mappings back to the start", Need.SERVING, leaks),
    Fault("frames/27", "consumer can write the producer's memory", "writable mapping impossible", Need.SERVING, ring),
    Fault("frames/32", "buffer registered, then shrunk", "refused at registration", Need.SERVING, shrinkable),
    Fault("runtime/7", "memory grows 1 MB a minute", "resident slope zero within noise", Need.PROBES, slope),
    Fault("runtime/17", "memory unregistered during a run", "mapping lives until the fence", Need.PROBES, disconnect),
)
