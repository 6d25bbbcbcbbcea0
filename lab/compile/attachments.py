"""What goes with a bundle besides the model: bill of materials, accuracy report and provenance, each a JSON blob.

They are hash-bound and listed in the statement like every blob, so whoever signs signs them too; the vehicle carries
them and reads none. Nothing in them depends on the time, the folder or the user: equal compiles attach equal bytes.
Sources: CycloneDX 1.6 (by its own library); in-toto Statement v1 with the predicate of SLSA Provenance v1.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from lab.compile.checks import CheckResult
from lab.compile.spec import Spec
from lab.json_text import json_text
from signing.statement import OptionValue

TOOLS = ("fenced", "fenced-lab", "numpy", "onnx", "onnxruntime", "tinygrad", "ziglang")
"""Distributions that shape the bundle or judge it."""
QUEUE_SOURCES = ("queue.c", "queue.h", "memory.c")
"""Our own C that is linked into every CPU bundle's code."""
ACCURACY_TYPE = "urn:fenced:accuracy:v1"
BUILD_TYPE = "urn:fenced:compile:v1"
BUILDER = "urn:fenced:lab"


@dataclass(frozen=True)
class Attached:
    """One attachment: its media type and bytes."""

    media_type: str
    data: bytes


@dataclass(frozen=True)
class Sources:
    """What a compile started from, by SHA-256 (lowercase hex): the spec, files by name, and ONNX models as checked.

    models: by entrypoint; none of a Python file, which is run, and not turned into another form.
    """

    spec: str
    files: tuple[tuple[str, str], ...]
    models: tuple[tuple[str, str], ...]


def sources(spec: Spec, models: Mapping[str, bytes]) -> Sources:
    """The digests of what stands on the disk now; `models`: the ONNX model that was compiled, by entrypoint."""
    files = dict.fromkeys(one.source for one in spec.entries)
    return Sources(
        spec=_sha256(spec.path.read_bytes()),
        files=tuple((one.name, _sha256(one.read_bytes())) for one in files),
        models=tuple((name, _sha256(data)) for name, data in models.items()),
    )


def attachments(
    spec: Spec,
    parts: Mapping[str, bytes],
    origin: Sources,
    options: Sequence[tuple[str, OptionValue]],
    checked: Sequence[CheckResult],
) -> dict[str, Attached]:
    """Every attachment of the bundle whose model blobs are `parts`, by its blob's name."""
    digests = {name: _sha256(data) for name, data in parts.items()}
    return {
        "sbom.json": Attached("application/vnd.cyclonedx+json", bill_of_materials(spec, digests, origin)),
        "accuracy.json": Attached("application/json", accuracy(spec, digests, checked)),
        "provenance.json": Attached("application/vnd.in-toto+json", provenance(spec, digests, origin, options)),
    }


def bill_of_materials(spec: Spec, digests: Mapping[str, str], origin: Sources) -> bytes:
    """What is in the bundle and which tools made it, as CycloneDX JSON."""
    queue = [Component(name=name, type=ComponentType.FILE, bom_ref=f"source-{name}", hashes=[_hash(digest)])
             for name, digest in _queue_digests().items()] if spec.target.driver == "cpu" else []  # fmt: skip
    blobs = [
        Component(name=name, type=ComponentType.FILE, bom_ref=f"blob-{name}", hashes=[_hash(digest)])
        for name, digest in digests.items()
    ]
    files = [
        Component(name=name, type=ComponentType.MACHINE_LEARNING_MODEL, hashes=[_hash(digest)],
                  bom_ref="source-model" if number == 0 else f"source-model-{number}")
        for number, (name, digest) in enumerate(origin.files)
    ]  # fmt: skip
    subject = Component(
        name=spec.model.name, version=spec.model.version, type=ComponentType.MACHINE_LEARNING_MODEL, bom_ref="bundle",
        properties=[Property(name="fenced:release", value=str(spec.model.release))],
    )  # fmt: skip
    tools = [
        Component(name=name, version=found, type=ComponentType.APPLICATION, bom_ref=f"tool-{name}",
                  purl=PackageURL("pypi", name=name, version=found))
        for name, found in _versions().items()
    ]  # fmt: skip
    bom = Bom(
        components=[*files, *queue, *blobs],
        metadata=BomMetaData(component=subject, tools=ToolRepository(components=tools)),
        serial_number=uuid5(NAMESPACE_URL, " ".join((BUILD_TYPE, *digests.values()))),
    )
    bom.register_dependency(subject, blobs)
    for blob in blobs:
        bom.register_dependency(blob, [*files, *queue] if blob.name == "code" else files)
    bom.metadata.timestamp = None  # type: ignore[assignment]  # optional in the format; the library insists on now
    return _encode(json.loads(JsonV1Dot6(bom).output_as_string()))


def accuracy(spec: Spec, digests: Mapping[str, str], checked: Sequence[CheckResult]) -> bytes:
    """Every check that the blobs of `digests` passed, and what it saw."""
    return _encode(
        {
            "_type": ACCURACY_TYPE,
            "blobs": dict(digests),
            "model": {"name": spec.model.name, "version": spec.model.version, "release": spec.model.release},
            "steps": spec.check.steps,
            **({} if spec.model.function else {"onnxruntimeTolerance": f"{spec.check.onnxruntime_tolerance:g}"}),
            "checks": [{"name": one.name, "seen": one.seen} for one in checked],
        }
    )


def provenance(
    spec: Spec, digests: Mapping[str, str], origin: Sources, options: Sequence[tuple[str, OptionValue]]
) -> bytes:
    """From what, by what and how the blobs were made."""
    tools = _versions()
    materials = [
        {"name": spec.path.name, "digest": {"sha256": origin.spec}},
        *({"name": name, "digest": {"sha256": digest}} for name, digest in origin.files),
        *(
            {"name": f"{name}: model as checked, sizes fixed", "digest": {"sha256": digest}}
            for name, digest in origin.models
        ),
        *({"uri": f"pkg:pypi/{name}@{found}"} for name, found in tools.items()),
    ]
    return _encode(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {"spec": {"name": spec.path.name, "digest": {"sha256": origin.spec}}},
                    "internalParameters": {"driver": spec.target.driver, "arch": spec.target.arch, **dict(options)},
                    "resolvedDependencies": materials,
                },
                "runDetails": {
                    "builder": {"id": BUILDER, "version": {**tools, "python": platform.python_version()}},
                },
            },
        }
    )


def _queue_digests() -> dict[str, str]:
    folder = resources.files("lab.compile")
    return {name: _sha256(folder.joinpath(name).read_bytes()) for name in QUEUE_SOURCES}


def _versions() -> dict[str, str]:
    return {name: version(name) for name in TOOLS}


def _hash(sha256: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=sha256)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encode(document: object) -> bytes:
    return json_text(document, sort_keys=True, indent=1).encode() + b"\n"
