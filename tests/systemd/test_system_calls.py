"""The unit's SystemCallFilter against a trace: everything that a full run of the installed image uses is in it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from lab.hil.clients import Sockets, picture, run_one
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import config_text
from tests.support.image import built_image
from tests.systemd.machine import until

UNIT = Path(__file__).parents[2] / "systemd" / "fenced.service"
REFUSED = {"mbind"}  # OpenBLAS would place its memory by NUMA node; it goes on without
WITHOUT_SYSTEMD = {"bind", "chown", "listen", "umask", "flock"}  # the daemon binds its sockets itself here


def allowed() -> set[str]:
    """The system calls that the unit allows, its groups resolved by systemd itself."""
    groups: dict[str, set[str]] = {}
    text = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True).stdout
    for block in text.split("\n\n"):
        names = [line.strip() for line in block.splitlines() if line.strip() and not line.strip().startswith("#")]
        if names and names[0].startswith("@"):
            groups[names[0]] = set(names[1:])

    def resolved(name: str) -> set[str]:
        return set().union(*map(resolved, groups[name])) if name in groups else {name}

    found = resolved("@default")
    for value in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE):
        names = set().union(*(resolved(name) for name in value.removeprefix("~").split()))
        found = found - names if value.startswith("~") else found | names
    return found


def is_serving(sockets: Sockets) -> bool:
    """False while the daemon binds its sockets: their files come one by one, and each before anybody listens."""
    try:
        return bool(sockets.status()["state"] == "serving")
    except (FileNotFoundError, ConnectionRefusedError):
        return False


def use(sockets: Sockets, maker: BundleMaker, child: int) -> None:
    """What a daemon is asked for: frames, another model, back, commands, a reload; a peer that is refused."""
    with sockets.camera() as camera, sockets.consumer() as consumer, sockets.control() as control:
        run_one(camera, consumer, 1, picture(1))
        control.activate(maker.write(TinyModel("add", version="2.0.0", release=2, number=9)))
        run_one(camera, consumer, 2, picture(2))
        control.rollback()
        run_one(camera, consumer, 3, picture(3))
        control.drain()
        control.resume()
        control.reset_state("tiny")
        control.metrics()
        entries = control.status()["audit"]["entries"]
        os.kill(child, signal.SIGHUP)
        until(lambda: control.status()["audit"]["entries"] > entries)
    with contextlib.suppress(Exception):
        sockets.camera(stream="nowhere")


def test_a_full_run_uses_nothing_that_the_unit_forbids(tmp_path: Path) -> None:
    if not os.environ.get("FENCED_SLOW"):
        pytest.skip("set FENCED_SLOW=1: builds the image and traces it")
    for tool in ("strace", "systemd-analyze"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (Debian packages strace, systemd)")
    (tmp_path / "models").mkdir()
    maker = BundleMaker(tmp_path / "models")
    config = tmp_path / "fenced.toml"
    config.write_text(config_text(tmp_path, [maker.write(TinyModel("slow"))], maker, ""))
    program, trace = built_image().tree / "bin/fenced", tmp_path / "trace"
    sockets = Sockets(tmp_path / "sockets")
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", trace, program, "serve", "--config", config])
    try:
        until(lambda: is_serving(sockets))
        child = int(Path(f"/proc/{tracer.pid}/task/{tracer.pid}/children").read_text().split()[0])
        use(sockets, maker, child)
        os.kill(child, signal.SIGTERM)
        assert tracer.wait(30) == 0
    finally:
        tracer.kill()
        tracer.wait()
    used = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(errors="replace"), re.MULTILINE))
    assert {"recvmsg", "memfd_create", "futex", "fdatasync"} <= used
    assert used - allowed() - REFUSED - WITHOUT_SYSTEMD == set()
    assert not {"fork", "vfork", "ptrace", "mount", "setuid", "kill", "bpf", "keyctl", "mknod"} & allowed()
