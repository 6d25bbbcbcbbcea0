"""Loading bundles while frames go on: one at a time, on a thread of its own, its outcome brought back to the loop.

Hashing, verification, admission and self-test take from milliseconds to seconds; the loop must not wait for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from daemon.loop import Loop
from daemon.models import LoadedModel, ModelLoader
from daemon.refusal import ModelCode, ModelRefused, Step

OnLoaded = Callable[["LoadedModel | ModelRefused"], None]


class Activator:
    """Runs `ModelLoader.load` off the loop's thread."""

    def __init__(self, loader: ModelLoader, loop: Loop) -> None:
        self._loader = loader
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        """Whether a bundle is being loaded."""
        return self._thread is not None

    def load(self, path: str, on_loaded: OnLoaded) -> None:
        """Loads the bundle, named by an operator; `on_loaded` is called on the loop's thread.

        RuntimeError while one is being loaded.
        """
        self._begin(lambda: self._loader.load(path, named=True), path, on_loaded)

    def load_at_start(self, path: str, on_loaded: OnLoaded) -> None:
        """As `load`, for a bundle that the configuration names."""
        self._begin(lambda: self._loader.load_at_start(path), path, on_loaded)

    def when_idle(self, call: Callable[[], None]) -> None:
        """Calls `call` on the loop's thread once nothing is being loaded; now, if it can.

        For taking a module apart: on some devices that waits for the one that is being made.
        """
        if self.busy:
            self._waiting.append(call)
        else:
            call()

    def _begin(self, load: Callable[[], LoadedModel], path: str, on_loaded: OnLoaded) -> None:
        if self._thread is not None:
            raise RuntimeError("a bundle is being loaded already")
        self._thread = threading.Thread(target=self._run, args=(load, path, on_loaded), name="fenced-load", daemon=True)
        self._thread.start()

    def join(self, at_most_ns: int) -> None:
        """Waits for a load that goes on, for the end of the process. Its outcome is dropped."""
        if self._thread is not None:
            self._thread.join(at_most_ns / 1e9)

    def _run(self, load: Callable[[], LoadedModel], path: str, on_loaded: OnLoaded) -> None:
        outcome: LoadedModel | ModelRefused
        try:
            outcome = load()
        except ModelRefused as refused:
            outcome = refused
            # its trace would keep the frames of the load, and with them the bundle's memory, until a collection
            outcome.__traceback__ = outcome.__cause__ = outcome.__context__ = None
        except OSError as error:  # the audit log above all: what cannot be written down does not serve
            outcome = ModelRefused(
                Step.LOAD,
                ModelCode.SYSTEM,
                f"loading {path[:256]!r}",
                expected="a system that has room for it, and for its entry in the audit log",
                found=str(error)[:256],
                todo="free disk space, memory or descriptors, then activate it again",
            )
            outcome.__cause__ = outcome.__context__ = None
        except Exception as fault:  # the bulkhead: whatever a bundle sets off, what serves now goes on serving
            outcome = ModelRefused(
                Step.LOAD,
                ModelCode.FAULT,
                f"loading {path[:256]!r}",
                expected="a decision",
                found=f"{type(fault).__name__}: {str(fault)[:256]}",
                todo="report this with the bundle; it is a fault of the daemon",
            )
        self._loop.call_soon(lambda: self._finish(outcome, on_loaded))

    def _finish(self, outcome: LoadedModel | ModelRefused, on_loaded: OnLoaded) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
        on_loaded(outcome)
