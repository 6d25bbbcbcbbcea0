"""Peers that say nothing, nonsense, or too much: that peer is closed with a typed error, and the others are served."""

from __future__ import annotations

import os
import select
from dataclasses import replace

from abi import messages as m
from abi.flat import SUBMIT, Submit
from abi.messages import CommandKind, Role
from abi.packet import ABI_VERSION, MAX_DESCRIPTORS, Kind, RefusalCode, encode_header
from client.camera import Camera
from lab.hil.bench import PROBES, Bench, Need
from lab.hil.clients import LIMIT_S, ended, submit
from lab.hil.faults.fault import Fault
from lab.hil.raw_peer import RawPeer
from lab.hil.verdict import WrongAnswer, expect

__all__ = ["FAULTS", "MALFORMED"]

HEADER = encode_header(Kind.HELLO)
MALFORMED = {
    "one byte": b"\x01",
    "a cut header": HEADER[:7],
    "a header alone": HEADER,
    "noise": bytes(range(256)),
    "another ABI version": Kind.HELLO.to_bytes(2, "little") + (ABI_VERSION + 1).to_bytes(2, "little") + bytes(4),
    "an unknown kind": (999).to_bytes(2, "little") + ABI_VERSION.to_bytes(2, "little") + bytes(4),
    "flags in the header": HEADER[:5] + b"\x01\0\0" + bytes(8),
    "a packet of the daemon": encode_header(Kind.WELCOME) + bytes(16),
    "a submit before the greeting": encode_header(Kind.SUBMIT) + SUBMIT.pack(Submit(0, 0, 1, 0, 0, 0, 0, 0, 0)),
    "a packet beyond the limit": HEADER + bytes(60_000),
    "a descriptor count that is not so": encode_header(Kind.HELLO, 3) + bytes(16),
    "an empty packet": b"",
}
"""Packets that no honest client sends, each as the first of its session."""
UNREAD = 400  # answers that a reader of metrics leaves lying
SILENCE_MS = 1_500  # before a daemon of the harness's own takes a peer for a silent one


def _one_more(bench: Bench, camera: Camera, sequence: int) -> None:
    """Another frame of an honest camera is taken and given back."""
    submit(camera, sequence, bench.noise(sequence))
    expect("frames refused", ended(camera)["refused"], 0)


def silent(bench: Bench) -> str:
    """A peer connects and never speaks, and another falls silent after its greeting."""
    if bench.daemon is None:
        return _fall_silent(bench)
    with bench.own("silent", [PROBES["tiny"]], limits={"idle_timeout_ms": SILENCE_MS}) as daemon:
        return _fall_silent(replace(bench, sockets=daemon.sockets, _models=()))


def _fall_silent(bench: Bench) -> str:
    with (
        bench.open_first() as camera,
        RawPeer(bench.sockets, greet=False) as mute,
        RawPeer(bench.sockets, Role.CONTROL) as lazy,
    ):
        _one_more(bench, camera, 1)
        for peer in (mute, lazy):
            expect("refusal of the silent peer", peer.refusal().code, RefusalCode.IDLE)
            expect("what follows", peer.socket.recv(1), b"")
        _one_more(bench, camera, 2)
    return "both closed as idle after the limit; a camera beside them was served before and after"


def malformed(bench: Bench) -> str:
    """Truncated, oversized, empty and foreign packets to every socket, and descriptors that nobody asked for."""
    with bench.open_first() as camera:
        for role in (Role.CONSUMER, Role.CONTROL, Role.CAMERA):
            for name, packet in MALFORMED.items():
                with RawPeer(bench.sockets, role, greet=False) as peer:
                    peer.send(packet)
                    _require_closed(f"{name} to the {role.name.lower()} socket", peer)
        for count in (1, MAX_DESCRIPTORS, MAX_DESCRIPTORS + 3):
            _descriptors(bench, count)
        _one_more(bench, camera, 1)
    expect("internal errors", bench.status()["faults"]["internal_errors"], 0)
    return f"{len(MALFORMED)} packets to three sockets and unasked descriptors: each closed its peer with a typed error"


def _require_closed(name: str, peer: RawPeer) -> None:
    code = peer.refusal().code
    if code not in (RefusalCode.PROTOCOL, RefusalCode.ABI_VERSION):
        raise WrongAnswer(f"refusal of {name}", "PROTOCOL or ABI_VERSION", code.name)
    try:
        expect(f"what follows {name}", peer.socket.recv(1), b"")
    except ConnectionResetError:
        return  # closed with our packets unread


def _descriptors(bench: Bench, count: int) -> None:
    reader, writer = os.pipe()
    try:
        with RawPeer(bench.sockets) as peer:
            peer.send(encode_header(Kind.HELLO, min(count, MAX_DESCRIPTORS)) + bytes(16), (writer,) * count)
            _require_closed(f"{count} descriptors", peer)
        os.close(writer)
        poll = select.poll()
        poll.register(reader, 0)
        if not poll.poll(LIMIT_S * 1000):
            raise WrongAnswer("descriptors that nobody asked for", "closed", "held by the daemon")
    finally:
        os.close(reader)


def telemetry(bench: Bench) -> str:
    """A reader of metrics asks and asks and never reads an answer."""
    packet = m.encode(m.Command(CommandKind.METRICS, ""))
    sent = 0
    with RawPeer(bench.sockets, Role.CONTROL) as reader, bench.open_first() as camera:
        reader.socket.setblocking(False)
        for _ in range(UNREAD):
            try:
                reader.socket.send(packet)
                sent += 1
            except OSError:  # its queue is full, or the daemon has closed it
                break
        for sequence in range(20):
            _one_more(bench, camera, sequence)
    expect("internal errors", bench.status()["faults"]["internal_errors"], 0)
    return f"{sent} requests whose answers nobody read; 20 frames went on beside them"


FAULTS = (
    Fault("frames/23", "one silent client blocks every connect", "others are served; the silent one is closed",
          Need.SERVING, silent),
    Fault("frames/24", "a two-byte reply kills the peer", "that peer is closed with a typed error", Need.SERVING,
          malformed),
    Fault("runtime/13", "telemetry hang stalls the model", "frames go on", Need.SERVING, telemetry),
)  # fmt: skip
