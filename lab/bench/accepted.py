"""When the daemon accepted each frame: a daemon from the vehicle environment that also notes that instant.

The protocol does not say it (a receipt begins with the run), so this daemon's program wraps the one call that takes a
checked Submit over and writes CLOCK_MONOTONIC to a shared page, by the frame's sequence. Nothing else differs from
`fenced serve`: the same wheel, guarded and sealed.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

ENTRIES = 4096
_PROGRAM = """#!{python} -I
import mmap, os, time
from daemon.camera_stream import CameraStream
page = os.open({page!r}, os.O_RDWR)
times_ns = memoryview(mmap.mmap(page, {size})).cast("q")
receive = CameraStream.receive
def noted(self, submit, now_ns):
    frame = receive(self, submit, now_ns)
    times_ns[submit.sequence % {entries}] = time.monotonic_ns()
    return frame
CameraStream.receive = noted
from client.cli import main
raise SystemExit(main())
"""


class NotingVehicle:
    """A vehicle environment in `folder` whose daemon notes when it accepts; `path` is for `DaemonProcess`."""

    def __init__(self, folder: Path, vehicle: Path) -> None:
        folder = folder.absolute()  # the daemon runs in another
        self.path = folder / "noting"
        page, program = folder / "accepted", self.path / "bin" / "fenced"
        program.parent.mkdir(parents=True)
        page.write_bytes(bytes(8 * ENTRIES))
        python = vehicle.absolute() / "bin" / "python"
        text = _PROGRAM.format(python=python, page=str(page), size=8 * ENTRIES, entries=ENTRIES)
        program.write_text(text)
        program.chmod(0o755)
        descriptor = os.open(page, os.O_RDONLY)
        self._times_ns = memoryview(mmap.mmap(descriptor, 8 * ENTRIES, prot=mmap.PROT_READ)).cast("q")
        os.close(descriptor)

    def accepted_ns(self, sequence: int) -> int:
        """CLOCK_MONOTONIC when the frame of this sequence was the daemon's; among the last ENTRIES frames."""
        return self._times_ns[sequence % ENTRIES]
