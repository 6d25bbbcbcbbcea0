"""What would not fit into memory is refused with the numbers, before it is read or before its code is mapped."""

from __future__ import annotations

import resource
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from abi.graph import Graph
from client.errors import Refused
from daemon import memory_room
from daemon.memory_room import MemoryRoom, Need, Room, need_of
from daemon.refusal import ModelRefused
from tests.daemon.test_models import delay_loads
from tests.support.bundles import OUT_BYTES, PIXELS, BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, picture, run_one
from tests.support.descriptors import open_descriptors

OLD = TinyModel("add", number=3)
NEW = TinyModel("add", version="2.0.0", release=2, number=50)
MIB = 1 << 20
VERSIONS = {
    "0": ("memory.max", "memory.current", "inactive_file"),
    "4": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def with_arena(graph: Graph) -> Graph:
    """The same with 8 GiB of arena."""
    return replace(graph, arena_bytes=8 << 30)


def room(folder: Path, limit_bytes: int = 0, held_bytes: int = 0) -> MemoryRoom:
    """Over a machine whose files a test wrote."""
    return MemoryRoom(limit_bytes, lambda: held_bytes, proc=str(folder / "proc"), cgroups=str(folder / "cgroup"))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_candidate_that_does_not_fit_beside_what_is_loaded_is_refused_with_the_numbers(
    tmp_path: Path, maker: BundleMaker
) -> None:
    new = maker.write(NEW)
    size = new.stat().st_size
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker, more=f"[limits]\nloaded_bytes = {4 * MIB}\n") as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        before = control.status()["device"]["memory"]
        small = maker.write(replace(NEW, version="3.0.0", release=3), edit_graph=with_arena)
        with pytest.raises(Refused, match=r"memory: memory for tiny") as refused:
            control.activate(small)
        assert "that limits.loaded_bytes leaves" in refused.value.expected
        assert f"arena {8 << 30}" in refused.value.found
        with pytest.raises(Refused, match=r"memory: memory for tiny"):
            control.shadow(small)
        assert control.status()["device"]["memory"] == before
        assert np.array_equal(run_one(camera, consumer, 1, picture(1)).outputs["values"], OLD.values(picture(1)))
        with small.open("r+b") as file:
            file.truncate(size + 8 * MIB)
        with pytest.raises(Refused, match=rf"memory for the file .*found {size + 8 * MIB} bytes"):
            control.activate(small)  # before it is read
        assert control.activate(new)["release"] == 2


def test_what_is_needed_is_what_the_device_then_holds(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel("total"))], maker) as daemon:
        held = daemon.status()["device"]["memory"]
        graph = daemon.service.roster.pipelines["tiny"].model.graph
    need = need_of(graph, held["code_bytes"], 0, ring_slots=8, maps_weights=True)
    assert (need.arena, need.state, need.code) == (held["arena_bytes"], held["state_bytes"], held["code_bytes"])
    assert need.state == OUT_BYTES
    assert need.bound == 2 * OUT_BYTES == held["allocated_bytes"]
    assert need.ring == 8 * 8192  # a line of 64 bytes and the outputs, in whole pages
    assert need.total == sum((need.arena, need.state, need.weights, need.code, need.bound, need.ring))
    assert need_of(graph, 1, 100, ring_slots=2, maps_weights=False).weights == 100
    assert need.bound > PIXELS  # the frames of the self-test are the smaller part here


