"""Units of work on a Ray cluster: one task each, bundles shipped, logs read where they lie.

Bundles and the root travel through Ray's object store, so that every machine plays the very bytes; a log is named by
its path, which every machine must see (a shared disk). The tries are counted here and not by Ray, so that the result
can say how many there were. Ray is the extra `fenced-lab[ray]`; its usage statistics are switched off.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.replay.batch import Outcome, Work, attempt, failure, may_retry
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.unit import Unit, run_unit

__all__ = ["on_ray"]


def on_ray(
    units: Sequence[Unit], address: str, *, retries: int, with_page: bool, cpus: float = 1.0, work: Work = run_unit
) -> Iterator[Outcome]:
    """Outcomes as they come. `address`: of a cluster; empty: one that runs here, else one of this machine alone.

    `cpus`: what a unit takes of a machine while it runs. Raises LogRefused (RAY) without Ray or such a machine.
    """
    ray = _ray()
    began = not ray.is_initialized()
    if began:
        ray.init(address=address or None, log_to_driver=False, logging_level="error")
    try:
        _require_room(ray, cpus)
        yield from _Run(ray, retries, cpus, (with_page, work)).outcomes(units)
    finally:
        if began:
            ray.shutdown()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise LogRefused(
            LogRefusal.RAY, "Ray is not installed", expected="the package ray", found="none",
            todo="pip install 'fenced-lab[ray]', or leave --ray out",
        ) from error  # fmt: skip
    return ray


def _require_room(ray: Any, cpus: float) -> None:
    most = max((node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
    if most < cpus:
        raise LogRefused(
            LogRefusal.RAY, "no machine of the cluster can take a unit", expected=f"one with {cpus:g} CPUs",
            found=f"{most:g} at most", todo="lower --ray-cpus, or add a machine",
        )  # fmt: skip


class _Run:
    """The tasks of one batch."""

    def __init__(self, ray: Any, retries: int, cpus: float, how: tuple[bool, Work]) -> None:
        self._ray, self._retries = ray, retries
        self._task = ray.remote(num_cpus=cpus, max_retries=0, scheduling_strategy="SPREAD")(_task)
        self._how = how
        self._shipped: dict[Path, Any] = {}

    def outcomes(self, units: Sequence[Unit]) -> Iterator[Outcome]:
        """Starts every unit, again where it failed and may; the outcomes as they come."""
        running = {self._start(unit): (unit, 1) for unit in units}
        while running:
            (done, *_), _ = self._ray.wait(list(running), num_returns=1)
            unit, number = running.pop(done)
            try:
                outcome: Outcome = self._ray.get(done)
            except self._ray.exceptions.RayTaskError:  # our own defect
                raise
            except self._ray.exceptions.RayError as error:  # the worker or its machine is gone
                outcome = Outcome(unit, refusal=failure(error))
            if may_retry(outcome) and number <= self._retries:
                running[self._start(unit)] = unit, number + 1
                continue
            outcome.unit, outcome.attempts = unit, number
            yield outcome

    def _start(self, unit: Unit) -> Any:
        files = {name: self._ship(path) for name in ("bundle", "against", "root") if (path := getattr(unit, name))}
        return self._task.remote(unit, list(files), *self._how, *files.values())

    def _ship(self, path: Path) -> Any:
        """The file's bytes in the object store, once."""
        if path not in self._shipped:
            self._shipped[path] = self._ray.put(path.read_bytes())
        return self._shipped[path]


def _task(unit: Unit, names: Sequence[str], with_page: bool, work: Work, *contents: bytes) -> Outcome:
    """On a worker: the shipped files in a folder of its own, and one attempt."""
    with tempfile.TemporaryDirectory(prefix="fenced-ray-") as folder:
        mine = _with_files(unit, Path(folder), dict(zip(names, contents, strict=True)))
        outcome = attempt(mine, with_page=with_page, work=work)
    outcome.host += f", node {_ray().get_runtime_context().get_node_id()[:8]}"
    return outcome


def _with_files(unit: Unit, folder: Path, contents: Mapping[str, bytes]) -> Unit:
    paths: dict[str, Any] = {}
    for name, content in contents.items():
        (folder / name).mkdir()
        paths[name] = folder / name / Path(getattr(unit, name)).name
        paths[name].write_bytes(content)
        paths[name].chmod(0o644)
    return replace(unit, **paths)
