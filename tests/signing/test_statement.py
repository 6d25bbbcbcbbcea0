"""The statement: both ways without loss, and nothing in it that its reader does not know."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from signing import statement
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from signing.statement import (
    NAME_FORM,
    Attachment,
    Blob,
    Compiler,
    Model,
    RequiredAlgorithms,
    Statement,
    Target,
    decode,
    encode,
)
from tests.simulators import HYBRID, NOW_UNIX_S, refusal

DIGESTS = ["0123456789abcdef" * 4, "f" * 64, "0" * 64]
STATED = Statement(
    model=Model("lane", "1.2.3-rc.1+b5", 2**63 - 1),
    abi_version=2**16 - 1,
    hal_version=0,
    target=Target("cpu", "x86_64", ("avx2", "fma"), 2**63 - 1, "10de:2330 rev A"),
    compiler=Compiler("0.14.0", (("beam", 4), ("flags", "-O2 -fPIC"), ("noopt", True))),
    blobs=(Blob("graph", 10, DIGESTS[0]), Blob("weights", 0, DIGESTS[1]), Blob("sbom.json", 2**63 - 1, DIGESTS[2])),
    expires_unix_s=NOW_UNIX_S,
    required_algorithms=RequiredAlgorithms((Algorithm.ED25519,), HYBRID),
    attachments=(Attachment("sbom.json", "application/vnd.cyclonedx+json"),),
)
NAMES_REFUSED = [
    "../x",
    "/x",
    "a//b",
    "",
    "a\0",
    "n" * 65,
    "n" * 300,
    "__class__",
    ".",
    "..",
    "-x",
    "ü",
    "a b",
    "a\n",
    "x/../y",
    "a\\b",
]


def changed(edit: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(encode(STATED))
    edit(document)
    return json.dumps(document).encode()


def put(path: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Return an edit that sets `path` ('predicate.model.name', 'subject.0.name') to `value`."""

    def edit(document: dict[str, Any]) -> None:
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        node: Any = document
        for part in parents:
            node = node[part]
        node[last] = value

    return edit


def test_statement_comes_back_as_it_was_written() -> None:
    assert decode(encode(STATED)) == STATED
    plain = replace(STATED, target=replace(STATED.target, device_id=None), expires_unix_s=None)
    assert decode(encode(plain)) == plain


def test_document_is_an_in_toto_statement() -> None:
    assert json.loads(encode(STATED)) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "graph", "digest": {"sha256": DIGESTS[0]}},
            {"name": "weights", "digest": {"sha256": DIGESTS[1]}},
            {"name": "sbom.json", "digest": {"sha256": DIGESTS[2]}},
        ],
        "predicateType": "urn:fenced:bundle:v1",
        "predicate": {
            "model": {"name": "lane", "version": "1.2.3-rc.1+b5", "release": 2**63 - 1},
            "abiVersion": 65535,
            "halVersion": 0,
            "target": {
                "driver": "cpu",
                "arch": "x86_64",
                "cpuFeatures": ["avx2", "fma"],
                "minMemoryBytes": 2**63 - 1,
                "deviceId": "10de:2330 rev A",
            },
            "compiler": {"tinygrad": "0.14.0", "options": {"beam": 4, "flags": "-O2 -fPIC", "noopt": True}},
            "expires": "2027-01-15T08:00:00Z",
            "blobs": [
                {"name": "graph", "sizeBytes": 10},
                {"name": "weights", "sizeBytes": 0},
                {"name": "sbom.json", "sizeBytes": 2**63 - 1},
            ],
            "requiredAlgorithms": {"build": ["ed25519"], "release": ["ed25519", "ml-dsa-65"]},
            "attachments": [{"name": "sbom.json", "mediaType": "application/vnd.cyclonedx+json"}],
        },
    }


def test_equal_statements_are_equal_bytes() -> None:
    shuffled = json.dumps(dict(reversed(json.loads(encode(STATED)).items())), indent=1).encode()
    assert encode(decode(shuffled)) == encode(STATED)


def test_encoding_refuses_what_decoding_would() -> None:
    with pytest.raises(Refused, match=r"model\.name"):
        encode(replace(STATED, model=Model("a/b", "1.0.0", 1)))


