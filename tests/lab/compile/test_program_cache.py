"""Compiled kernels between processes: found again, distrusted where others may write, and without effect on bundles."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.compile.toolchain import compile_context
from tests.lab.compile.tiny_models import write_spec

ROOT = Path(__file__).parents[3]
COMPILE = "import sys; from pathlib import Path; from lab.compile.compiler import compile_spec; " \
          "compile_spec(Path(sys.argv[1]), Path(sys.argv[2]))"  # fmt: skip


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 2):
        yield


def kernel() -> tuple[tuple[Any, ...], Any]:
    """The key and the whole program of a small kernel."""
    from tinygrad import Device, Tensor  # noqa: PLC0415 (the device is open now)
    from tinygrad.codegen import do_to_program, to_program_key  # noqa: PLC0415

    ast = (Tensor.ones(32).contiguous().realize() + 1.5).schedule_linear().src[-1].src[0]
    renderer = Device["CPU"].renderer
    return to_program_key(ast, renderer), do_to_program(ast, renderer)


def new_cache(folder: Path, compiler: str = "cc") -> Any:
    from lab.compile.program_cache import ProgramCache  # noqa: PLC0415

    return ProgramCache(folder, compiler)


def test_another_process_finds_what_a_launch_needs(tmp_path: Path) -> None:
    key, program = kernel()
    new_cache(tmp_path)[key] = program
    found = new_cache(tmp_path)
    assert key in found
    assert found[key].src[2].arg == program.src[2].arg
    assert found[key].to_elf().signature == program.to_elf().signature
    assert found[key].src[0].arg.estimates == program.src[0].arg.estimates


def test_another_compiler_finds_nothing(tmp_path: Path) -> None:
    key, program = kernel()
    new_cache(tmp_path, "one")[key] = program
    assert key not in new_cache(tmp_path, "other")


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_not_read(tmp_path: Path, mode: int) -> None:
    key, program = kernel()
    new_cache(tmp_path)[key] = program
    next(tmp_path.glob("*.pickle")).chmod(mode)
    assert key not in new_cache(tmp_path)


def test_a_damaged_file_means_compiling_again(tmp_path: Path) -> None:
    key, program = kernel()
    new_cache(tmp_path)[key] = program
    path = next(tmp_path.glob("*.pickle"))
    for content in (b"", path.read_bytes()[:-20], b"\x80\x04garbage"):
        path.write_bytes(content)
        assert key not in new_cache(tmp_path)


def test_kernels_of_other_renderers_stay_in_the_process(tmp_path: Path) -> None:
    _, program = kernel()
    cache = new_cache(tmp_path)
    cache["another", "key"] = program
    assert cache["another", "key"] is program
    assert list(tmp_path.iterdir()) == []


def test_cold_and_warm_caches_and_other_processes_give_the_same_bundle(tmp_path: Path) -> None:
    bundles = []
    for run, seed in enumerate(("1", "2", "2")):  # the first two start cold, the third finds the second's kernels
        folder = tmp_path / f"model{run}"
        folder.mkdir()
        bundle = folder / "out.fenced"
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / seed), "PYTHONHASHSEED": seed}
        environment = {name: value for name, value in environment.items() if name not in ("CC", "CACHEDB", "DEV")}
        command = [sys.executable, "-c", COMPILE, str(write_spec(folder)), str(bundle)]
        subprocess.run(command, check=True, cwd=ROOT, env=environment)
        bundles.append(bundle.read_bytes())
    assert bundles[0] == bundles[1] == bundles[2]
    assert list((tmp_path / "2" / "fenced-lab" / "programs").glob("*.pickle"))
