"""The drop ledgers of all streams by name, over every camera that ever held the stream since the daemon started."""

from __future__ import annotations

from collections import Counter

from daemon.camera_stream import CameraStream

Columns = dict[str, int | dict[str, int]]


class Ledgers:
    """Adds up finished streams and the ones that still hold frames."""

    def __init__(self) -> None:
        self._live: list[CameraStream] = []
        self._finished: dict[str, Counter[str]] = {}
        self._refusals: dict[str, Counter[str]] = {}
        self._reasons: dict[str, Counter[str]] = {}
        self._refused_ages_ns: dict[str, int] = {}

    def open(self, stream: CameraStream) -> None:
        """A camera has opened a stream."""
        self._fold()
        self._live.append(stream)

    def columns(self) -> dict[str, Columns]:
        """For every stream name: the ledger's columns, refusals by code, and other reasons for losses.

        `refused_age_ns`, where a frame was refused for its age: the last one's, negative when it lay in the future.
        A wrongly declared clock shows by it.
        """
        self._fold()
        names = dict.fromkeys((*self._finished, *(stream.name for stream in self._live)))
        return {name: self._sum(name) for name in names}

    def _sum(self, name: str) -> Columns:
        columns = Counter(self._finished.get(name, ()))
        refusals = Counter(self._refusals.get(name, ()))
        reasons = Counter(self._reasons.get(name, ()))
        for stream in self._live:
            if stream.name == name:
                _add(stream, columns, refusals, reasons)
                self._note_age(stream)
        sums: Columns = {**columns, "refusals": dict(refusals), "reasons": dict(reasons)}
        if name in self._refused_ages_ns:
            sums["refused_age_ns"] = self._refused_ages_ns[name]
        return sums

    def _note_age(self, stream: CameraStream) -> None:
        if stream.refused_age_ns is not None:
            self._refused_ages_ns[stream.name] = stream.refused_age_ns

    def _fold(self) -> None:
        """Moves the streams that have ended and hold nothing any more into the sums."""
        for stream in [one for one in self._live if one.closed and one.ledger.held == 0]:
            self._live.remove(stream)
            self._note_age(stream)
            _add(
                stream,
                self._finished.setdefault(stream.name, Counter()),
                self._refusals.setdefault(stream.name, Counter()),
                self._reasons.setdefault(stream.name, Counter()),
            )


def _add(stream: CameraStream, columns: Counter[str], refusals: Counter[str], reasons: Counter[str]) -> None:
    for column, count in stream.ledger.as_dict().items():
        if isinstance(count, int):
            columns[column] += count
        else:
            refusals.update(count)
    reasons.update(stream.counters)
