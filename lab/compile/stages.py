"""The stages of a compile: each is timed, and shown while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.progress import Progress, TaskID

from lab.compile.report import Stage

FOR_EACH = ("build", "first run", "capture", "check")
"""Once for each entrypoint."""
ONCE = ("read", "link", "pack", "run packed")


@dataclass
class Stages:
    """Stages that are done, in order. `total`: how many the progress bar expects."""

    progress: Progress | None
    done: list[Stage] = field(default_factory=list)
    total: int = len(FOR_EACH) + len(ONCE)
    task: TaskID | None = None
    inner_s: float = 0.0
    """Seconds of stages that ended within the one that runs now; they are not counted twice."""

    def expect_entries(self, count: int) -> None:
        """The compile has `count` entrypoints."""
        self.total = count * len(FOR_EACH) + len(ONCE)
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, total=self.total)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """A stage, from entering to leaving."""
        if self.progress is not None:
            if self.task is None:
                self.task = self.progress.add_task(name, total=self.total)
            self.progress.update(self.task, description=name)
        start, outer_s = time.perf_counter(), self.inner_s
        self.inner_s = 0.0
        yield
        whole_s = time.perf_counter() - start
        self.done.append(Stage(name, whole_s - self.inner_s))
        self.inner_s = outer_s + whole_s
        if self.progress is not None and self.task is not None:
            self.progress.advance(self.task)

    def tell(self, what: str) -> None:
        """What the stage is at, on the progress bar."""
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, description=what)
