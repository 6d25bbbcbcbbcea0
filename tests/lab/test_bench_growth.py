"""The growth and end-to-end benchmarks measure both sides at every size; those with a daemon are slow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.bench import end_to_end, growth, growth_served, peers
from lab.bench.kernels import LaunchCost
from lab.bench.peaks import Peaks, measure
from tests.support.vehicle import program

slow = pytest.mark.skipif(not os.environ.get("FENCED_SLOW"), reason="set FENCED_SLOW=1: compiles and serves")


@pytest.fixture(scope="module")
def vehicle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("vehicle"))


def test_launches_are_measured_on_both_sides_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LAUNCHES", (1, 3, 4))
    (curve,) = growth.launches(turns=2)
    assert [one.size for one in curve.points] == [1, 3, 4]
    assert all(one.low > 0 and one.theirs > 0 for one in curve.points)


def test_bundles_are_loaded_and_hashed_at_every_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(growth, "BUNDLE_MB", {1: 2, 2: 2})
    (curve,) = growth.bundle_sizes(tmp_path)
    assert [one.size for one in curve.points] == [1, 2]
    assert all(one.low > 0 and one.theirs > 0 for one in curve.points)


@pytest.mark.parametrize(("count", "received", "sent"), [(1, 0, 1), (3, 1, 2)])
def test_bare_packets_come_out_even(count: int, received: int, sent: int) -> None:
    with peers.packets(count, received, sent) as once:
        assert all(once() > 0 for _ in range(50))  # a packet left over would fill a socket, one missing would hang


@slow
def test_frames_of_every_size_are_measured_written_whole_and_not(
    vehicle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(growth_served, "SIZES", {"small": (64, 48), "vga": (640, 480)})
    painted, written = growth_served.frame_sizes(tmp_path, 1, vehicle)
    for curve in (painted, written):
        assert [one.size for one in curve.points] == [0.003072, 0.3072]
        assert all(one.low > 0 and one.theirs > 0 for one in curve.points)


@slow
@pytest.mark.parametrize("name", ["streams", "consumers"])
def test_streams_and_consumers_are_measured_at_every_count(
    name: str, vehicle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(growth_served, "COUNTS", (1, 2))
    (curve,) = getattr(growth_served, name)(tmp_path, 2, vehicle)
    assert [one.size for one in curve.points] == [1, 2]
    assert all(one.low > 0 and one.theirs > 0 for one in curve.points)


@slow
def test_end_to_end_both_sides_give_the_same_values(vehicle: Path, tmp_path: Path) -> None:
    (row,) = end_to_end.run(tmp_path, frames=4, vehicle=vehicle)
    assert row.name == "end to end, lane, 20 Hz"
    assert row.peer == "unpickle, numpy in, TinyJit, .numpy()"
    assert min(row.ours, row.theirs) > 0


@slow
def test_end_to_end_refuses_a_peer_that_computes_something_else(
    vehicle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickle_jit = end_to_end.pickle_jit

    def other(spec: Path, path: Path) -> None:
        text = spec.read_text()
        spec.write_text(text.replace("std = [34.0, 34.0, 34.0]", "std = [35.0, 34.0, 34.0]"))
        pickle_jit(spec, path)

    monkeypatch.setattr(end_to_end, "pickle_jit", other)
    with pytest.raises(RuntimeError, match="different results"):
        end_to_end.run(tmp_path, frames=1, vehicle=vehicle)


def test_a_launch_is_said_beside_measured_peaks() -> None:
    peaks = measure(1)
    assert min(peaks.gflops, peaks.gbytes) > 0
    said = LaunchCost(3, "conv", 2_000, 50_000, 8_000).said(Peaks(100.0, 10.0))
    assert said == "3 conv 2 µs, 25.0 of 100 GFLOP/s, 4.0 of 10 GB/s"
