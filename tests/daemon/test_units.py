"""The systemd units are well formed, sandboxed as promised, and agree with the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from daemon.config import load
from daemon.journal import MessageId
from daemon.sockets import ROLES

UNITS = Path(__file__).parents[2] / "systemd"
EXPOSURE_LIMIT = 4  # of 100: `systemd-analyze security` shows it as 0.4; the design allows 0.5


def tool(name: str) -> str:
    """The path of a systemd tool; skips the test where systemd is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian package systemd)")
    return found


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units in a folder, with a command that exists on every machine."""
    for unit in UNITS.iterdir():
        text = unit.read_text().replace("/opt/fenced/bin/fenced", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    return tmp_path


def test_the_units_verify(installed: Path) -> None:
    units = [installed / "fenced.service", *(installed / f"fenced-{role}.socket" for role in ROLES)]
    done = run(tool("systemd-analyze"), "verify", "--man=no", *units)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_in_a_unit_would_be_seen(installed: Path) -> None:
    service = installed / "fenced.service"
    service.write_text(service.read_text().replace("WatchdogSec=2s", "WatchdogSecond=2s"))
    assert "WatchdogSecond" in run(tool("systemd-analyze"), "verify", "--man=no", service).stderr


def test_the_sandbox_is_as_tight_as_promised(installed: Path) -> None:
    threshold = f"--threshold={EXPOSURE_LIMIT}"
    service = installed / "fenced.service"
    done = run(tool("systemd-analyze"), "security", "--offline=true", threshold, service)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
    service.write_text(service.read_text().replace("NoNewPrivileges=yes", "NoNewPrivileges=no"))
    service.write_text(service.read_text().replace("PrivateNetwork=yes", "PrivateNetwork=no"))
    assert run(tool("systemd-analyze"), "security", "--offline=true", threshold, service).returncode != 0


def test_the_exporter_may_reach_this_machine_and_the_daemons_control_socket_alone(tmp_path: Path) -> None:
    text = (UNITS / "fenced-exporter.service").read_text()
    unit = tmp_path / "fenced-exporter.service"
    unit.write_text(text.replace("/opt/fenced-lab/bin/fenced-exporter", "/bin/true"))
    done = run(tool("systemd-analyze"), "verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")
    threshold = "--threshold=13"
    assert run(tool("systemd-analyze"), "security", "--offline=true", threshold, unit).returncode == 0
    unit.write_text(unit.read_text().replace("IPAddressDeny=any", ""))
    assert run(tool("systemd-analyze"), "security", "--offline=true", threshold, unit).returncode != 0
    (tmp_path / "etc").mkdir()
    for name in ("fenced", "fenced-exporter"):
        done = run(tool("systemd-sysusers"), f"--root={tmp_path}", UNITS / f"{name}.sysusers")
        assert done.returncode == 0, done.stderr
    assert re.search(r"^fenced-control:.*:fenced-exporter$", (tmp_path / "etc/group").read_text(), re.MULTILINE)


def test_the_sockets_carry_the_names_that_the_daemon_asks_for() -> None:
    for role in ROLES:
        text = (UNITS / f"fenced-{role}.socket").read_text()
        assert f"FileDescriptorName={role}\n" in text
        assert f"ListenSequentialPacket=/run/fenced/{role}.sock\n" in text
        assert f"SocketGroup=fenced-{role}\n" in text
        assert f"fenced-{role}.socket" in (UNITS / "fenced.service").read_text()


def test_users_groups_and_folders_can_be_made(tmp_path: Path) -> None:
    sysusers, tmpfiles = tool("systemd-sysusers"), tool("systemd-tmpfiles")
    for source, folder in (("fenced.sysusers", "sysusers.d"), ("fenced.tmpfiles", "tmpfiles.d")):
        target = tmp_path / "usr/lib" / folder / "fenced.conf"
        target.parent.mkdir(parents=True)
        shutil.copy(UNITS / source, target)
    (tmp_path / "etc").mkdir()
    done = run(sysusers, f"--root={tmp_path}")
    assert done.returncode == 0, done.stderr
    groups = (tmp_path / "etc/group").read_text()
    assert all(f"fenced-{role}:" in groups for role in ROLES)
    done = run(tmpfiles, f"--root={tmp_path}", "--create")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/fenced").is_dir()


def test_the_example_configuration_is_accepted(tmp_path: Path) -> None:
    shutil.copy(UNITS / "fenced.toml", tmp_path / "fenced.toml")
    config = load(str(tmp_path / "fenced.toml"))
    assert config.state_directory == "/var/lib/fenced"
    assert config.bundle_directories == ("/var/lib/fenced-models",)
    assert config.image_manifest_path == "/opt/fenced/image.json"
    assert config.root_paths == ("/run/credentials/fenced.service/root.json",)
    assert "LoadCredential=root.json:/etc/fenced/root.json\n" in (UNITS / "fenced.service").read_text()


def test_the_catalogue_explains_every_kind_of_event_and_no_other() -> None:
    text = (UNITS / "fenced.catalog").read_text()
    entries = re.findall(r"^-- ([0-9a-f]{32})\nSubject: (.+)\nDefined-By: fenced\n\n(.+)", text, re.MULTILINE)
    assert {one for one, _, _ in entries} == {kind.value for kind in MessageId}
    assert set(re.findall("@([A-Z]+)@", text)) <= {"MODEL", "REFUSAL", "PEER", "ACT", "FAULT"}
