"""What `[realtime]` asks of the kernel: the thread that serves has it, threads that load do not, a lack is refused."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client.errors import Refused
from daemon.config import Realtime
from daemon.realtime import RealtimeCode, RealtimeRefused, apply
from tests.daemon.test_process import Process
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import picture, run_one

OLD, NEW = TinyModel(), TinyModel("add", version="2.0.0", release=2)
CORE = max(os.sched_getaffinity(0))
ALL = f"[realtime]\nfifo_priority = 5\ncores = [{CORE}]\nlock_memory = true\nmemory_limit_bytes = 8589934592\n"
# Gives up every right and asks for each thing in turn: prints the codes, and whether anything has changed.
_WITHOUT_RIGHTS = """
import json, os, resource, sys
sys.path.insert(0, sys.argv[1])
from client.errors import Refused
from daemon.config import Realtime
from daemon.realtime import RealtimeRefused, apply

resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
resource.setrlimit(resource.RLIMIT_DATA, (1 << 32, 1 << 32))
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
codes = []
for wanted in (
    Realtime(fifo_priority=5), Realtime(cores=(4095,)), Realtime(lock_memory=True), Realtime(memory_limit_bytes=1 << 33)
):
    try:
        apply(wanted)
    except RealtimeRefused as refused:
        codes.append([refused.code.value, refused.expected, refused.found, refused.todo])
print(json.dumps({"refused": codes, "policy": os.sched_getscheduler(0)}))
"""


def _field(path: Path, name: str) -> str:
    return next(line.split(":")[1].strip() for line in path.read_text().splitlines() if line.startswith(name))


def _of_threads(pid: int, ask: Callable[[int], Any]) -> Iterator[Any]:
    """What the kernel says of each thread but the first; one that loaded a model may have ended since it was listed."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if task.name != str(pid):
            with contextlib.suppress(ProcessLookupError):
                found = ask(int(task.name))
                yield frozenset(found) if isinstance(found, set) else found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may use SCHED_FIFO and lock all memory")
def test_the_thread_that_serves_has_what_was_asked_for_and_those_that_load_have_no_priority(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    daemon = Process(vehicle_site, tmp_path, [maker.write(OLD)], maker, more=ALL)
    child = daemon.start()
    try:
        with daemon.camera() as camera, daemon.consumer() as consumer, daemon.control() as control:
            run_one(camera, consumer, 1, picture(1))
            control.activate(maker.write(NEW))  # after the seal, and in locked memory
            run_one(camera, consumer, 2, picture(2))
            assert control.status()["realtime"]["fifo_priority"] == 5
        reset_on_fork = os.sched_getscheduler(child.pid) & os.SCHED_RESET_ON_FORK
        assert os.sched_getscheduler(child.pid) == os.SCHED_FIFO | reset_on_fork
        assert reset_on_fork
        assert set(_of_threads(child.pid, os.sched_getscheduler)) == {os.SCHED_OTHER}
        assert set(_of_threads(child.pid, os.sched_getaffinity)) == {frozenset({CORE})}
        assert os.sched_getaffinity(child.pid) == {CORE}
        status = Path(f"/proc/{child.pid}/status")
        locked, resident = (int(_field(status, name).split()[0]) for name in ("VmLck", "VmRSS"))
        assert locked > resident > 0  # every mapping, of which pages stay once they are used
        assert resource.prlimit(child.pid, resource.RLIMIT_DATA) == (8 << 30, 8 << 30)
        assert daemon.stop() == 0
    finally:
        child.kill()
        child.communicate()


def test_what_the_kernel_does_not_give_is_refused_by_name_and_changes_nothing() -> None:
    command = [sys.executable, "-c", _WITHOUT_RIGHTS, str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    order = (RealtimeCode.PRIORITY, RealtimeCode.CORES, RealtimeCode.LOCKED_MEMORY, RealtimeCode.MEMORY_LIMIT)
    assert [one[0] for one in found["refused"]] == [code.value for code in order]
    assert all(all(words) for words in found["refused"])
    assert found["policy"] == os.SCHED_OTHER


def test_a_daemon_that_is_refused_its_cores_ends_before_it_serves(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    daemon = Process(vehicle_site, tmp_path, [maker.write(OLD)], maker, more="[realtime]\ncores = [4095]\n")
    done = daemon.fenced("serve", "--config", str(daemon.config_path))
    assert done.returncode == 3
    assert "realtime-cores: realtime.cores: expected cores of" in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_bundle_beyond_the_memory_limit_is_refused_with_the_numbers(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    more = "[realtime]\nmemory_limit_bytes = 1073741824\n"
    daemon = Process(vehicle_site, tmp_path, [maker.write(OLD)], maker, more=more)
    child = daemon.start()
    try:
        large = maker.write(NEW, edit_graph=lambda graph: replace(graph, arena_bytes=2 << 30))
        with daemon.camera() as camera, daemon.consumer() as consumer, daemon.control() as control:
            with pytest.raises(Refused, match=r"memory.*RLIMIT_DATA"):
                control.activate(large)
            run_one(camera, consumer, 1, picture(1))
        assert daemon.stop() == 0
    finally:
        child.kill()
        child.communicate()


def test_nothing_is_asked_for_where_nothing_is_configured() -> None:
    before = os.sched_getaffinity(0), os.sched_getscheduler(0), resource.getrlimit(resource.RLIMIT_DATA)
    apply(Realtime())
    assert before == (os.sched_getaffinity(0), os.sched_getscheduler(0), resource.getrlimit(resource.RLIMIT_DATA))


def test_the_refusal_reads_as_a_sentence() -> None:
    with pytest.raises(RealtimeRefused, match=r"realtime\.cores: expected cores of .*, found .4095.; name others"):
        apply(Realtime(cores=(4095,)))