def test_what_can_never_serve_again_gives_its_memory_back_once_its_successor_is_confirmed(
    tmp_path: Path, maker: BundleMaker
) -> None:
    old = maker.write(OLD)
    with (
        DaemonThread(tmp_path, [old], maker, more="[limits]\nprobation_frames = 2\n") as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        alone = control.status()["device"]["memory"]
        control.activate(maker.write(NEW))
        run_one(camera, consumer, 1, picture(1))
        assert control.status()["device"]["memory"]["executables"] == 2  # there is a way back until it is confirmed
        run_one(camera, consumer, 2, picture(2))
        daemon.wait_for(lambda status: status["models"][0]["previous"] is None)
        assert control.status()["device"]["memory"] == alone
        assert (run_one(camera, consumer, 3, picture(3)).outputs["values"] == NEW.values(picture(3))).all()


def test_nothing_is_unloaded_while_a_bundle_is_being_loaded(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    third, gate = maker.write(TinyModel("add", version="3.0.0", release=3, number=9)), threading.Event()
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker, more="[limits]\nprobation_frames = 1\n") as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.activate(maker.write(NEW))
        delay_loads(monkeypatch, gate)
        activation = threading.Thread(target=control.activate, args=(third,))
        activation.start()
        daemon.wait_for(lambda status: daemon.service.switching.activator.busy)
        for sequence in (1, 2):
            run_one(camera, consumer, sequence, picture(sequence))
        (model,) = daemon.status()["models"]
        assert (model["probation_frames_left"], model["previous"]) == (0, "tiny 1.0.0 (release 1)")
        gate.set()
        activation.join()
        assert daemon.status()["models"][0]["previous"] == "tiny 2.0.0 (release 2)"


def test_the_least_room_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert room(tmp_path).free() is None  # nothing can be seen: nothing is refused
    room(tmp_path).require("m", Need(1 << 62, 0, 0, 0, 0, 0), 0)
    write(tmp_path / "proc" / "meminfo", "MemTotal: 9000 kB\nMemAvailable: 3000 kB\n")
    assert room(tmp_path).free() == Room(3000 * 1024, "the machine (MemAvailable)")
    assert room(tmp_path, limit_bytes=10 * MIB, held_bytes=9 * MIB).free(MIB // 2) == Room(
        MIB // 2, "limits.loaded_bytes"
    )
    write(tmp_path / "proc" / "self" / "statm", "500 1 1 1 0 100 0")
    pages = memory_room._PAGE_BYTES
    monkeypatch.setattr(
        resource, "getrlimit", lambda limit: (600 * pages if limit == resource.RLIMIT_AS else 150 * pages, 0)
    )
    assert room(tmp_path).free() == Room(50 * pages, "RLIMIT_DATA")


@pytest.mark.parametrize(
    ("membership", "folder"),
    [
        ("0::/system/fenced", "system/fenced"),
        ("0::/system/fenced", "system"),  # the one above it
        ("4:memory:/a/b", "memory/a"),
        ("4:memory:/host/path", "memory"),
    ],
)
def test_a_cgroups_limit_counts_and_its_page_cache_is_free(tmp_path: Path, membership: str, folder: str) -> None:
    limit, usage, dropped = VERSIONS[membership[0]]
    write(tmp_path / "proc" / "self" / "cgroup", f"3:cpu:/x\n{membership}\n")
    group = tmp_path / "cgroup" / folder
    write(group / limit, f"{10 * MIB}\n")
    write(group / usage, f"{7 * MIB}\n")
    found = room(tmp_path)
    assert found.free() == Room(3 * MIB, f"the cgroup ({group}/{limit})")
    write(group / "memory.stat", f"anon 5\n{dropped} {2 * MIB}\n")
    assert room(tmp_path).free() == Room(5 * MIB, f"the cgroup ({group}/{limit})")
    write(group / usage, f"{11 * MIB}\n")
    with pytest.raises(ModelRefused, match="at most the 0 bytes that the cgroup"):  # read anew each time
        found.require("m", Need(1, 0, 0, 0, 0, 0), 0)
    write(group / limit, "max\n")
    found.require("m", Need(1, 0, 0, 0, 0, 0), 0)


def test_a_daemon_that_ends_leaves_no_descriptor_open(tmp_path: Path, maker: BundleMaker) -> None:
    bundle = maker.write(TinyModel())
    seen = []
    for turn in ("first", "second", "third"):
        (tmp_path / turn).mkdir()
        with DaemonThread(tmp_path / turn, [bundle], maker):
            pass
        seen.append(len(open_descriptors()))
    assert seen[2] <= seen[1]  # the first opens what the process keeps; earlier tests may have closed some since
