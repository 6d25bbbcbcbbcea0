"""Cold messages: every one comes back from its packet, and what breaks a rule is refused on both sides."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi import messages as m
from abi import schema
from abi.graph_values import DType, NanPolicy, OutputView
from abi.packet import Kind, LocalProtocolError, RefusalCode, RemoteProtocolError, decode_header
from abi.stream_format import FormatError
from tests.support.link import OUTPUT, SUBSCRIBED, stream_format

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=100)
NAME = st.from_regex(r"[a-z0-9_.-]{1,64}", fullmatch=True)
HELLO_NAME = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=16)
OUTPUTS = st.builds(
    OutputView, HELLO_NAME, st.sampled_from(DType), st.lists(U32, max_size=8).map(tuple), HELLO_NAME, U64, U64,
    st.sampled_from(NanPolicy),
)  # fmt: skip
MESSAGES = st.one_of(
    st.builds(m.Hello, st.sampled_from(m.Role), HELLO_NAME),
    st.builds(m.Welcome, TEXT, U64, U32, U32),
    st.builds(m.Refusal, st.sampled_from(list(RefusalCode)[1:]), st.integers(0, 65535), TEXT, TEXT, TEXT, TEXT),
    st.builds(m.Bye, TEXT),
    st.builds(m.OpenStream, NAME, st.just(stream_format())),
    st.builds(m.StreamOpened, U32, U32),
    st.builds(m.RegisterBuffers, U32, U32),
    st.builds(m.BuffersRegistered, U32, U32, st.booleans()),
    st.builds(m.CloseStream, U32),
    st.builds(m.AuxSet, NAME),
    st.builds(m.SetAux, NAME, st.integers(-(2**63), 2**63 - 1), st.binary(max_size=100)),
    st.builds(m.Subscribe, NAME, st.sampled_from(m.DeliveryPolicy), U32),
    st.builds(
        m.Subscribed, U32, U32, U64, st.binary(min_size=32, max_size=32), st.lists(OUTPUTS, max_size=4).map(tuple)
    ),
    st.builds(m.Command, st.sampled_from(m.CommandKind), TEXT),
    st.builds(m.Reply, st.sampled_from(m.CommandKind), TEXT),
)


@given(MESSAGES, st.integers(0, 17))
def test_every_message_comes_back_from_its_packet(message: m.Message, descriptors: int) -> None:
    packet = m.encode(message, descriptors)
    kind = decode_header(packet, descriptors)
    assert kind is m.kind_of_message(message)
    assert m.decode(kind, packet[8:]) == message
    assert m.decode(kind, memoryview(packet)[8:]) == message


def test_every_struct_of_the_schema_has_a_message_with_its_fields() -> None:
    flat = {"SUBMIT", "RELEASE", "RESULT", "TAP_FRAME", "TAP_END", "INVALID"}
    for kind in Kind:
        if kind.name in flat:
            continue
        name = "".join(part.capitalize() for part in kind.name.split("_"))
        declared = [schema.snake_case(str(f.proto.name)) for f in getattr(schema.session, name).schema.fields_list]
        message = getattr(m, name)
        assert [field.name for field in dataclasses.fields(message)] == declared


def encoded(module: Any, **fields: Any) -> bytes:
    return bytes(module.new_message(**fields).to_bytes())


S = schema.session
NAME_RULE = "of 1..64 characters [a-z0-9_.-]"
BAD = [
    (Kind.HELLO, encoded(S.Hello, role=1), "name of 1..64 bytes", "0 bytes"),
    (Kind.HELLO, encoded(S.Hello, role=1, name="x" * 65), "name of 1..64 bytes", "65 bytes"),
    (Kind.HELLO, encoded(S.Hello, role=1, name="é" * 33), "name of 1..64 bytes", "66 bytes"),
    (Kind.HELLO, encoded(S.Hello, role=1, name="a\nb"), "name of printable characters", "'a\\nb'"),
    (Kind.WELCOME, encoded(S.Welcome, daemonVersion="v" * 4097), "daemonVersion of 0..4096 bytes", "4097 bytes"),
    (Kind.REFUSAL, encoded(S.Refusal), "code other than ok", "ok"),
    (Kind.REFUSAL, encoded(S.Refusal, code=26), "code of 0..25", "26"),
    (Kind.REFUSAL, encoded(S.Refusal, code=1, what="w" * 4097), "text of 0..4096 bytes", "4097 bytes"),
    (Kind.BYE, encoded(S.Bye, reason="r" * 4097), "reason of 0..4096 bytes", "4097 bytes"),
    (Kind.OPEN_STREAM, encoded(S.OpenStream, stream="Road"), f"stream {NAME_RULE}", "'Road'"),
    (Kind.OPEN_STREAM, encoded(S.OpenStream), f"stream {NAME_RULE}", "''"),
    (Kind.OPEN_STREAM, encoded(S.OpenStream, stream="r" * 65), f"stream {NAME_RULE}", ascii("r" * 64)),
    (Kind.AUX_SET, encoded(S.AuxSet, name="A"), f"name {NAME_RULE}", "'A'"),
    (Kind.SET_AUX, encoded(S.SetAux, name="a b"), f"name {NAME_RULE}", "'a b'"),
    (Kind.SUBSCRIBE, encoded(S.Subscribe, model="lane\n"), f"model {NAME_RULE}", "'lane\\n'"),
    (Kind.SUBSCRIBE, encoded(S.Subscribe, model="lane", policy=2), "policy of 0..1", "2"),
    (Kind.SUBSCRIBED, encoded(S.Subscribed, modelDigest=bytes(31)), "modelDigest of 32 bytes", "31 bytes"),
    (
        Kind.SUBSCRIBED,
        encoded(S.Subscribed, modelDigest=bytes(32), outputs=[{"name": "o"}] * 65),
        "at most 64 outputs",
        "65 outputs",
    ),
    (
        Kind.SUBSCRIBED,
        encoded(S.Subscribed, modelDigest=bytes(32), outputs=[{"name": "o", "shape": [1] * 9}]),
        "at most 8 dimensions",
        "9 dimensions",
    ),
    (
        Kind.SUBSCRIBED,
        encoded(S.Subscribed, modelDigest=bytes(32), outputs=[{"name": "o", "nan": 2}]),
        "nan of 0..1",
        "2",
    ),
    (Kind.SUBSCRIBED, encoded(S.Subscribed, modelDigest=bytes(32), outputs=[{}]), "name of 1..64 bytes", "0 bytes"),
    (
        Kind.SUBSCRIBED,
        encoded(S.Subscribed, modelDigest=bytes(32), outputs=[{"name": "o", "unit": "u" * 65}]),
        "unit of 0..64 bytes",
        "65 bytes",
    ),
    (Kind.COMMAND, encoded(S.Command, argument="a" * 4097), "argument of 0..4096 bytes", "4097 bytes"),
]


@pytest.mark.parametrize(("kind", "body", "expected", "found"), BAD)
def test_what_breaks_a_rule_is_refused(kind: Kind, body: bytes, expected: str, found: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        m.decode(kind, body)
    error = caught.value
    assert (error.what, error.expected, error.found) == (kind.name, expected, found)
    assert (error.in_reply_to, error.code) == (kind, RefusalCode.PROTOCOL)


def test_the_limits_themselves_are_allowed() -> None:
    sixty_four = tuple(dataclasses.replace(OUTPUT, name=f"o{index}", shape=(1,) * 8) for index in range(64))
    for message in (
        m.Hello(m.Role.CAMERA, "x" * 64),
        m.Bye("r" * 4096),
        m.Subscribe("m" * 64),
        dataclasses.replace(SUBSCRIBED, outputs=sixty_four),
    ):
        kind = m.kind_of_message(message)
        assert m.decode(kind, m.encode(message)[8:]) == message


def test_an_ordinal_of_a_newer_peer_can_be_refused_by_name() -> None:
    assert m.decode(Kind.HELLO, encoded(S.Hello, role=9, name="x")) == m.Hello(m.Role.UNSPECIFIED, "x")
    assert m.decode(Kind.COMMAND, encoded(S.Command, command=99)) == m.Command(m.CommandKind.UNSPECIFIED)
    body = encoded(S.OpenStream, stream="road", format={"range": 9})
    with pytest.raises(FormatError, match="range: expected one of"):
        m.decode(Kind.OPEN_STREAM, body)


def test_a_body_that_is_not_one_canonical_message_is_refused() -> None:
    good = m.encode(m.Bye("x"))[8:]
    for bad in (b"", good[:-8], good + bytes(8), b"\1" + good[1:]):
        with pytest.raises(RemoteProtocolError) as caught:
            m.decode(Kind.BYE, bad)
        assert (caught.value.expected, caught.value.in_reply_to) == ("one canonical message", Kind.BYE)


def test_a_body_of_another_struct_is_refused() -> None:
    """A list where a struct is due, and text that is not UTF-8."""
    text_root = bytes.fromhex("0000000002000000010000000a0000000000000000000000")
    for bad in (text_root, m.encode(m.Bye("xyz"))[8:].replace(b"xyz", b"\xffyz")):
        with pytest.raises(RemoteProtocolError) as caught:
            m.decode(Kind.BYE, bad)
        assert (caught.value.what, caught.value.expected) == ("BYE", "a message of its struct")
        assert "\n" not in caught.value.found


@pytest.mark.parametrize(
    "message",
    [
        m.StreamOpened(-1, 1),
        m.StreamOpened(1 << 32, 1),
        m.SetAux("a", 1 << 63, b""),
        m.Hello(m.Role.CAMERA, ""),
        m.Hello(m.Role.CAMERA, "\ud800"),
        m.Subscribe("Lane"),
        m.Refusal(RefusalCode.OK, 0, "", "", "", ""),
        m.OpenStream("road", dataclasses.replace(stream_format(), width=1 << 32)),
        dataclasses.replace(SUBSCRIBED, model_digest=b""),
        dataclasses.replace(SUBSCRIBED, outputs=(dataclasses.replace(OUTPUT, shape=(-1,)),)),
        m.Reply(m.CommandKind.STATUS, "x" * 65536),
        m.SetAux("a", 0, bytes(65536)),
    ],
)
def test_we_do_not_send_what_a_peer_would_refuse(message: m.Message) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        m.encode(message)
    assert m.kind_of_message(message).name in caught.value.what


def test_the_largest_reply_fills_the_packet() -> None:
    overhead = 8 + 8 + 24  # header, segment table, root pointer, data word, text pointer
    body = "x" * (65536 - overhead - 1)  # and the text's closing NUL
    assert len(m.encode(m.Reply(m.CommandKind.STATUS, body))) == 65536
    with pytest.raises(LocalProtocolError, match="REPLY: expected at most 65536 bytes, found "):
        m.encode(m.Reply(m.CommandKind.STATUS, body + "x"))


def test_a_refusal_that_quotes_too_much_is_cut_not_lost() -> None:
    long = m.Refusal(RefusalCode.LIMIT, 5, "é" * 5000, "\ud800", "f" * 70000, "a")
    cut = m.decode(Kind.REFUSAL, m.encode(long)[8:])
    assert cut == m.Refusal(RefusalCode.LIMIT, 5, "é" * 512, "?", "f" * 1024, "a")


def test_names() -> None:
    assert all(m.is_name(name) for name in ("road", "a", "0", "a.b-c_d9", "x" * 64))
    assert not any(m.is_name(name) for name in ("", "Road", "a b", "ä", "a/b", "x" * 65, "road\n", "\0"))


@pytest.mark.parametrize("count", [1, 11, 12, 13, m.MAX_OUTPUTS])
def test_a_subscription_with_many_outputs_of_many_dimensions_comes_back(count: int) -> None:
    """Reading walks each list more than once: the limit on what may be read must allow for it."""
    outputs = tuple(dataclasses.replace(OUTPUT, name=f"o{at}", shape=(1,) * m.MAX_DIMENSIONS) for at in range(count))
    message = dataclasses.replace(SUBSCRIBED, outputs=outputs)
    assert m.decode(Kind.SUBSCRIBED, m.encode(message, 1)[8:]) == message


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind])
def test_a_refusal_may_answer_any_kind_given_as_a_kind(kind: Kind) -> None:
    refusal = m.Refusal(RefusalCode.LIMIT, kind, "what", "expected", "found", "action")
    read = m.decode(Kind.REFUSAL, m.encode(refusal)[8:])
    assert read == refusal
    assert isinstance(read, m.Refusal)
    assert read.in_reply_to == int(kind)
