"""The journal's native protocol: one datagram of KEY=value lines for each event, never waited for.

Fields beside the text: PRIORITY, MESSAGE_ID for the kinds of events that an operator acts on, what an event is about
(MODEL, STREAM, REFUSAL, PEER, ACT). `journalctl MODEL=lane`; `journalctl -x` shows from the catalogue what to do.
Source: systemd, docs/JOURNAL_NATIVE_PROTOCOL.md. Where there is no journal the same text goes to stderr (`daemon.log`).
"""

import os
import socket
from collections.abc import Mapping
from enum import Enum

ADDRESS = "/run/systemd/journal/socket"


class MessageId(Enum):
    """Kinds of events, by the 128-bit ids that the catalogue (`systemd/fenced.catalog`) explains."""

    SERVING = "f1d7015287164efbb69e1243d8e9bb65"
    MODEL_REFUSED = "0c505ed0774845a991f4b4327cb439b8"
    MODEL_UNHEALTHY = "039c1ac393d146a4ace5eab205f311a2"
    MODEL_CONFIRMED = "667d0a1f69654a96ad8dd0ad8247701a"
    PACKET_REFUSED = "953468be989f44638fd52eb03e3f4225"
    FORBIDDEN_ACT = "3c8551b6e8bc45cbb569c92c0760726d"
    DEVICE_RESET = "5128e47d2a7a4b2098bb8298a78fe545"
    DEVICE_LOST = "e9c09feef33a49f997d58ef63e6a4251"
    RELOADED = "9ef44e00b9924dbfac97990e0442301b"
    RELOAD_REFUSED = "8c7db9f98b1244f491fd5aabacabf3da"


class Journal:
    """A connected socket to journald. Construction raises OSError where nobody listens."""

    def __init__(self, address: str = ADDRESS) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise

    def send(self, fields: Mapping[str, str]) -> bool:
        """Sends one event; False where it would have to wait or nobody listens. Values hold no line breaks."""
        text = "".join(f"{key}={value}\n" for key, value in fields.items())
        try:
            self._socket.send(text.encode("utf-8", "backslashreplace"))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def journal_of(environment: Mapping[str, str], descriptor: int = 2) -> Journal | None:
    """The journal, where `descriptor` leads to it anyway (JOURNAL_STREAM, systemd.exec(5)); else None."""
    stream = environment.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(descriptor)
        return Journal() if stream == f"{status.st_dev}:{status.st_ino}" else None
    except OSError:
        return None