@pytest.mark.parametrize(
    "path",
    [
        *("_type", "subject", "predicateType", "predicate", "subject.0.name", "subject.0.digest"),
        *(f"predicate.{name}" for name in ("model", "abiVersion", "halVersion", "target", "compiler")),
        *("predicate.expires", "predicate.blobs"),
        *(f"predicate.{name}" for name in ("requiredAlgorithms", "attachments", "model.name", "model.version")),
        *(f"predicate.{name}" for name in ("model.release", "target.driver", "target.arch", "target.cpuFeatures")),
        *(f"predicate.{name}" for name in ("target.minMemoryBytes", "compiler.tinygrad", "compiler.options")),
        *(f"predicate.{name}" for name in ("blobs.0.name", "blobs.0.sizeBytes", "requiredAlgorithms.build")),
        *(f"predicate.{name}" for name in ("requiredAlgorithms.release", "attachments.0.name")),
        "predicate.attachments.0.mediaType",
    ],
)
def test_missing_field_is_refused_by_its_place(path: str) -> None:  # runtime case 11
    def drop(document: dict[str, Any]) -> None:
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        node: Any = document
        for part in parents:
            node = node[part]
        del node[last]

    with pytest.raises(Refused) as refused:
        decode(changed(drop))
    where = "statement." + path.replace(".0", "[0]")
    assert (refused.value.code, refused.value.what) == (RefusalCode.BAD_STATEMENT, where)
    assert refused.value.found == "nothing"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "subject.0",
            "subject.0.digest",
            "predicate",
            "predicate.model",
            "predicate.target",
            "predicate.compiler",
        ),
        *("predicate.blobs.0", "predicate.requiredAlgorithms", "predicate.attachments.0"),
    ],
)
def test_unknown_field_is_refused_by_its_place(path: str) -> None:
    where = ("statement." + path).rstrip(".").replace(".0", "[0]")
    with refusal(RefusalCode.BAD_STATEMENT, where, f"no field beyond those of {where}", "unknown field 'x'"):
        decode(changed(put(f"{path}.x".lstrip("."), 1)))


BAD = RefusalCode.BAD_STATEMENT


@pytest.mark.parametrize(
    ("path", "value", "code", "expected"),
    [
        ("_type", "https://in-toto.io/Statement/v0.1", BAD, "https://in-toto.io/Statement/v1"),
        ("predicateType", "https://slsa.dev/provenance/v1", BAD, "urn:fenced:bundle:v1"),
        ("subject", [{}] * 65, BAD, "an array of at most 64 items"),
        ("subject.0", [], BAD, "an object"),
        ("subject.0.digest.sha256", "F" * 64, RefusalCode.BAD_ENCODING, "64 lowercase hexadecimal digits"),
        ("predicate", 3, BAD, "an object"),
        ("predicate.abiVersion", 65536, BAD, "an integer from 0 to 65535"),
        ("predicate.abiVersion", -1, BAD, "an integer from 0 to 65535"),
        ("predicate.halVersion", 65536, BAD, "an integer from 0 to 65535"),
        ("predicate.halVersion", -1, BAD, "an integer from 0 to 65535"),
        ("predicate.model.release", 2**63, BAD, "an integer from 0 to 9223372036854775807"),
        ("predicate.model.release", -1, BAD, "an integer from 0 to 9223372036854775807"),
        ("predicate.target.minMemoryBytes", 2**63, BAD, "an integer from 0 to 9223372036854775807"),
        ("predicate.target.minMemoryBytes", -1, BAD, "an integer from 0 to 9223372036854775807"),
        ("predicate.target.cpuFeatures", ["a"] * 257, BAD, "an array of at most 256 items"),
        ("predicate.target.deviceId", None, BAD, "printable ASCII"),
        ("predicate.target.deviceId", "", BAD, "printable ASCII"),
        ("predicate.target.deviceId", "x" * 129, BAD, "printable ASCII"),
        ("predicate.compiler.tinygrad", "\x1b[0m", BAD, "printable ASCII"),
        ("predicate.compiler.options", {f"o{i}": 1 for i in range(65)}, BAD, "an object of at most 64 members"),
        ("predicate.expires", "2027-01-15", BAD, "a time like 2027-01-31T00:00:00Z, not before 1970"),
        ("predicate.blobs", {}, BAD, "an array of at most 64 items"),
        ("predicate.blobs", [], BAD, "3 items, one a subject"),
        ("predicate.blobs.1.name", "graph", BAD, "'weights' as in subject[1]"),
        ("predicate.blobs.0.sizeBytes", 2**64 - 1, RefusalCode.BAD_JSON, ""),
        ("predicate.blobs.0.sizeBytes", 2**63, BAD, "an integer from 0 to 9223372036854775807"),
        ("predicate.blobs.0.sizeBytes", -1, BAD, "an integer from 0 to 9223372036854775807"),
        ("predicate.attachments", 5, BAD, "an array of at most 64 items"),
        ("predicate.attachments.0.mediaType", "text", BAD, "a media type"),
        ("predicate.attachments.0.mediaType", "text/plain\n", BAD, "a media type"),
    ],
    ids=itertools.count(),
)
def test_value_out_of_range_is_refused(path: str, value: object, code: RefusalCode, expected: str) -> None:
    with pytest.raises(Refused) as refused:
        decode(changed(put(path, value)))
    assert refused.value.code is code
    if code is not RefusalCode.BAD_JSON:
        assert refused.value.expected == expected
        place = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split("."))
        assert refused.value.what == f"statement{place}"


