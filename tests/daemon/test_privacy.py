"""Another process of the same user can neither write the daemon's memory nor attach to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import vehicle

# The kernel never refuses root, so the tests of root become another user; that alone makes a process undumpable, which
# is undone to stand for one that was started by that user.
_AS_SOMEBODY = """
import ctypes, os, sys
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
"""
_VICTIM = """
import time
from daemon import guard
guard.install()
from daemon.privacy import close_process
PRELUDE
if "closed" in sys.argv:
    close_process()
memory = os.memfd_create("bundle", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.write(memory, b"verified")
own = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)  # to itself nothing is closed
print(memory, flush=True)
sys.stdin.read()
print(os.pread(memory, 8, 0).decode())
""".replace("PRELUDE", _AS_SOMEBODY)
_ATTACKER = (
    _AS_SOMEBODY
    + """
path = f"/proc/{sys.argv[1]}/fd/{sys.argv[2]}"
libc = ctypes.CDLL(None, use_errno=True)
attached = libc.ptrace(0x4206, int(sys.argv[1]), 0, 0)  # PTRACE_SEIZE, which does not stop it
try:
    os.pwrite(os.open(path, os.O_RDWR), b"tampered", 0)
    print("wrote", attached == 0)
except PermissionError:
    print("refused", attached == 0)
"""
)


@pytest.mark.parametrize(("case", "act", "memory"), [("closed", "refused", "verified"), ("open", "wrote", "tampered")])
def test_only_a_closed_process_keeps_its_memory_from_others_of_its_user(
    vehicle_site: Path, case: str, act: str, memory: str
) -> None:
    victim = subprocess.Popen(
        vehicle.command("-c", _VICTIM, case),
        env=vehicle.environment(vehicle_site),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert victim.stdout is not None
    descriptor = victim.stdout.readline().strip()
    done = subprocess.run(
        [sys.executable, "-c", _ATTACKER, str(victim.pid), descriptor], capture_output=True, text=True, check=False
    )
    words = done.stdout.split()
    left, _ = victim.communicate("", timeout=30)
    if case == "open" and words[:1] != ["wrote"]:
        pytest.skip(f"this kernel keeps every process from its neighbours: {done.stdout}{done.stderr}")
    assert words[0] == act, done.stderr
    assert words[1] == "False" or case == "open"
    assert left.strip() == memory


def test_the_daemon_closes_itself_before_it_reads_its_configuration(vehicle_site: Path, tmp_path: Path) -> None:
    script = """
import ctypes, sys
from daemon import guard
guard.install()
from daemon import config, serve
def load(path):
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)
    raise config.ConfigError(path, "nothing", "nothing")
config.load = load
raise SystemExit(serve.serve(sys.argv[1]))
"""
    done = subprocess.run(
        vehicle.command("-c", script, str(tmp_path / "fenced.toml")),
        env=vehicle.environment(vehicle_site),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (2, "0"), done.stderr
