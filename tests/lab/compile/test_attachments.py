"""A bundle carries its bill of materials, accuracy report and provenance, bound by hash, equal for equal compiles."""

from __future__ import annotations

import hashlib
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from lab.compile.attachments import QUEUE_SOURCES, TOOLS
from lab.compile.compiler import compile_spec
from lab.compile.report import CompileReport
from lab.sign.pack import open_checked
from signing.statement import MODEL_BLOBS
from tests.lab.compile.tiny_models import write_spec


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompileReport]:
    folder = tmp_path_factory.mktemp("attached")
    return folder, compile_spec(write_spec(folder), folder / "tiny.fenced")


@pytest.fixture(scope="module")
def blobs(compiled: tuple[Path, CompileReport]) -> dict[str, bytes]:
    with open_checked(compiled[0] / "tiny.fenced") as (sealed, _, stated):
        listed = {one.name: one.media_type for one in stated.attachments}
        assert listed == {
            "sbom.json": "application/vnd.cyclonedx+json",
            "accuracy.json": "application/json",
            "provenance.json": "application/vnd.in-toto+json",
        }
        return {one.name: bytes(sealed.view(span)) for one, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}


def digests(blobs: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(blobs[name]).hexdigest() for name in MODEL_BLOBS}


def test_the_bill_of_materials_is_cyclonedx_and_lists_what_is_in_the_bundle(
    blobs: dict[str, bytes], compiled: tuple[Path, CompileReport]
) -> None:
    text = blobs["sbom.json"].decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bom: Any = json.loads(text)
    found = {one["name"]: one["hashes"][0]["content"] for one in bom["components"]}
    (model,) = compiled[0].glob("*.onnx")
    assert found.pop(model.name) == hashlib.sha256(model.read_bytes()).hexdigest()
    for name in QUEUE_SOURCES:
        found.pop(name)
    assert found == digests(blobs)
    tools = {one["name"]: one["version"] for one in bom["metadata"]["tools"]["components"]}
    assert tools == {name: version(name) for name in TOOLS}


def test_the_accuracy_report_holds_every_check_that_was_passed(
    blobs: dict[str, bytes], compiled: tuple[Path, CompileReport]
) -> None:
    report = json.loads(blobs["accuracy.json"])
    assert report["checks"] == [{"name": one.name, "seen": one.seen} for one in compiled[1].checks]
    assert {one["name"] for one in report["checks"]} >= {"onnxruntime", "captured = packed and run by the HAL"}
    assert report["blobs"] == digests(blobs)


def test_the_provenance_names_spec_model_and_tools(
    blobs: dict[str, bytes], compiled: tuple[Path, CompileReport]
) -> None:
    stated = json.loads(blobs["provenance.json"])
    assert {one["name"]: one["digest"]["sha256"] for one in stated["subject"]} == digests(blobs)
    build = stated["predicate"]["buildDefinition"]
    spec = build["externalParameters"]["spec"]
    assert spec["digest"]["sha256"] == hashlib.sha256((compiled[0] / spec["name"]).read_bytes()).hexdigest()
    assert f"pkg:pypi/tinygrad@{version('tinygrad')}" in [one.get("uri") for one in build["resolvedDependencies"]]


def test_attachments_tell_nothing_of_folder_or_time_and_are_equal_elsewhere(
    blobs: dict[str, bytes], compiled: tuple[Path, CompileReport], tmp_path: Path
) -> None:
    folder = tmp_path / "another place"
    shutil.copytree(compiled[0], folder)
    (folder / "tiny.fenced").unlink()
    (spec,) = folder.glob("*.toml")
    compile_spec(spec, folder / "tiny.fenced")
    assert (folder / "tiny.fenced").read_bytes() == (compiled[0] / "tiny.fenced").read_bytes()
    for name in ("sbom.json", "accuracy.json", "provenance.json"):
        assert str(compiled[0]).encode() not in blobs[name]
        assert b"timestamp" not in blobs[name]