@pytest.mark.parametrize(
    "version",
    ["1", "1.0", "01.0.0", "1.0.0-", "1.0.0+", "v1.0.0", "1.0.0 ", "1.0.0.0", "1.0.x", "1234567890.0.0", ""],
    ids=itertools.count(),
)
def test_odd_version_is_refused(version: str) -> None:
    with refusal(BAD, "statement.predicate.model.version", "a semantic version", repr(version)):
        decode(changed(put("predicate.model.version", version)))


@pytest.mark.parametrize(
    "version", ["0.0.0", "1.2.3", "10.20.30-alpha.1", "1.0.0+build.5", "1.0.0-rc.1+7", "123456789.0.0"]
)
def test_semantic_version_is_read(version: str) -> None:
    assert decode(changed(put("predicate.model.version", version))).model.version == version


@pytest.mark.parametrize("name", NAMES_REFUSED, ids=itertools.count())
@pytest.mark.parametrize(
    "path",
    [
        "subject.0.name",
        "predicate.blobs.0.name",
        "predicate.attachments.0.name",
        "predicate.model.name",
        "predicate.target.driver",
        "predicate.target.arch",
        "predicate.target.cpuFeatures.0",
    ],
    ids=itertools.count(),
)
def test_odd_name_is_refused(path: str, name: str) -> None:  # case 20
    where = "statement" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split("."))
    with pytest.raises(Refused) as refused:
        decode(changed(put(path, name)))
    assert (refused.value.code, refused.value.what, refused.value.expected) == (RefusalCode.BAD_NAME, where, NAME_FORM)


@pytest.mark.parametrize("name", ["a", "A9", "x86_64", "sse4.2", "n" * 64, "9", "a..b"])
def test_plain_name_is_read(name: str) -> None:
    assert decode(changed(put("predicate.model.name", name))).model.name == name


def test_duplicate_names_are_refused() -> None:  # cases 9, 20
    def twice(document: dict[str, Any]) -> None:
        document["subject"][1]["name"] = document["predicate"]["blobs"][1]["name"] = "graph"

    with refusal(RefusalCode.BAD_NAME, "statement.subject", "each name once", "'graph' more than once"):
        decode(changed(twice))
    with refusal(
        RefusalCode.BAD_NAME, "statement.predicate.target.cpuFeatures", "each name once", "'fma' more than once"
    ):
        decode(changed(put("predicate.target.cpuFeatures", ["avx2", "fma", "fma"])))
    raw = encode(STATED).replace(b'"name":"lane"', b'"name":"lane","name":"lane"')
    with refusal(RefusalCode.BAD_JSON, "statement", "each key once in an object", "'name' twice"):
        decode(raw)
    both = [{"name": "sbom.json", "mediaType": "text/a"}, {"name": "sbom.json", "mediaType": "text/b"}]
    with refusal(
        RefusalCode.BAD_NAME, "statement.predicate.attachments", "each name once", "'sbom.json' more than once"
    ):
        decode(changed(put("predicate.attachments", both)))


def test_blob_that_nobody_reads_is_refused() -> None:  # case 24
    def smuggle(document: dict[str, Any]) -> None:
        document["subject"][1]["name"] = document["predicate"]["blobs"][1]["name"] = "jit.pkl"

    expected = "one of graph, code, weights, goldens, or a listed attachment"
    with refusal(RefusalCode.UNKNOWN_BLOB, "statement.subject", expected, "'jit.pkl'"):
        decode(changed(smuggle))


def test_bundle_without_a_graph_is_refused() -> None:
    def rename(document: dict[str, Any]) -> None:
        document["subject"][0]["name"] = document["predicate"]["blobs"][0]["name"] = "code"

    with refusal(
        RefusalCode.UNKNOWN_BLOB, "statement.subject", "a blob 'graph'", "only ['code', 'sbom.json', 'weights']"
    ):
        decode(changed(rename))


