"""No byte of a frame is copied on its way to the device: it is handed the camera's own memory, mapped read-only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from hal.accelerator import Executable
from hal.bindings import Bindings
from hal.cpu import CpuAccelerator
from hal.fence import Fence
from hal.memory import create_sealed
from tests.support.bundles import PIXELS, BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, picture, run_one


@dataclass(frozen=True)
class Region:
    """The mapping that an address lies in: its permissions, and the file behind it."""

    permissions: str
    inode: int

    @classmethod
    def of(cls, address: int) -> Region:
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last, permissions, inode = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+)", line).groups()  # type: ignore[union-attr]
            if int(first, 16) <= address < int(last, 16):
                return cls(permissions, int(inode))
        raise AssertionError(f"{address:#x} is not mapped")


@pytest.mark.parametrize(("isolation", "is_the_cameras"), [("lease", True), ("copy", False)])
def test_the_device_is_handed_the_cameras_own_memory(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch, isolation: str, is_the_cameras: bool
) -> None:
    handed: list[Region] = []
    submit = CpuAccelerator.submit

    def looked_at(self: CpuAccelerator, executable: Executable, bindings: Bindings) -> Fence:
        handed.append(Region.of(bindings.addresses[0]))  # of the one frame; as the device reads it
        return submit(self, executable, bindings)

    buffers = [create_sealed("camera", PIXELS) for _ in range(2)]
    inodes = [os.fstat(descriptor).st_ino for descriptor in buffers]
    more = f'[stream.road]\nisolation = "{isolation}"\n'
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=more) as daemon,
        daemon.camera(buffers=buffers) as camera,
        daemon.consumer() as consumer,
    ):
        monkeypatch.setattr(CpuAccelerator, "submit", looked_at)
        for sequence in range(4):
            run_one(camera, consumer, sequence, picture(sequence))
    for descriptor in buffers:
        os.close(descriptor)
    if is_the_cameras:
        assert handed == [Region("r--s", inode) for inode in (*inodes, *inodes)]
    else:
        assert {one.inode for one in handed}.isdisjoint(inodes)
