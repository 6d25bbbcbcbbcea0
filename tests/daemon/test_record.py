"""An installation that is not what its wheel held is refused."""

import shutil
import subprocess
from pathlib import Path

import pytest

from daemon.guard import DirtyProcess
from daemon.record import assert_as_installed
from tests.support import vehicle


@pytest.fixture
def site(vehicle_site: Path, tmp_path: Path) -> Path:
    """A copy of the vehicle's own packages that a test may spoil."""
    copy = tmp_path / "site"
    for name in ("abi", "hal", "signing", "client", "daemon"):
        shutil.copytree(vehicle_site / name, copy / name)
    record = next(vehicle_site.glob("fenced-*.dist-info"))
    shutil.copytree(record, copy / record.name)
    return copy


def test_an_untouched_installation_passes(site: Path) -> None:
    assert assert_as_installed(str(site)) > 10


def test_a_changed_file_is_named(site: Path) -> None:
    (site / "daemon" / "guard.py").write_text("def install(): pass\n")
    with pytest.raises(DirtyProcess, match=r"daemon/guard\.py differs"):
        assert_as_installed(str(site))


def test_a_missing_file_is_named(site: Path) -> None:
    (site / "abi" / "frame.capnp").unlink()
    with pytest.raises(DirtyProcess, match=r"abi/frame\.capnp: No such file"):
        assert_as_installed(str(site))


def test_an_added_file_is_named(site: Path) -> None:
    (site / "hal" / "extra.py").write_text("")
    with pytest.raises(DirtyProcess, match=r"hal/extra\.py is not of the wheel"):
        assert_as_installed(str(site))


def test_a_daemon_whose_files_were_changed_refuses_to_start(site: Path, vehicle_site: Path, tmp_path: Path) -> None:
    for found in vehicle_site.iterdir():
        if not (site / found.name).exists():
            (site / found.name).symlink_to(found)
    with (site / "daemon" / "pipeline.py").open("a") as source:
        source.write("# a line more\n")
    done = subprocess.run(
        vehicle.command("-m", "client.cli", "serve", "--config", str(tmp_path / "fenced.toml")),
        env=vehicle.environment(site),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "dirty-process: daemon/pipeline.py differs from the wheel's RECORD" in done.stderr


def test_byte_code_beside_the_sources_is_no_change(site: Path) -> None:
    (site / "hal" / "__pycache__").mkdir()
    (site / "hal" / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"")
    assert assert_as_installed(str(site)) > 10


def test_sources_without_a_wheel_are_refused(site: Path) -> None:
    shutil.rmtree(next(site.glob("fenced-*.dist-info")))
    with pytest.raises(DirtyProcess, match="0 installed fenced wheels"):
        assert_as_installed(str(site))


def test_an_editable_installation_is_refused(site: Path) -> None:
    record = next(site.glob("fenced-*.dist-info")) / "RECORD"
    record.write_text("__editable___fenced_finder.py,sha256=abc,3\n")
    with pytest.raises(DirtyProcess, match="lists nothing of abi"):
        assert_as_installed(str(site))