@pytest.mark.parametrize("name", ["absent.json", "weights"])
def test_attachment_must_be_a_blob_of_its_own(name: str) -> None:
    extra = [{"name": "sbom.json", "mediaType": "a/b"}, {"name": name, "mediaType": "a/b"}]
    with refusal(RefusalCode.UNKNOWN_BLOB, "statement.predicate.attachments", "a subject's name", repr(name)):
        decode(changed(put("predicate.attachments", extra)))


@pytest.mark.parametrize("role", ["build", "release"])
def test_required_algorithms_are_known_and_at_least_one(role: str) -> None:  # case 5
    where = f"statement.predicate.requiredAlgorithms.{role}"
    path = f"predicate.requiredAlgorithms.{role}"
    with refusal(RefusalCode.UNKNOWN_ALGORITHM, where, "at least one algorithm", "none"):
        decode(changed(put(path, [])))
    with refusal(RefusalCode.UNKNOWN_ALGORITHM, f"{where}[1]", "one of ed25519, ml-dsa-65", "'none'"):
        decode(changed(put(path, ["ed25519", "none"])))
    with refusal(BAD, where, "each algorithm once", "ed25519 twice"):
        decode(changed(put(path, ["ed25519", "ed25519"])))
    with refusal(BAD, where, "an array of at most 2 items", "3 items"):
        decode(changed(put(path, ["ed25519"] * 3)))


@pytest.mark.parametrize("value", [None, [], {}, "ü", "a\n", "x" * 1025], ids=itertools.count())
def test_odd_option_is_refused(value: object) -> None:
    expected = "an integer, a boolean, or at most 1024 characters of printable ASCII"
    with pytest.raises(Refused) as refused:
        decode(changed(put("predicate.compiler.options", {"flags": value})))
    assert refused.value.code is BAD
    assert (refused.value.what, refused.value.expected) == ("statement.predicate.compiler.options.flags", expected)


def test_option_names_and_values() -> None:
    where = "statement.predicate.compiler.options"
    with refusal(RefusalCode.BAD_NAME, where, NAME_FORM, "'a b'"):
        decode(changed(put("predicate.compiler.options", {"a b": 1})))
    options = {"_z": "x" * 1024, "A.b-c": "", "b": False, "n": -5}
    assert decode(changed(put("predicate.compiler.options", options))).compiler.options == tuple(
        sorted(options.items())
    )


def test_payload_is_bounded() -> None:
    with refusal(RefusalCode.BAD_JSON, "statement", "at most 262144 bytes", "262145 bytes"):
        statement.decode(b" " * 262145)


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [("1970-01-01T00:00:00Z", 0), ("2027-01-15T08:00:00Z", NOW_UNIX_S), ("9999-12-31T23:59:59Z", 253402300799)],
)
def test_times_are_utc_seconds(text: str, unix_s: int) -> None:
    read = decode(changed(put("predicate.expires", text)))
    assert read.expires_unix_s == unix_s
    assert json.loads(encode(read))["predicate"]["expires"] == text


@pytest.mark.parametrize(
    "text",
    [
        "2027-01-15T08:00:00",
        "2027-01-15T08:00:00+00:00",
        "2027-01-15T08:00:00.0Z",
        "2027-01-15 08:00:00Z",
        "20270115T080000Z",
        "2027-02-30T00:00:00Z",
        "2027-01-15T24:00:00Z",
        "2027-01-15T08:00:60Z",
        "1969-12-31T23:59:59Z",
        "0000-01-01T00:00:00Z",
        "2027-01-15T08:00:00z",
        "٢٠٢٧-01-15T08:00:00Z",
        " 2027-01-15T08:00:00Z",
        "",
    ],
    ids=itertools.count(),
)
def test_odd_time_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="a time like 2027-01-31T00:00:00Z, not before 1970") as refused:
        decode(changed(put("predicate.expires", text)))
    assert (refused.value.code, refused.value.what) == (BAD, "statement.predicate.expires")


@pytest.mark.parametrize("unix_s", [-1, 253402300800])
def test_time_that_cannot_be_written_is_an_error(unix_s: int) -> None:
    with pytest.raises(ValueError, match=f"between 0 and 253402300799 s since 1970, not {unix_s}"):
        encode(replace(STATED, expires_unix_s=unix_s))
