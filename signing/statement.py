"""What a bundle binds: an in-toto Statement v1 as frozen values, both ways.

`decode` reads the signed payload strictly (unknown keys, wrong types and ranges refused); `encode` writes the one form
that `decode` reads, deterministically, so equal statements are equal bytes. Blobs stand in the order of the subjects,
which is their order in the file.
Source: github.com/in-toto/attestation, spec/v1/statement.md; the predicate is urn:fenced:bundle:v1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from signing import strict_json
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.keys import Algorithm, algorithm
from signing.refusal import RefusalCode, Refused, shown
from signing.strict_json import Fields
from signing.utc import from_rfc3339, to_rfc3339

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:fenced:bundle:v1"
RELEASE_LIMIT: Final = 2**63 - 1
MODEL_BLOBS: Final = ("graph", "code", "weights", "goldens")
BLOB_LIMIT: Final = 64
_FEATURE_LIMIT: Final = 256

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_FORM: Final = "a name of 1 to 64 letters, digits, '.', '_', '-', beginning with a letter or digit"
_EXACT: Final = re.compile(r"[ -~]{1,128}")
_SEMVER: Final = re.compile(
    r"(?:0|[1-9][0-9]{0,8})(?:\.(?:0|[1-9][0-9]{0,8})){2}(?:-[0-9A-Za-z.-]{1,32})?(?:\+[0-9A-Za-z.-]{1,32})?"
)
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,63}/[A-Za-z0-9!#$&^_.+-]{1,63}")
_OPTION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_OPTION_LIMIT: Final = 64
_OPTION_TEXT: Final = re.compile(r"[ -~]{0,1024}")

OptionValue = str | int | bool


@dataclass(frozen=True)
class Model:
    """Which model this is: its name, semantic version, and the release counter that may only rise on a vehicle."""

    name: str
    version: str
    release: int


@dataclass(frozen=True)
class Target:
    """Which machine it is for. `device_id` is None where any device of the driver will do."""

    driver: str
    arch: str
    cpu_features: tuple[str, ...]
    min_memory_bytes: int
    device_id: str | None = None


@dataclass(frozen=True)
class Compiler:
    """What built it: the tinygrad version and the options, as sorted (name, value) pairs."""

    tinygrad: str
    options: tuple[tuple[str, OptionValue], ...] = ()


@dataclass(frozen=True)
class Blob:
    """One part of the bundle: name, size, and lowercase hex SHA-256 of its bytes without padding."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Attachment:
    """A blob that is not part of the model: its name and media type (SBOM, accuracy report, provenance)."""

    name: str
    media_type: str


@dataclass(frozen=True)
class RequiredAlgorithms:
    """Per role, the algorithms that must all have signed; inside the signed bytes, so none can be stripped."""

    build: tuple[Algorithm, ...] = (Algorithm.ED25519,)
    release: tuple[Algorithm, ...] = (Algorithm.ED25519,)


@dataclass(frozen=True)
class Statement:
    """Everything a bundle's signatures are over. `expires_unix_s` is None for a bundle that does not expire."""

    model: Model
    abi_version: int
    hal_version: int
    target: Target
    compiler: Compiler
    blobs: tuple[Blob, ...]
    expires_unix_s: int | None = None
    required_algorithms: RequiredAlgorithms = RequiredAlgorithms()
    attachments: tuple[Attachment, ...] = ()


