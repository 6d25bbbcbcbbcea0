"""A peer that never stops talking takes its turn like the others."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest

from abi import messages as m
from daemon.service import Service
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread
from tests.support.raw_peer import RawPeer

PACKETS = 40


def gain(value: float) -> bytes:
    return m.encode(m.SetAux("gain", 1, struct.pack("<f", value)))


def test_of_a_peer_with_much_to_say_one_packet_is_taken_then_it_is_the_others_turn(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []
    set_aux = Service.set_aux

    def noted(self: Service, message: m.SetAux, now_ns: int) -> m.Refusal | None:
        taken.append(struct.unpack("<f", message.value)[0])
        return set_aux(self, message, now_ns)

    held, stands = threading.Event(), threading.Event()

    def hold() -> None:
        """The loop stands, so that everything is there when it goes on."""
        stands.set()
        held.wait(LIMIT_S)

    monkeypatch.setattr(Service, "set_aux", noted)
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel("scale"))], maker) as daemon,
        RawPeer(daemon) as loud,
        RawPeer(daemon) as modest,
    ):
        daemon.service.loop.call_soon(hold)
        assert stands.wait(LIMIT_S)
        for _ in range(PACKETS):
            loud.send(gain(1.0))
        modest.send(gain(2.0))
        held.set()
        for _ in range(PACKETS):
            assert isinstance(m.decode(*_body(loud)), m.AuxSet)
        assert isinstance(m.decode(*_body(modest)), m.AuxSet)
    assert len(taken) == PACKETS + 1
    assert taken.index(2.0) <= 1


def _body(peer: RawPeer) -> tuple[m.Kind, bytes]:
    packet = peer.socket.recv(1 << 16)
    return m.Kind(int.from_bytes(packet[:2], "little")), packet[8:]
