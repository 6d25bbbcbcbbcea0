"""Frames that scheduling has dropped, kept for a moment so that the stateOnly entrypoint can still see them. Pure.

Recurrent state is a record of the frames before; a frame that never ran leaves a gap in it. Sets are made as scheduling
makes them, by SOF within the skew, oldest first. What is given up comes out with the reason that it was dropped for,
as if it had never been here.
"""

from collections import deque

from daemon.scheduler import Drop


class CatchUp:
    """`positions`: the streams (of the primary's contract) that the stateOnly entrypoint takes, in its order."""

    def __init__(self, positions: tuple[int, ...], max_skew_ns: int) -> None:
        self._queues: dict[int, deque[Drop]] = {position: deque() for position in positions}
        self._max_skew_ns = max_skew_ns

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def offer(self, drop: Drop, most: int) -> list[Drop]:
        """Takes a dropped frame; returns what is given up for it: the oldest beyond `most` of its stream."""
        queue = self._queues.get(drop.frame.stream)
        if queue is None:
            return [drop]
        position = len(queue)
        while position and queue[position - 1].frame.sequence > drop.frame.sequence:
            position -= 1
        queue.insert(position, drop)
        return [queue.popleft() for _ in range(len(queue) - max(0, most))]

    def ready(self) -> list[Drop]:
        """What can never be part of a set any more, given up. Afterwards `take` has a set, or none is complete."""
        given_up = []
        while self._queues and all(self._queues.values()):
            oldest = min(self._queues.values(), key=_sof)
            if max(map(_sof, self._queues.values())) - _sof(oldest) <= self._max_skew_ns:
                break
            given_up.append(oldest.popleft())
        return given_up

    def take(self) -> tuple[Drop, ...]:
        """The oldest complete set, in the entrypoint's order; empty where there is none. Call `ready` before."""
        return tuple(queue.popleft() for queue in self._queues.values()) if all(self._queues.values()) else ()

    def give_up_before(self, sof_ns: int) -> list[Drop]:
        """Everything older than `sof_ns`, given up: a newer frame has run, and state never goes back."""
        return [queue.popleft() for queue in self._queues.values() for _ in range(_older(queue, sof_ns))]

    def clear(self) -> list[Drop]:
        """Everything, given up."""
        drops = [drop for queue in self._queues.values() for drop in queue]
        for queue in self._queues.values():
            queue.clear()
        return drops


def _sof(queue: deque[Drop]) -> int:
    return queue[0].frame.sof_ns


def _older(queue: deque[Drop], sof_ns: int) -> int:
    return sum(drop.frame.sof_ns < sof_ns for drop in queue)