def encode(statement: Statement) -> bytes:
    """Return the payload bytes of `statement`: deterministic JSON that `decode` accepts, or raise as `decode` does."""
    target: dict[str, object] = {
        "driver": statement.target.driver,
        "arch": statement.target.arch,
        "cpuFeatures": list(statement.target.cpu_features),
        "minMemoryBytes": statement.target.min_memory_bytes,
    }
    if statement.target.device_id is not None:
        target["deviceId"] = statement.target.device_id
    expires = statement.expires_unix_s
    required = statement.required_algorithms
    document = {
        "_type": STATEMENT_TYPE,
        "predicateType": PREDICATE_TYPE,
        "subject": [{"name": blob.name, "digest": {"sha256": blob.sha256}} for blob in statement.blobs],
        "predicate": {
            "model": {
                "name": statement.model.name,
                "version": statement.model.version,
                "release": statement.model.release,
            },
            "abiVersion": statement.abi_version,
            "halVersion": statement.hal_version,
            "target": target,
            "compiler": {"tinygrad": statement.compiler.tinygrad, "options": dict(statement.compiler.options)},
            "expires": None if expires is None else to_rfc3339(expires),
            "blobs": [{"name": blob.name, "sizeBytes": blob.size_bytes} for blob in statement.blobs],
            "requiredAlgorithms": {
                "build": [one.value for one in required.build],
                "release": [one.value for one in required.release],
            },
            "attachments": [{"name": one.name, "mediaType": one.media_type} for one in statement.attachments],
        },
    }
    payload = strict_json.encode(document)
    decode(payload)
    return payload


def decode(payload: bytes) -> Statement:
    """Return the statement in `payload`, or raise Refused.

    Codes: BAD_JSON, BAD_STATEMENT, BAD_NAME, BAD_ENCODING, UNKNOWN_ALGORITHM, UNKNOWN_BLOB.
    """
    document = strict_json.parse(payload, limit_bytes=ENVELOPE_LIMIT_BYTES, what="statement")
    fields = Fields(document, "statement", RefusalCode.BAD_STATEMENT)
    fields.constant("_type", STATEMENT_TYPE)
    fields.constant("predicateType", PREDICATE_TYPE)
    digests = [_subject(item, i) for i, item in enumerate(fields.items("subject", BLOB_LIMIT))]
    predicate = fields.fields("predicate")
    fields.close()
    statement = Statement(
        model=_model(predicate.fields("model")),
        abi_version=predicate.integer("abiVersion", 0, 2**16 - 1),
        hal_version=predicate.integer("halVersion", 0, 2**16 - 1),
        target=_target(predicate.fields("target")),
        compiler=_compiler(predicate.fields("compiler")),
        blobs=_blobs(predicate, digests),
        expires_unix_s=from_rfc3339(predicate, "expires"),
        required_algorithms=_required(predicate.fields("requiredAlgorithms")),
        attachments=tuple(_attachment(item, i) for i, item in enumerate(predicate.items("attachments", BLOB_LIMIT))),
    )
    predicate.close()
    _require_known_blobs(statement)
    return statement


def _subject(item: object, index: int) -> tuple[str, str]:
    fields = Fields(item, f"statement.subject[{index}]", RefusalCode.BAD_STATEMENT)
    name = fields.text("name", NAME, NAME_FORM, RefusalCode.BAD_NAME)
    digest = fields.fields("digest")
    fields.close()
    sha256 = digest.sha256("sha256")
    digest.close()
    return name, sha256


def _model(fields: Fields) -> Model:
    model = Model(
        name=fields.text("name", NAME, NAME_FORM, RefusalCode.BAD_NAME),
        version=fields.text("version", _SEMVER, "a semantic version"),
        release=fields.integer("release", 0, RELEASE_LIMIT),
    )
    fields.close()
    return model


def _target(fields: Fields) -> Target:
    features = fields.texts("cpuFeatures", _FEATURE_LIMIT, NAME, NAME_FORM, RefusalCode.BAD_NAME)
    _require_unique(features, f"{fields.where}.cpuFeatures")
    target = Target(
        driver=fields.text("driver", NAME, NAME_FORM, RefusalCode.BAD_NAME),
        arch=fields.text("arch", NAME, NAME_FORM, RefusalCode.BAD_NAME),
        cpu_features=features,
        min_memory_bytes=fields.integer("minMemoryBytes", 0, RELEASE_LIMIT),
        device_id=fields.text("deviceId", _EXACT, "printable ASCII") if fields.has("deviceId") else None,
    )
    fields.close()
    return target


