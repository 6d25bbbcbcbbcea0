"""The image as a whole: built, bounded, signed, packed, run by the system's interpreter alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from daemon.image import hash_file, tree_files, verify_tree
from lab.image.deb import write_deb
from lab.image.sign import sign_image
from lab.image.target import ImageTarget
from lab.image.tree import ImageReport, build_image
from lab.image.wheels import CHECKOUT
from lab.refusal import LabRefused
from signing.envelope import BUNDLE_PAYLOAD_TYPE
from signing.image import ImageStatement, decode_list, encode, encode_list
from signing.refusal import RefusalCode, Refused
from tests.simulators import RoleKeys, make_root, sign_payload
from tests.support.image import built_image

KEYS = RoleKeys.make()
ROOT = make_root(KEYS)
ALONE = [sys.executable, "-IBS"]
IMPORTS = """
import sys
sys.path.append(sys.argv[1])
from hal.hcq_environment import prepare_environment
prepare_environment("AMD")
from tinygrad.runtime.support import hcq, system
from tinygrad.runtime import ops_amd, ops_nv, ops_qcom
from tinygrad.uop.ops import UOp
from tinygrad.helpers import Context
from hal import opencl_api
print(sorted(name for name in sys.modules if name.startswith("tinygrad.nn.")))
"""


@pytest.fixture
def report() -> ImageReport:
    try:
        return built_image()
    except (OSError, LabRefused) as error:
        pytest.skip(f"the pinned wheels are not to be had: {error}")


@pytest.fixture
def tree(report: ImageReport, tmp_path: Path) -> Iterator[Path]:
    """A signed copy of the image, elsewhere than where it was built."""
    copy = tmp_path / "moved" / "fenced"
    shutil.copytree(report.tree, copy)
    sign_image(copy, KEYS.release[0])
    yield copy
    shutil.rmtree(copy)


def test_the_tree_holds_the_vehicle_and_nothing_that_builds(report: ImageReport) -> None:
    names = {path.relative_to(report.tree).as_posix() for path in report.tree.rglob("*")}
    assert {"bin/fenced", "lib/daemon/serve.py", "share/sbom.json", "share/systemd/fenced.service"} <= names
    assert not [name for name in names if "exporter" in name]  # it is the lab's
    assert {name.split("/")[1] for name in names if name.startswith("lib/") and name.count("/") == 1} == {
        "abi", "hal", "signing", "client", "daemon", "numpy", "numpy.libs", "capnp", "cryptography",
        *(name.split("/")[1] for name in names if ".dist-info" in name or "_cffi_backend" in name),
    }  # fmt: skip
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".cpp", ".h", ".pyi", ".a", ".pth", ".whl"))]
    sources = {name for name in names if name.startswith("lib/") and name.endswith(".py")}
    code = {name for name in names if name.endswith(".pyc")}
    assert len(code) == len(sources) > 300
    assert set(decode_list((report.tree / "files.sha256").read_bytes())) == {
        name for name in names if (report.tree / name).is_file()
    } - {"files.sha256", "image.json"}
    assert report.size_bytes < 100 << 20


def test_the_bill_of_materials_names_every_wheel_by_its_hash(report: ImageReport) -> None:
    text = (report.tree / "share/sbom.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    parts = {one["name"]: one for one in document["components"]}
    assert parts.keys() == {"fenced", "numpy", "pycapnp", "cryptography", "cffi"}
    pinned = (CHECKOUT / "requirements.txt").read_text()
    for name, one in parts.items():
        assert name == "fenced" or f"--hash=sha256:{one['hashes'][0]['content']}" in pinned
    assert "timestamp" not in document["metadata"]


def test_the_moved_tree_is_verified_and_runs_alone(tree: Path) -> None:
    assert verify_tree(str(tree), ROOT).arch == os.uname().machine
    hostile = {"PYTHONPATH": "/nowhere", "PYTHONSTARTUP": "/nowhere", "PATH": "/nowhere"}
    done = subprocess.run(
        [*ALONE, tree / "bin/fenced", "devices"], capture_output=True, text=True, env=hostile, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout
    verify_tree(str(tree), ROOT)  # it has written nothing into itself


def test_another_interpreter_is_told_which_one_is_due(tree: Path) -> None:
    launcher = tree / "bin/fenced"
    text = launcher.read_text().replace("!= (3,", "!= (2,")
    launcher.write_text(text)
    done = subprocess.run([*ALONE, launcher], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "this image is for Python 3." in done.stderr
    with pytest.raises(Refused, match="bin/fenced"):
        verify_tree(str(tree), ROOT)


def test_only_a_whole_tree_is_signed_and_only_by_the_role(tree: Path) -> None:
    with pytest.raises(Refused) as refused:
        sign_image(tree, KEYS.build[0], root=ROOT)
    assert refused.value.code is RefusalCode.THRESHOLD_NOT_MET
    sign_image(tree, KEYS.release[0], root=ROOT)
    (tree / "lib/more.py").touch()
    with pytest.raises(Refused, match=r"more\.py"):
        sign_image(tree, KEYS.release[0])
    with pytest.raises(Refused, match=r"more\.py"):
        write_deb(tree, tree.with_name("fenced.deb"))


def test_the_package_holds_tree_units_and_an_example_configuration(tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed (Debian package dpkg)")
    tree, deb = _small_tree(tmp_path), tmp_path / "fenced.deb"
    assert write_deb(tree, deb) == deb.stat().st_size
    fields = subprocess.run(["dpkg-deb", "--field", deb], capture_output=True, text=True, check=True).stdout
    assert "Architecture: arm64\n" in fields
    assert "Depends: python3.12," in fields
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "--extract", deb, root], check=True)
    assert verify_tree(str(root / "opt/fenced"), ROOT).version == "1.2.3"
    assert (root / "usr/lib/systemd/system/fenced.service").is_file()
    assert (root / "etc/fenced/fenced.toml").is_file()
    assert os.access(root / "opt/fenced/bin/fenced", os.X_OK)
    assert write_deb(tree, tmp_path / "again.deb")
    assert (tmp_path / "again.deb").read_bytes() == deb.read_bytes()


def _small_tree(folder: Path) -> Path:
    """A signed image for another machine than this, that holds hardly anything."""
    tree = folder / "small"
    shutil.copytree(CHECKOUT / "systemd", tree / "share/systemd")
    shutil.copy(CHECKOUT / "LICENSE", tree / "share/LICENSE")
    (tree / "bin").mkdir()
    (tree / "bin/fenced").write_text("#!/bin/sh\n")
    (tree / "bin/fenced").chmod(0o755)
    listed = encode_list({path: hash_file(str(tree / path)) for path in tree_files(str(tree))})
    (tree / "files.sha256").write_bytes(listed)
    payload = encode(ImageStatement("1.2.3", "aarch64", "3.12", hash_file(str(tree / "files.sha256"))))
    (tree / "image.json").write_bytes(sign_payload(BUNDLE_PAYLOAD_TYPE, payload, KEYS.release).encode())
    return tree


def test_an_image_of_another_python_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(LabRefused, match="byte code: expected Python 2"):
        build_image(tmp_path / "image", replace(ImageTarget("x86_64"), python="2.7"), tmp_path / "wheels")
    with pytest.raises(ValueError, match="x86_64 or aarch64"):
        ImageTarget("riscv64")
    with pytest.raises(FileExistsError):
        build_image(tmp_path, ImageTarget("x86_64"), tmp_path / "wheels")


slow = pytest.mark.skipif(not os.environ.get("FENCED_SLOW"), reason="set FENCED_SLOW=1: builds the image again")


@slow
def test_two_builds_are_equal_byte_for_byte(report: ImageReport, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(CHECKOUT, source, ignore=lambda folder, names: set(names) & {".venv", ".git", "build", "out"})
    wheels = CHECKOUT / "build" / "image" / report.target.arch
    first = build_image(tmp_path / "first", report.target, wheels, source=source)
    second = build_image(tmp_path / "second", report.target, wheels, source=source)
    assert (first.tree / "image.json").read_bytes() == (second.tree / "image.json").read_bytes()
    for one in (first, second):
        sign_image(one.tree, KEYS.release[0])
        write_deb(one.tree, one.tree.with_suffix(".deb"))
    assert first.tree.with_suffix(".deb").read_bytes() == second.tree.with_suffix(".deb").read_bytes()


@slow
def test_every_driver_imports_from_the_pruned_tinygrad(report: ImageReport) -> None:
    tree = built_image(accelerator=True).tree
    done = subprocess.run([*ALONE, "-c", IMPORTS, tree / "lib"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tinygrad.nn.onnx" not in done.stdout
    assert "tinygrad.nn.torch" not in done.stdout
    assert not (tree / "lib/tinygrad/nn/datasets.py").exists()
