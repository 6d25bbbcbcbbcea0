"""A recorder on a thread beside the test, and logs made with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from client.camera import Camera
from client.tap import Tap
from lab.replay.log import LogMessage, LogReader, LogWriter
from lab.replay.snapshots import Snapshots
from lab.replay.tap_record import Recorded, Recorder
from tests.support.daemons import LIMIT_S, DaemonThread, picture, submit


class Recording:
    """A recorder on a thread. `finish` ends it; what it has by then is `recorded`."""

    def __init__(self, daemon: DaemonThread, path: Path) -> None:
        self.stop, self.seen = threading.Event(), Recorded()
        self.recorded: Recorded | None = None
        self.log = LogWriter(path)
        self._path, self._sockets = path, daemon.sockets
        tap = Tap.open(daemon.sockets / "consumer.sock", timeout_s=LIMIT_S)
        self._recorder = Recorder(daemon.sockets, self.log, tap)
        self._thread = threading.Thread(target=self._run, name="recorder under test", daemon=True)
        self._thread.start()
        self.wait_for(lambda seen: seen.notes["model"])  # it has subscribed

    def _run(self) -> None:
        def until(recorded: Recorded) -> bool:
            self.seen = recorded
            return self.stop.is_set()

        with self.log:
            self.recorded = self._recorder.run(until)

    def wait_for(self, what: Callable[[Recorded], object]) -> None:
        """Until `what` holds of what is recorded."""
        deadline = time.monotonic() + LIMIT_S
        while not what(self.seen):
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.001)

    def snapshot(self) -> None:
        """Takes a snapshot of every model's state now."""
        with Snapshots(self._sockets, self.log, 1000.0) as snapshots:
            snapshots.begin()

    def finish(self) -> list[LogMessage]:
        """Ends it; the log's messages."""
        self.stop.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        LogReader(self._path).info().verify()
        return list(LogReader(self._path).messages())


@contextmanager
def recording(daemon: DaemonThread, path: Path) -> Iterator[Recording]:
    """A recorder while the context lasts; then the log is whole."""
    recorder = Recording(daemon, path)
    yield recorder
    recorder.finish()


def drive(camera: Camera, recorder: Recording, first: int, count: int) -> None:
    """Frames one by one, each waited for until the recorder has its result."""
    for sequence in range(first, first + count):
        before = sum(recorder.seen.results.values())
        submit(camera, sequence, picture(sequence))
        recorder.wait_for(lambda seen, before=before: sum(seen.results.values()) > before)  # type: ignore[misc]
