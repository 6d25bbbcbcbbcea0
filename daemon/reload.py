"""SIGHUP: the configuration is read again, newer roots are followed, bundles that changed are activated.

As Type=notify-reload asks: RELOADING=1 with the time at which it began, READY=1 when it is over, whatever came of it.
Files are read on a thread; what the configuration says is carried out on the loop, one bundle after the other, as at
the start, but while frames go on. A refusal leaves what serves as it was. Only `root_paths` and `bundle_paths` take
effect: another key that differs is named, and needs a restart.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from daemon.audit import AuditLog
from daemon.command import CommandRefused, Outcome
from daemon.config import Config, ConfigError, load
from daemon.health import Notifier
from daemon.journal import MessageId
from daemon.log import Log
from daemon.loop import Loop
from daemon.models import describe_machine
from daemon.roster import Roster
from daemon.switching import Switching
from daemon.trust_store import VehicleTrust
from hal.accelerator import Accelerator
from signing import container, envelope, statement, store
from signing.refusal import Refused
from signing.trust import require_contents, verify_bundle

_TAKE_EFFECT = ("path", "root_paths", "bundle_paths")
_EXTEND_EVERY_NS = 2_000_000_000
_EXTEND_BY_US = 10_000_000


class ReloadHost(Protocol):
    """What a reload needs of the daemon."""

    config: Config
    state: str
    loop: Loop
    accelerator: Accelerator
    audit: AuditLog
    trust: VehicleTrust
    roster: Roster
    switching: Switching


@dataclass(frozen=True)
class _Read:
    """What the files say: the new configuration, the roots as bytes, the bundles in its order."""

    config: Config
    roots: tuple[bytes, ...]
    bundles: tuple[_Named, ...]


@dataclass(frozen=True)
class _Named:
    """A bundle that the configuration names: its model and the digest of its statement, empty where it is no bundle."""

    path: str
    model: str = ""
    digest: str = ""


class Reload:
    """One reload at a time; what is asked for meanwhile is done once more afterwards."""

    def __init__(self, host: ReloadHost, notifier: Notifier, log: Log) -> None:
        self._host, self._notifier, self._log = host, notifier, log
        self._thread: threading.Thread | None = None
        self._is_running = self._again = False
        self._complaints: list[str] = []
        self._extend_at_ns = 0
        self._machine = describe_machine(host.accelerator, host.config.limits.model_memory_bytes)
        host.loop.add_timer(lambda: self._extend_at_ns if self._is_running else None, self._extend)

    def begin(self) -> None:
        """Begins a reload; on the loop's thread."""
        if self._host.state in ("loading", "stopping"):
            self._log.notice(f"no reload while {self._host.state}")
            return
        if self._is_running:
            self._again = True
            return
        self._is_running = True
        self._complaints = []
        self._notifier.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000, STATUS="reloading")
        self._thread = threading.Thread(target=self._read, name="fenced-reload", daemon=True)
        self._thread.start()

    def join(self, at_most_ns: int) -> None:
        """Waits for the thread that reads, for the end of the process."""
        if self._thread is not None:
            self._thread.join(at_most_ns / 1e9)

    def _read(self) -> None:
        """On a thread: reads everything, and makes newer roots durable before they are used."""
        try:
            config = load(self._host.config.path)
            _require_known_folders(config.root_paths, self._host.config)
            roots = tuple(
                store.read_file(path, limit_bytes=container.ENVELOPE_LIMIT_BYTES) for path in config.root_paths
            )
            self._host.trust.prepare(roots)
            bundles = tuple(_look_at(path, config.limits.bundle_bytes) for path in config.bundle_paths)
            _require_one_of_each(bundles)
            read = _Read(config, roots, bundles)
        except (ConfigError, Refused, OSError) as error:
            complaint = str(error)
            self._host.loop.call_soon(lambda: self._fail(complaint))
        else:
            self._host.loop.call_soon(lambda: self._apply(read))

    def _fail(self, complaint: str) -> None:
        self._complaints.append(complaint)
        self._end()

    def _apply(self, read: _Read) -> None:
        try:
            followed = self._host.trust.adopt(read.roots)
        except Refused as refused:  # the trust moved on while the files were read
            self._fail(str(refused))
            return
        if followed:
            self._log.notice(f"root version {self._host.trust.current.root.version} is trusted now")
        differing = [one.name for one in fields(Config) if one.name not in _TAKE_EFFECT
                     and getattr(read.config, one.name) != getattr(self._host.config, one.name)]  # fmt: skip
        if differing:
            self._complaints.append(f"only a restart takes up {', '.join(differing)}")
        serving = {pipeline.model.bundle.digest for pipeline in self._host.roster.pipelines.values()}
        self._activate([one.path for one in read.bundles if one.digest not in serving])

    def _activate(self, paths: list[str]) -> None:
        if not paths:
            self._end()
            return

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, CommandRefused):
                self._complaints.append(f"{paths[0]}: {outcome}")
            self._activate(paths[1:])

        self._host.switching.take_up(paths[0], done)

    def _end(self) -> None:
        host = self._host
        self._is_running = False
        self._complaints += self._no_longer_trusted()
        refused = "; ".join(self._complaints)
        host.audit.note("daemon.reloaded", {"config": host.config.path[:1024], "refused": refused[:1024]})
        if refused:
            todo = "mend what is named, then reload again"
            self._log.error(f"reloaded, but: {refused}", MessageId.RELOAD_REFUSED, todo=todo)
        else:
            self._log.notice("reloaded: everything that the configuration names serves", MessageId.RELOADED)
        status = f"reloaded, but: {refused}" if refused else "serving what the configuration names"
        self._notifier.send(READY=1, STATUS=status[:512])
        if self._again:
            self._again = False
            self.begin()

    def _no_longer_trusted(self) -> list[str]:
        """What serves and would be refused under the present root. It serves on: only a person can weigh that."""
        found = []
        for pipeline in self._host.roster.pipelines.values():
            model = pipeline.model
            try:
                verify_bundle(
                    model.bundle.sealed, self._host.trust.current, machine=self._machine, now_unix_s=int(time.time())
                )
            except Refused as refused:
                found.append(f"{model.label} serves and would be refused ({refused}): activate another, or restart")
        return found

    def _extend(self, now_ns: int) -> None:
        self._extend_at_ns = now_ns + _EXTEND_EVERY_NS
        self._notifier.send(EXTEND_TIMEOUT_USEC=_EXTEND_BY_US)


