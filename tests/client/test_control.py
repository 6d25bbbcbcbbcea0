"""The control client: commands, their answers, and refusals."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from abi import messages as m
from abi.messages import CommandKind, Role
from abi.packet import RefusalCode
from client.control import Control
from client.errors import ConnectionLost, Refused
from hal.memory import create_sealed, seal_copy
from tests.support.scripted import Peer, ScriptedDaemon, no_descriptor_leaks


def answering(*bodies: str) -> tuple[list[object], Callable[[Peer], None]]:
    """What was asked, and a script that answers with these bodies."""
    asked: list[object] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for body in bodies:
            command = peer.receive()
            asked.append(command)
            peer.say(m.Reply(command.command, body))
        asked.extend(peer.until_end())

    return asked, script


def test_every_command_is_asked_by_its_kind(tmp_path: Path) -> None:
    asked, script = answering('{"a": 1}', "{}", "", "{}", "{}", "{}", "# EOF\n")
    with (
        no_descriptor_leaks(),
        ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon,
        Control(daemon.path) as control,
    ):
        assert control.daemon_version == "1.2.3"
        assert control.status() == {"a": 1}
        assert control.activate(Path("/models/lane.fenced")) == {}
        assert control.rollback() == {}
        assert control.drain() == control.resume() == control.reset_state() == {}
        assert control.metrics() == "# EOF\n"
    kinds = (CommandKind.ROLLBACK, CommandKind.DRAIN, CommandKind.RESUME, CommandKind.RESET_STATE, CommandKind.METRICS)
    assert asked == [
        m.Command(CommandKind.STATUS),
        m.Command(CommandKind.ACTIVATE, "/models/lane.fenced"),
        *(m.Command(kind) for kind in kinds),
        m.Bye("closed"),
    ]


@pytest.mark.parametrize("body", ["{", "[1]", "3", '"text"', "null"])
def test_an_answer_that_is_not_an_object_is_refused(tmp_path: Path, body: str) -> None:
    _, script = answering(body)
    with (
        ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon,
        Control(daemon.path) as control,
        pytest.raises(ConnectionLost, match="answer to STATUS is not"),
    ):
        control.status()


def test_a_refused_command_is_raised_and_the_session_goes_on(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.say(m.Refusal(RefusalCode.MODEL_REFUSED, 16, "bundle", "a signature", "none", "sign it"))
        peer.receive()
        peer.say(m.Reply(CommandKind.STATUS, "{}"))
        peer.until_end()

    with ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon, Control(daemon.path) as control:
        with pytest.raises(Refused) as caught:
            control.activate("/models/unsigned.fenced")
        assert (caught.value.code, caught.value.action) == (RefusalCode.MODEL_REFUSED, "sign it")
        assert control.status() == {}


def test_an_aux_input_is_set_or_refused_by_the_call_itself(tmp_path: Path) -> None:
    asked = []

    def script(peer: Peer) -> None:
        peer.greet()
        asked.append(peer.receive())
        peer.say(m.AuxSet("calibration"))
        asked.append(peer.receive())
        peer.say(m.Refusal(RefusalCode.BAD_AUX, 12, "value", "2 bytes", "3 bytes", "send what the contract asks for"))
        asked.extend(peer.until_end())

    with ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon, Control(daemon.path) as control:
        control.set_aux("calibration", 7, b"\0\1")
        with pytest.raises(Refused, match="BAD_AUX: value: expected 2 bytes"):
            control.set_aux("calibration", 8, b"abc")
    assert asked == [m.SetAux("calibration", 7, b"\0\1"), m.SetAux("calibration", 8, b"abc"), m.Bye("closed")]


def test_a_command_has_its_own_deadline(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.until_end()

    with (
        ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon,
        Control(daemon.path) as control,
        pytest.raises(TimeoutError, match=r"no Reply within 0.01 s of Command"),
    ):
        control.rollback(timeout_s=0.01)


def test_a_snapshot_in_memory_that_can_still_change_is_not_believed(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        for made in (create_sealed("writable", 64), os.eventfd(0), seal_copy("constant", b"state")):
            peer.receive()
            peer.say(m.Reply(CommandKind.SNAPSHOT_STATE, "{}"), (made,))
            os.close(made)
        peer.until_end()

    with (
        no_descriptor_leaks(),
        ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon,
        Control(daemon.path) as control,
    ):
        with pytest.raises(ConnectionLost, match="can still change"):
            control.snapshot_state()
        with pytest.raises(ConnectionLost, match="comes in no memory"):
            control.snapshot_state()
        assert control.snapshot_state() == b"state"
