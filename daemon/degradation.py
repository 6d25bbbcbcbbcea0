"""What becomes of a model whose deadline misses persist: the contract's answer as one state machine. Pure.

    SERVING --misses persist--> MISSING, SKIPPING, LIGHTER or STOPPED, as `onMisses` of the primary says
    LIGHTER --misses persist--> LIGHTER_MISSING, LIGHTER_SKIPPING or STOPPED, as `onMisses` of the lighter says
    each but STOPPED --a clean window--> back the way it came
    each --restored by a person--> SERVING

Misses persist when more than `missLimit` of the last `missWindow` runs missed (graph.capnp Entrypoint); a window is
clean when it holds no miss at all. Whether the full model fits again only shows by trying: where misses persist anew
within one window of a recovery, the next recovery asks for twice as many clean windows, up to 16; a whole window
without persistent misses brings it back to one. Every change begins an empty window.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from abi.graph import Entrypoint, EntryRole, MissPolicy

MOST_CLEAN_WINDOWS = 16


class Mode(Enum):
    """How a model serves."""

    SERVING = "serving"  # every frame set through the primary entrypoint
    MISSING = "missing"  # as SERVING; its misses persist, and the contract asks for nothing
    SKIPPING = "skipping"  # every second frame set
    LIGHTER = "lighter"  # every frame set, through the lighter entrypoint
    LIGHTER_MISSING = "lighter-missing"  # as LIGHTER; its misses persist too
    LIGHTER_SKIPPING = "lighter-skipping"  # every second frame set, through the lighter entrypoint
    STOPPED = "stopped"  # nothing runs until a person restores or replaces it

    __hash__ = object.__hash__

    @property
    def lighter(self) -> bool:
        """Whether the lighter entrypoint runs."""
        return self in (Mode.LIGHTER, Mode.LIGHTER_MISSING, Mode.LIGHTER_SKIPPING)

    @property
    def skips(self) -> bool:
        """Whether only every second frame set runs."""
        return self in (Mode.SKIPPING, Mode.LIGHTER_SKIPPING)


class Cause(Enum):
    """What changes the mode, beside persistent misses (which are named by the policy in force)."""

    CLEAN = "a window without a miss"
    RESTORED = "restored by command"

    __hash__ = object.__hash__


TRANSITIONS: Final[dict[tuple[Mode, MissPolicy | Cause], Mode]] = {
    (Mode.SERVING, MissPolicy.NONE): Mode.MISSING,
    (Mode.SERVING, MissPolicy.SKIP): Mode.SKIPPING,
    (Mode.SERVING, MissPolicy.LIGHTER): Mode.LIGHTER,
    (Mode.SERVING, MissPolicy.STOP): Mode.STOPPED,
    (Mode.LIGHTER, MissPolicy.NONE): Mode.LIGHTER_MISSING,
    (Mode.LIGHTER, MissPolicy.SKIP): Mode.LIGHTER_SKIPPING,
    (Mode.LIGHTER, MissPolicy.STOP): Mode.STOPPED,
    (Mode.MISSING, Cause.CLEAN): Mode.SERVING,
    (Mode.SKIPPING, Cause.CLEAN): Mode.SERVING,
    (Mode.LIGHTER, Cause.CLEAN): Mode.SERVING,
    (Mode.LIGHTER_MISSING, Cause.CLEAN): Mode.LIGHTER,
    (Mode.LIGHTER_SKIPPING, Cause.CLEAN): Mode.LIGHTER,
    **{(mode, Cause.RESTORED): Mode.SERVING for mode in Mode if mode is not Mode.SERVING},
}


class Change(NamedTuple):
    """A change of mode. misses: how many were in the window of `window_runs` runs that caused it."""

    before: Mode
    after: Mode
    misses: int
    window_runs: int

    @property
    def is_worse(self) -> bool:
        """Whether the model serves less than before."""
        return self.after is not Mode.SERVING and not (self.before.lighter and self.after is Mode.LIGHTER)


class _Window:
    """The last runs of an entrypoint, missed or met; fixed memory."""

    def __init__(self, entry: Entrypoint) -> None:
        self.runs = entry.miss_window
        self.limit = entry.miss_limit
        self.policy = entry.on_misses
        self._missed = bytearray(self.runs)
        self._next = 0
        self.misses = 0
        self.met_in_a_row = 0
        self.seen = 0

    def note(self, missed: bool) -> None:
        self.misses += missed - self._missed[self._next]
        self._missed[self._next] = missed
        self._next = (self._next + 1) % self.runs
        self.met_in_a_row = 0 if missed else self.met_in_a_row + 1
        self.seen += 1

    def clear(self) -> None:
        self._missed[:] = bytes(self.runs)
        self._next = self.misses = self.met_in_a_row = self.seen = 0


class Degradation:
    """The mode of one model. Without a window in its primary entrypoint it always serves."""

    def __init__(self, entrypoints: tuple[Entrypoint, ...]) -> None:
        self.mode = Mode.SERVING
        self.changes = 0
        self.clean_windows = 1
        # How many windows without a miss the next recovery takes.
        self._primary = _Window(entrypoints[0])
        lighter = [entry for entry in entrypoints if entry.role is EntryRole.LIGHTER and entry.miss_window]
        self._lighter = _Window(lighter[0]) if lighter else None
        self._recovered = False  # a window ago at most

    @property
    def misses(self) -> int:
        """Misses in the window in force."""
        return self._window.misses

    @property
    def limit(self) -> int:
        """How many misses the window in force may hold."""
        return self._window.limit

    @property
    def window_runs(self) -> int:
        """The length of the window in force; 0: the contract has none."""
        return self._window.runs

    def note(self, *, missed: bool) -> Change | None:
        """A run was published in time or not, or a frame set was dropped for being late; the change that this makes."""
        window = self._window
        if not self._primary.runs or self.mode is Mode.STOPPED:
            return None
        window.note(missed)
        own = self._lighter if self.mode.lighter else self._primary
        if own is not None and window.misses > window.limit and (self.mode, window.policy) in TRANSITIONS:
            if self._recovered:
                self.clean_windows = min(MOST_CLEAN_WINDOWS, 2 * self.clean_windows)
            return self._change(window.policy)
        if (self.mode, Cause.CLEAN) in TRANSITIONS:
            if window.met_in_a_row >= window.runs * self.clean_windows:
                return self._change(Cause.CLEAN)
        elif self._recovered and window.seen >= window.runs:
            self._recovered, self.clean_windows = False, 1
        return None

    def restore(self) -> Change | None:
        """A person wants the whole model back."""
        if self.mode is Mode.SERVING:
            return None
        self.clean_windows = 1
        change = self._change(Cause.RESTORED)
        self._recovered = False
        return change

    @property
    def _window(self) -> _Window:
        return self._lighter if self.mode.lighter and self._lighter is not None else self._primary

    def _change(self, cause: MissPolicy | Cause) -> Change:
        window = self._window
        change = Change(self.mode, TRANSITIONS[self.mode, cause], window.misses, window.runs)
        self.mode = change.after
        self.changes += 1
        self._recovered = cause is Cause.CLEAN
        self._window.clear()
        window.clear()
        return change
