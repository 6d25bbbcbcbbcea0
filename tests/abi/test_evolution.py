"""What may change without a new ABI version: added fields that an old peer may ignore, and none in flat packets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import capnp
import pytest

from abi import flat, schema
from abi import messages as m
from abi.packet import Kind
from abi.schema import FlatError
from tests.support.link import OUTPUT, SUBSCRIBED

NEWER = """
@0xb0a53f3b7b2b44d3;
struct Hello { role @0 :UInt16; name @1 :Text; protocolHints @2 :UInt64; vendor @3 :Text; }
struct Output {
  name @0 :Text; dtype @1 :UInt16; shape @2 :List(UInt32); unit @3 :Text; offset @4 :UInt64; sizeBytes @5 :UInt64;
  nan @6 :UInt16; scale @7 :Float64; note @8 :Text;
}
struct Subscribed {
  subscriptionId @0 :UInt32; slots @1 :UInt32; slotBytes @2 :UInt64; modelDigest @3 :Data; outputs @4 :List(Output);
  expiryNs @5 :Int64; tags @6 :List(Text);
}
struct Release {
  streamId @0 :UInt32; slot @1 :UInt32; generation @2 :UInt64; sequence @3 :UInt64; status @4 :UInt16; code @5 :UInt16;
  heldNs @6 :UInt64; deviceNs @7 :UInt64;
}
struct Filled {
  streamId @0 :UInt32; slot @1 :UInt32; generation @2 :UInt64; sequence @3 :UInt64; status @4 :UInt16; code @5 :UInt16;
  heldNs @6 :UInt64; inGap @7 :UInt32;
}
struct Older { what @0 :Text; }
struct OlderSubscribe { model @0 :Text; }
"""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The schema as a later release could have it."""
    file: Path = tmp_path_factory.mktemp("newer") / "newer.capnp"
    file.write_text(NEWER)
    return capnp.SchemaParser().load(str(file))


def test_added_fields_are_ignored(newer: Any) -> None:
    hello = newer.Hello.new_message(role=1, name="x", protocolHints=9, vendor="acme")
    assert m.decode(Kind.HELLO, bytes(hello.to_bytes())) == m.Hello(m.Role.CAMERA, "x")


def test_added_fields_in_lists_are_ignored(newer: Any) -> None:
    message = newer.Subscribed.new_message(
        subscriptionId=5, slots=4, slotBytes=4096, modelDigest=bytes(range(32)), expiryNs=7, tags=["a", "b"]
    )
    (output,) = message.init("outputs", 1)
    output.name, output.dtype, output.shape, output.unit = OUTPUT.name, int(OUTPUT.dtype), [1, 2], OUTPUT.unit
    output.offset, output.sizeBytes, output.nan, output.scale, output.note = 64, 8, 1, 0.5, "later"
    assert m.decode(Kind.SUBSCRIBED, bytes(message.to_bytes())) == SUBSCRIBED


def test_fields_that_an_older_peer_does_not_send_are_zero(newer: Any) -> None:
    body = bytes(newer.OlderSubscribe.new_message(model="lane").to_bytes())
    assert m.decode(Kind.SUBSCRIBE, body) == m.Subscribe("lane", m.DeliveryPolicy.LATEST, 0)
    with schema.session.Bye.from_bytes(bytes(newer.Older.new_message(what="x").to_bytes())) as bye:
        assert bye.reason == "x"


@pytest.mark.parametrize(("struct", "added"), [("Release", "deviceNs"), ("Filled", "inGap")])
def test_a_flat_packet_has_one_length_and_no_room(newer: Any, struct: str, added: str) -> None:
    values = {"streamId": 1, "slot": 2, "generation": 3, "sequence": 4, "status": 0, "code": 0, "heldNs": 5}
    grown = bytes(getattr(newer, struct).new_message(**values, **{added: 1}).to_bytes())
    with pytest.raises(FlatError):
        flat.RELEASE.unpack(grown)
