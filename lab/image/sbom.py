"""The image's bill of materials: CycloneDX 1.6 JSON, the same bytes for the same wheels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from lab.image.target import ImageTarget
from lab.image.wheels import Wheel
from lab.json_text import json_text
from signing.image import IMAGE_TYPE


def bill_of_materials(version: str, target: ImageTarget, wheels: Sequence[tuple[Wheel, int]]) -> bytes:
    """What is in the image: each wheel by its SHA-256, with the number of its files that were kept."""
    parts = [
        Component(
            name=wheel.project, version=wheel.version, type=ComponentType.LIBRARY, bom_ref=wheel.project,
            purl=PackageURL("pypi", name=wheel.project, version=wheel.version),
            hashes=[] if wheel.project == "fenced" else [_hash_of(wheel)],
            properties=[Property(name="fenced:wheel", value=wheel.path.name),
                        Property(name="fenced:keptFiles", value=str(kept))],
        )
        for wheel, kept in wheels
    ]  # fmt: skip
    image = Component(
        name="fenced-image", version=version, type=ComponentType.APPLICATION, bom_ref="image",
        properties=[Property(name="fenced:arch", value=target.arch),
                    Property(name="fenced:python", value=target.python)],
    )  # fmt: skip
    seed = " ".join((IMAGE_TYPE, version, target.arch, target.python, *(wheel.path.name for wheel, _ in wheels)))
    bom = Bom(components=parts, metadata=BomMetaData(component=image), serial_number=uuid5(NAMESPACE_URL, seed))
    bom.register_dependency(image, parts)
    bom.metadata.timestamp = None  # type: ignore[assignment]  # optional in the format; the library insists on now
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    return json_text(document, sort_keys=True, indent=1).encode() + b"\n"


def _hash_of(wheel: Wheel) -> HashType:
    """Our own wheel is built here and its archive's times differ; the others are as their index serves them."""
    return HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(wheel.path.read_bytes()).hexdigest())
