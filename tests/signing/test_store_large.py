"""Large files: beyond 2 GiB, and within the memory that the file itself takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from signing import container, statement, store, trust
from signing.envelope import BUNDLE_PAYLOAD_TYPE
from signing.refusal import RefusalCode
from signing.statement import Blob
from tests.simulators import NOW_UNIX_S, BundleSimulator, refusal, sign_payload

GIB = 1024**3
BIG_BYTES = 2 * GIB + 1
# SHA-256 of 2 GiB + 1 zero bytes: `head -c 2147483649 /dev/zero | sha256sum`
ZEROS_SHA256 = "b8030a8ab89280935633d8d991da3d9907c0f12e8b6fc3bfc515f4d440872b6e"


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.skipif(available_bytes() < 4 * GIB, reason="needs 4 GiB of free memory for a 2 GiB bundle")
def test_last_byte_beyond_2_gib_counts(tmp_path: Path) -> None:  # case 31
    sim = BundleSimulator(tmp_path)
    document = statement.Statement(
        model=sim.statement.model,
        abi_version=1,
        hal_version=1,
        target=sim.statement.target,
        compiler=sim.statement.compiler,
        blobs=(
            Blob("graph", 1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
            Blob("weights", BIG_BYTES, ZEROS_SHA256),
        ),
    )
    raw = sign_payload(BUNDLE_PAYLOAD_TYPE, statement.encode(document), sim.signers).encode()
    where = container.layout(len(raw), [1, BIG_BYTES])
    with open(sim.path, "wb") as file:
        file.write(container.header(len(raw)) + raw)
        file.truncate(where.file_bytes)
        os.pwrite(file.fileno(), b"\1", where.blobs[1].end_bytes - 1)
    sim.path.chmod(0o644)
    sealed = store.read_bundle(sim.path, limit_bytes=3 * GIB)
    with refusal(RefusalCode.DIGEST_MISMATCH, "blob weights", f"sha256 {ZEROS_SHA256}", sealed.blob_sha256[1]):
        trust.verify_bundle(sealed, sim.fresh_trust(), machine=sim.machine, now_unix_s=NOW_UNIX_S)


_MEASURE = """
import sys
from signing import store
def high_water_kib():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM:")).split()[1])
before = high_water_kib()
sealed = store.read_bundle(sys.argv[1], limit_bytes=1 << 30)
print((high_water_kib() - before) * 1024, sealed.size_bytes)
"""


def test_reading_takes_the_file_s_size_and_little_more(tmp_path: Path) -> None:
    sim = BundleSimulator(tmp_path)
    sim.blobs["weights"] = bytes(range(256)) * (256 * 1024)
    sim.write()
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(sim.path)], cwd=root, check=True, capture_output=True, text=True
    )
    risen_bytes, file_bytes = map(int, done.stdout.split())
    assert file_bytes > 64 * 1024**2
    assert risen_bytes <= file_bytes + 16 * 1024**2


_SEALED_IMPORTS = """
import sys
from pathlib import Path
from signing import store, trust
class Guard:
    def find_spec(self, name, path=None, target=None):
        raise AssertionError(f"imported {name} after the start")
sys.meta_path.insert(0, Guard())
trusted = store.open_trust([sys.argv[2]], sys.argv[3])
machine = trust.Machine("cpu", "x86_64", frozenset({"avx2", "fma"}), 1 << 30, 1, 1)
verified = trust.verify_bundle(
    store.read_bundle(sys.argv[1], limit_bytes=1 << 30), trusted, machine=machine, now_unix_s=int(sys.argv[4])
)
store.write_state(sys.argv[3], trusted.confirm(verified).state)
try:
    store.read_bundle(sys.argv[2], limit_bytes=1 << 30)
except Exception as refused:
    print(refused.code.value, verified.digest)
"""


def test_verifying_imports_nothing_after_the_start(tmp_path: Path) -> None:
    sim = BundleSimulator(tmp_path)
    digest = sim.verify().digest
    root_path = tmp_path / "root.json"
    root_path.write_bytes(sim.fresh_trust().state.root_envelope)
    root_path.chmod(0o644)
    arguments = [str(sim.path), str(root_path), str(tmp_path / "state.json"), str(NOW_UNIX_S)]
    done = subprocess.run(
        [sys.executable, "-c", _SEALED_IMPORTS, *arguments],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["bad-container", digest]