def _compiler(fields: Fields) -> Compiler:
    options: list[tuple[str, OptionValue]] = []
    for name, value in sorted(fields.mapping("options", _OPTION_LIMIT).items()):
        where = f"{fields.where}.options"
        if not _OPTION.fullmatch(name):
            raise Refused(RefusalCode.BAD_NAME, where, NAME_FORM, shown(name))
        if not isinstance(value, (str, int)) or (isinstance(value, str) and not _OPTION_TEXT.fullmatch(value)):
            expected = "an integer, a boolean, or at most 1024 characters of printable ASCII"
            raise Refused(RefusalCode.BAD_STATEMENT, f"{where}.{name}", expected, shown(value))
        options.append((name, value))
    compiler = Compiler(fields.text("tinygrad", _EXACT, "printable ASCII"), tuple(options))
    fields.close()
    return compiler


def _blobs(predicate: Fields, digests: list[tuple[str, str]]) -> tuple[Blob, ...]:
    """Join the predicate's sizes with the subjects' digests: the same names in the same order, none twice."""
    blobs: list[Blob] = []
    items = predicate.items("blobs", BLOB_LIMIT)
    if len(items) != len(digests):
        predicate.refuse("blobs", f"{len(digests)} items, one a subject", f"{len(items)} items")
    for i, (item, (name, sha256)) in enumerate(zip(items, digests, strict=True)):
        fields = Fields(item, f"{predicate.where}.blobs[{i}]", RefusalCode.BAD_STATEMENT)
        found = fields.text("name", NAME, NAME_FORM, RefusalCode.BAD_NAME)
        if found != name:
            fields.refuse("name", f"{name!r} as in subject[{i}]", shown(found))
        blobs.append(Blob(name, fields.integer("sizeBytes", 0, RELEASE_LIMIT), sha256))
        fields.close()
    _require_unique([blob.name for blob in blobs], "statement.subject")
    return tuple(blobs)


def _required(fields: Fields) -> RequiredAlgorithms:
    required = RequiredAlgorithms(algorithms(fields, "build"), algorithms(fields, "release"))
    fields.close()
    return required


def algorithms(fields: Fields, name: str) -> tuple[Algorithm, ...]:
    """Take the array `name` of algorithm names: at least one, none twice, all known (else UNKNOWN_ALGORITHM)."""
    where = f"{fields.where}.{name}"
    found = tuple(algorithm(item, f"{where}[{i}]") for i, item in enumerate(fields.items(name, len(Algorithm))))
    if not found:
        fields.refuse(name, "at least one algorithm", "none", RefusalCode.UNKNOWN_ALGORITHM)
    if len(set(found)) != len(found):
        fields.refuse(name, "each algorithm once", f"{found[0].value} twice")
    return found


def _attachment(item: object, index: int) -> Attachment:
    fields = Fields(item, f"statement.predicate.attachments[{index}]", RefusalCode.BAD_STATEMENT)
    attachment = Attachment(
        name=fields.text("name", NAME, NAME_FORM, RefusalCode.BAD_NAME),
        media_type=fields.text("mediaType", _MEDIA_TYPE, "a media type"),
    )
    fields.close()
    return attachment


def _require_unique(names: tuple[str, ...] | list[str], where: str) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Refused(RefusalCode.BAD_NAME, where, "each name once", f"{twice!r} more than once")


def _require_known_blobs(statement: Statement) -> None:
    """Refuse a blob that nobody reads, an attachment that is not there, and a bundle with no graph."""
    where = "statement.subject"
    names = {blob.name for blob in statement.blobs}
    attached = [one.name for one in statement.attachments]
    _require_unique(attached, "statement.predicate.attachments")
    if "graph" not in names:
        raise Refused(RefusalCode.UNKNOWN_BLOB, where, "a blob 'graph'", f"only {shown(sorted(names))}")
    for name in attached:
        if name not in names or name in MODEL_BLOBS:
            raise Refused(RefusalCode.UNKNOWN_BLOB, "statement.predicate.attachments", "a subject's name", shown(name))
    for name in sorted(names):
        if name not in MODEL_BLOBS and name not in attached:
            expected = f"one of {', '.join(MODEL_BLOBS)}, or a listed attachment"
            raise Refused(RefusalCode.UNKNOWN_BLOB, where, expected, shown(name))
