"""Linking kernels into a bundle's code: shims, refusals, equal bytes, and the CPU features it needs."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from hal.cpu_layout import RUNTIME_SYMBOLS, VERSION
from hal.elf import check_code
from lab.compile import cpu_features, link
from lab.compile.cpu_features import feature_names
from lab.compile.link import Kernel, LinkError, kernel_unit

ARCH = platform.machine()
CPU = {"x86_64": "x86_64_v2", "aarch64": "generic"}[ARCH]
VECTOR = "typedef float float4 __attribute__((aligned(16),ext_vector_type(4)));\n"
MIXED = Kernel(
    VECTOR
    + "void mixed(float* restrict o, const int core_id, const unsigned char* restrict a, const long n, int m) {\n"
    "  o[core_id] = a[core_id] + n * 100 + m;\n}",
    "mixed",
    1,
)


def load(code: bytes, folder: Path) -> ctypes.CDLL:
    path = folder / "code.so"
    path.write_bytes(code)
    return ctypes.CDLL(str(path))


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(LinkError) as caught:
        act()
    return str(caught.value)


def test_a_shim_passes_pointers_then_scalars_and_the_core(tmp_path: Path) -> None:
    library = load(link.link([MIXED], arch=ARCH, cpu=CPU), tmp_path)
    out, data = (ctypes.c_float * 2)(), (ctypes.c_ubyte * 2)(5, 6)
    arguments = (ctypes.c_void_p * 4)(ctypes.addressof(out), ctypes.addressof(data), 3, 0xFFFFFFFFFFFFFFFE)
    for core in (0, 1):
        library.w0(arguments, core)
    assert list(out) == [303.0, 304.0]  # 5 + 300 - 2, 6 + 300 - 2


def test_the_object_may_be_mapped_on_a_vehicle() -> None:
    for arch, cpu in (("x86_64", "x86_64_v3"), ("aarch64", "cortex_a78")):
        code = memoryview(link.link([MIXED, MIXED], arch=arch, cpu=cpu))
        check_code(code, arch, [*RUNTIME_SYMBOLS, link.symbol(0), link.symbol(1)])


def test_header_and_host_state_the_same_version() -> None:
    header = (Path(link.__file__).parent / "queue.h").read_text()
    assert f"#define FENCED_QUEUE_VERSION {VERSION}u" in header


def test_equal_kernels_give_equal_bytes_in_any_folder_and_with_a_cold_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [MIXED] * (link.KERNELS_PER_UNIT + 1)
    first = link.link(kernels, arch=ARCH, cpu=CPU)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cold"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert link.link(kernels, arch=ARCH, cpu=CPU, jobs=1) == first
    assert str(tmp_path).encode() not in first
    assert os.getcwd().encode() not in first


def test_kernels_beyond_one_unit_keep_their_numbers(tmp_path: Path) -> None:
    kernels = [
        Kernel(f"void same(int* restrict o) {{ o[0] = {value}; }}", "same")
        for value in range(link.KERNELS_PER_UNIT + 2)
    ]
    library = load(link.link(kernels, arch=ARCH, cpu=CPU), tmp_path)
    for value in (0, link.KERNELS_PER_UNIT, link.KERNELS_PER_UNIT + 1):
        out = ctypes.c_int()
        getattr(library, link.symbol(value))((ctypes.c_void_p * 1)(ctypes.addressof(out)), 0)
        assert out.value == value


def test_types_that_kernels_share_are_defined_once() -> None:
    text = kernel_unit([MIXED, MIXED], first=7)
    assert text.count("typedef") == 1
    assert "void k7(" in text
    assert "void w8(void **args, int core)" in text
    assert "mixed" not in text


def test_code_that_clears_and_copies_needs_no_library(tmp_path: Path) -> None:
    source = """void big(char* restrict o, const char* restrict a, const int n) {
      char local[4096]; for (int i = 0; i < 4096; i++) local[i] = 0;
      for (int i = 0; i < n; i++) local[i] = a[i];
      for (int i = 0; i < 4096; i++) o[i] = local[i]; }"""
    library = load(link.link([Kernel(source, "big")], arch=ARCH, cpu=CPU), tmp_path)
    out, data = ctypes.create_string_buffer(b"x" * 4096, 4096), ctypes.create_string_buffer(b"abc", 3)
    library.w0((ctypes.c_void_p * 3)(ctypes.addressof(out), ctypes.addressof(data), 3), 0)
    assert out.raw == b"abc" + bytes(4093)


def test_a_call_of_a_library_is_refused_by_name() -> None:
    kernel = Kernel("float expf(float);\nvoid f(float* restrict o) { o[0] = expf(o[0]); }", "f")
    assert refusal(lambda: link.link([kernel], arch=ARCH, cpu=CPU)) == (
        "the kernels call functions that no bundle has: expf; use an operation or a CPU that needs no library call"
    )


def test_bad_sources_are_refused_with_the_compilers_words() -> None:
    broken = Kernel("void f(float* restrict o) { o[0] = nothing; }", "f")
    assert "use of undeclared identifier 'nothing'" in refusal(lambda: link.link([broken], arch=ARCH, cpu=CPU))
    other = Kernel("void g(float* o) {}", "f")
    text = "kernel f: its source does not define `void f(…)`"
    assert refusal(lambda: link.link([other], arch=ARCH, cpu=CPU)) == text
    pointer = Kernel("void f(float* o) {}", "f", 0)
    text = "kernel f: its core index is a pointer: float* o"
    assert refusal(lambda: link.link([pointer], arch=ARCH, cpu=CPU)) == text


def test_unknown_targets_are_refused() -> None:
    assert refusal(lambda: link.link([], arch="riscv64", cpu="generic")).startswith("no target 'riscv64'; known: ")
    assert refusal(lambda: link.features("riscv64", "generic")).startswith("no target 'riscv64'; known: ")
    assert (
        refusal(lambda: link.link([], arch=ARCH, cpu=CPU, optimize="-O0")) == "optimisation '-O0'; expected -O2 or -O3"
    )
    assert "unknown CPU" in refusal(lambda: link.features(ARCH, "nonsense"))


def test_features_are_told_in_cpuinfos_words() -> None:
    assert link.features("x86_64", "x86_64") == ()
    assert link.features("x86_64", "x86_64_v3") == (
        "abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "lahf_lm", "movbe", "pni", "popcnt", "sse4_1",
        "sse4_2", "ssse3",
    )  # fmt: skip
    assert link.features("aarch64", "generic") == ()
    assert link.features("aarch64", "cortex_a78") == (
        "aes", "asimddp", "asimdhp", "asimdrdm", "atomics", "crc32", "fphp", "lrcpc", "pmull", "sha1", "sha2",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "macro", "message"),
    [("x86_64", "__BRANDNEW__", "__BRANDNEW__"), ("aarch64", "__ARM_FEATURE_BRANDNEW", "__ARM_FEATURE_BRANDNEW")],
)
def test_a_feature_the_table_does_not_know_is_an_error(arch: str, macro: str, message: str) -> None:
    baseline = cpu_features.BASELINES[arch]
    told = {baseline: "#define __x 1\n", "new": f"#define __x 1\n#define {macro} 1\n"}
    with pytest.raises(ValueError, match=message):
        feature_names(arch, "new", told.__getitem__)


def test_macros_that_name_the_processor_itself_are_no_features() -> None:
    told = {"x86_64": "", "new": "#define __znver9__ 1\n#define __tune_znver9__ 1\n#define __XSAVE__ 1\n"}
    assert feature_names("x86_64", "new", told.__getitem__) == ()
    told = {"generic": "", "new": "#define __ARM_ARCH 9\n#define __ARM_FEATURE_BTI 1\n"}
    assert feature_names("aarch64", "new", told.__getitem__) == ()
