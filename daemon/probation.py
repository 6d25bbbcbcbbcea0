"""Probation of what has begun to serve: after so many good results the model is confirmed, and never before.

A result is good when it was published and met its deadline; whatever the pipeline discarded (torn, canary, NaN) was
not published. Counting costs a dictionary look-up a frame, and nothing once the model is confirmed.
"""

from collections.abc import Callable

from abi.flat import ResultFlag
from daemon.models import LoadedModel

OnConfirmed = Callable[[LoadedModel], None]


class Probation:
    """Counts down for each model; `on_confirmed` is called once when the count is through."""

    def __init__(self, frames: int, on_confirmed: OnConfirmed) -> None:
        self._frames = frames
        self._on_confirmed = on_confirmed
        self._left: dict[str, int] = {}
        self._models: dict[str, LoadedModel] = {}

    def stop(self, name: str) -> None:
        """The model is about to be replaced: its last run must not confirm it over the one that comes."""
        self._left.pop(name, None)
        self._models.pop(name, None)

    def begin(self, model: LoadedModel) -> None:
        """The model begins to serve."""
        self._left[model.name] = self._frames
        self._models[model.name] = model

    def count(self, name: str, flags: ResultFlag) -> None:
        """A result of the model was published."""
        left = self._left.get(name)
        if left is None or not flags & ResultFlag.DEADLINE_MET:
            return
        if left > 1:
            self._left[name] = left - 1
            return
        del self._left[name]
        self._on_confirmed(self._models.pop(name))

    def frames_left(self, name: str) -> int:
        """Good results that are still due; 0 once confirmed."""
        return self._left.get(name, 0)
