"""What of each wheel goes onto the vehicle: a closed list by distribution; what no rule keeps is left out.

Left out are tests, headers, stubs, sources of compiled modules, whatever builds or compiles, and the parts that no
vehicle package imports. Of tinygrad go along the files that the drivers in `hal` import, never `nn/datasets`,
`nn/torch` and `nn/onnx` (a test imports each driver from a pruned tree). Licences of what is kept are kept too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Rule:
    """Patterns (fnmatch over whole paths: `*` crosses folders). Kept: what a `keep` matches and no `drop` does."""

    keep: tuple[str, ...]
    drop: tuple[str, ...] = ()

    def keeps(self, path: str) -> bool:
        """Whether a wheel's file goes along."""
        return _any(path, self.keep) and not _any(path, self.drop)


_OWN = ("abi/*", "hal/*", "signing/*", "client/*", "daemon/*")
_OTHER_DEVICES = (
    "cl", "cpu", "cuda", "disk", "dsp", "hip", "metal", "npy", "null", "python", "rdma", "tinyfs", "webgpu",
)  # fmt: skip
_OTHER_LIBRARIES = (
    "amd_gpu", "avcodec", "comgr", "comgr_3", "corefoundation", "cuda", "ggml_common", "hip", "iokit", "libclang",
    "llvm", "llvm_qcom", "metal", "mlx5", "nvjitlink", "nvrtc", "qcom_dsp", "rocprof", "webgpu",
)  # fmt: skip
RULES: Mapping[str, Rule] = {
    "fenced": Rule((*_OWN, "fenced-*.dist-info/RECORD", "fenced-*.dist-info/METADATA")),
    "numpy": Rule(
        ("numpy/*.py", "numpy/_core/*.so", "numpy/linalg/*.so", "numpy.libs/*"),
        ("*/tests/*", "numpy/conftest.py", "numpy/matlib.py", "numpy/_configtool.py", "*_tests.*.so", "*/_simd.*.so",
         *(f"numpy/{part}/*" for part in (
            "_pyinstaller", "core", "ctypeslib", "distutils", "doc", "f2py", "fft", "ma", "polynomial", "random",
            "testing")),
         ),
    ),
    "pycapnp": Rule(
        ("capnp/__init__.py", "capnp/version.py", "capnp/*.capnp", "capnp/lib/__init__.py", "capnp/lib/*.so")
    ),
    "cryptography": Rule(("cryptography/*.py", "cryptography/*.so"), ("cryptography/fernet.py", "cryptography/x509/*")),
    "cffi": Rule(("_cffi_backend.*",)),
    "pycparser": Rule(()),
    "jinja2": Rule(()),
    "markupsafe": Rule(()),
    "tinygrad": Rule(
        ("tinygrad/*.py",),
        ("tinygrad/nn/datasets.py", "tinygrad/nn/torch.py", "tinygrad/nn/onnx.py", "tinygrad/engine/worker.py",
         "*/compiler_*.py", "*/compileserver.py", "tinygrad/runtime/support/autogen.py", "*/objc.py",
         "tinygrad/runtime/support/mlx/*", "tinygrad/renderer/amd/*", "tinygrad/renderer/wgsl.py",
         *(f"tinygrad/{part}/*" for part in ("viz", "llm", "apps", "runtime/graph", "runtime/autogen/amd")),
         *(f"tinygrad/runtime/ops_{device}.py" for device in _OTHER_DEVICES),
         *(f"tinygrad/runtime/autogen/{library}.py" for library in _OTHER_LIBRARIES),
         ),
    ),
}  # fmt: skip
_LICENCES = ("*.dist-info/licenses/*", "*.dist-info/LICENSE*", "*.dist-info/COPYING*", "*.dist-info/NOTICE*")


def select(project: str, paths: list[str]) -> list[str]:
    """The paths of a wheel's files that go onto the vehicle. ValueError for a distribution without a rule.

    A distribution of which nothing else is kept leaves no licence either.
    """
    rule = RULES.get(project)
    if rule is None:
        raise ValueError(f"{project}: no rule says what of it a vehicle needs; add one to lab/image/prune.py")
    kept = [path for path in paths if rule.keeps(path)]
    return sorted(kept + [path for path in paths if _any(path, _LICENCES)]) if kept else []


def _any(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
