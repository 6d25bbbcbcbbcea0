"""What of each wheel goes onto the vehicle, and what never does."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from lab.image.prune import RULES, select
from lab.image.wheels import CHECKOUT, requirement


def test_what_the_vehicle_must_never_hold_is_kept_of_no_wheel() -> None:
    never = ["tinygrad/nn/datasets.py", "tinygrad/nn/torch.py", "tinygrad/nn/onnx.py", "tinygrad/runtime/ops_cpu.py",
             "tinygrad/runtime/support/compiler_llvm.py", "numpy/f2py/__init__.py", "numpy/testing/__init__.py",
             "numpy/_core/tests/test_umath.py", "capnp/lib/capnp.cpp",
             "capnp/_gen.py", "cffi/recompiler.py"]  # fmt: skip
    for path in never:
        assert not any(rule.keeps(path) for rule in RULES.values()), path


def test_every_pinned_distribution_has_a_rule() -> None:
    pinned = re.findall(r"^([a-z0-9-]+)==", (CHECKOUT / "requirements.txt").read_text(), re.MULTILINE)
    assert pinned
    assert set(pinned) <= RULES.keys()
    with pytest.raises(ValueError, match="no rule"):
        select("left-pad", ["left_pad/__init__.py"])


def test_licences_go_with_what_is_kept_and_with_nothing_else() -> None:
    licence = "cffi-2.0.dist-info/licenses/LICENSE"
    assert select("cffi", ["_cffi_backend.abi3.so", "cffi/api.py", licence]) == ["_cffi_backend.abi3.so", licence]
    assert select("cffi", ["cffi/api.py", licence]) == []


def test_a_pin_is_taken_with_its_hashes_and_no_other() -> None:
    text = "tiny==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\ntinygrad==2.0 \\\n    --hash=sha256:cc\n"
    assert requirement(text, "tiny") == "tiny==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    assert requirement(text, "tinygrad") == "tinygrad==2.0 \\\n    --hash=sha256:cc\n"
    with pytest.raises(ValueError, match="make lock"):
        requirement(text, "grad")


def test_every_module_of_the_vehicle_is_kept() -> None:
    for package in ("abi", "hal", "signing", "client", "daemon"):
        for path in (CHECKOUT / package).iterdir():
            if path.is_file():
                assert RULES["fenced"].keeps(f"{package}/{path.name}")
    assert not fnmatch.fnmatchcase("labels/x.py", "lab/*")
    assert not RULES["fenced"].keeps(str(Path("lab/cli.py")))