def readable_folders(config: Config) -> tuple[str, ...]:
    """The folders that a reload reads from, beside those of the bundles: the seal must leave them open for reading."""
    return tuple(dict.fromkeys(os.path.dirname(path) for path in (config.path, *config.root_paths)))


def _require_known_folders(paths: Sequence[str], config: Config) -> None:
    """Raise ConfigError for a root that lies where the seal lets nothing be read."""
    known = readable_folders(config)
    for path in paths:
        if os.path.dirname(path) not in known:
            raise ConfigError("root_paths", f"files in {' or '.join(known)}, until a restart", path)


def _require_one_of_each(bundles: Sequence[_Named]) -> None:
    """Raise ConfigError for two bundles of one model: each reload would let the other one serve."""
    models = [one.model for one in bundles if one.model]
    for model in models:
        if models.count(model) > 1:
            raise ConfigError("bundle_paths", "one bundle of each model", f"two of {model}")


def _look_at(path: str, limit_bytes: int) -> _Named:
    """What a bundle says of itself that is whole; nothing for any other file, which loading then refuses by name.

    No signature is looked at: it only tells whether the file is the one that serves.
    """
    try:
        sealed = store.read_bundle(path, limit_bytes=limit_bytes)
    except Refused:
        return _Named(path)
    try:
        payload = envelope.parse(sealed.envelope, payload_type=envelope.BUNDLE_PAYLOAD_TYPE).payload
        stated = statement.decode(payload)
        require_contents(sealed, stated)
    except Refused:
        return _Named(path)
    finally:
        sealed.close()
    return _Named(path, stated.model.name, hashlib.sha256(payload).hexdigest())
