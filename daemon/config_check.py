"""`fenced check-config`: everything of a configuration that can be known before the daemon starts, and changes nothing.

Beyond the keys, which `daemon.config` has read: are folders, roots, bundles, image and device as the daemon will want
them, and do streams and models agree? A finding that keeps the daemon from serving fails the check; the others are
what an operator may have meant otherwise. Rights that only the unit gives (sockets, priorities) show at the start.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import time
from collections.abc import Iterator, Sequence

from abi.graph import Graph, GraphError, decode
from daemon.config import Config, Peers
from daemon.image import verify_tree
from daemon.models import describe_machine
from daemon.trials import verdicts
from daemon.trust_store import STATE_NAME
from hal.accelerator import Accelerator, open_accelerator
from hal.error import HalError
from signing import store
from signing.bundle import VerifiedBundle
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.refusal import Refused
from signing.trust import TrustStore, verify_bundle

Tree = dict[str, object]
_CREDENTIALS = "/run/credentials/"
_NS_PER_MS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something about `key` that is not as it must be (`blocks`), or may not be as it was meant."""

    key: str
    what: str
    todo: str
    blocks: bool = True

    def tree(self) -> Tree:
        """For the command line."""
        return {"name": self.key, "level": "error" if self.blocks else "note", "what": self.what, "todo": self.todo}


def check(config: Config, root_paths: Sequence[str] = ()) -> Tree:
    """The settings in force, the models that would serve, and what was found. `root_paths`: in place of the file's."""
    look = _Look(config, tuple(root_paths) or config.root_paths)
    findings = list(look.findings())
    return {
        "config": config.path,
        **settings(config),
        "models": look.models,
        "findings": [finding.tree() for finding in findings],
        "passed": not any(finding.blocks for finding in findings),
    }


def settings(config: Config) -> Tree:
    """Every setting as it is in force, defaults and all, by the names of the file."""
    limits = {
        key.replace("_ns", "_ms"): value // _NS_PER_MS if key.endswith("_ns") else value
        for key, value in dataclasses.asdict(config.limits).items()
    }
    options = dataclasses.asdict(config.device)
    modes = {
        f"{role}_{key}": value
        for role, one in config.sockets.items()
        for key, value in (("mode", f"{one.mode:04o}"), ("gid", one.gid))
    }
    streams = {
        name: {**_peers(one.peers), "isolation": one.isolation.value, "queueing": one.queueing.value,
               "queue_frames": one.queue_frames}
        for name, one in config.streams.items()
    }  # fmt: skip
    return {
        "state_directory": config.state_directory,
        "socket_directory": config.socket_directory,
        "image_manifest_path": config.image_manifest_path,
        "root_paths": list(config.root_paths),
        "bundle_paths": list(config.bundle_paths),
        "bundle_directories": list(config.bundle_directories),
        "device": {"driver": config.driver, "name": options.pop("device"), **options},
        "limits": limits,
        "activation": dataclasses.asdict(config.activation),
        "realtime": dataclasses.asdict(config.realtime),
        "sockets": modes,
        "stream": streams,
        "model": {name: {"priority": one.priority} for name, one in config.models.items()},
        **{name: _peers(getattr(config, name)) for name in ("subscribe", "tap", "control", "observe")},
    }


def _peers(peers: Peers) -> Tree:
    return {"uids": sorted(peers.uids), "gids": sorted(peers.gids)}


class _Look:
    """Looks once; `models` are those of the bundles that were verified, with the streams that they take."""

    def __init__(self, config: Config, root_paths: tuple[str, ...]) -> None:
        self.models: list[Tree] = []
        self._config = config
        self._root_paths = root_paths
        self._is_ours = True  # whether this user may look into the state folder as the daemon does
        self._streams: dict[str, str] = {}  # by name, the model that takes it

    def findings(self) -> Iterator[Finding]:
        """Everything, in the order of a start."""
        yield from self._folders()
        yield from self._cores()
        trust = None
        try:
            trust = self._trust()
        except Refused as refused:
            away = [one for one in self._root_paths if one.startswith(_CREDENTIALS) and not os.path.exists(one)]
            todo = "the unit alone sees its credential: check with `--root /etc/fenced/root.json`"
            yield Finding("root_paths", str(refused), todo if away else refused.todo)
        if trust is not None and self._config.image_manifest_path:
            yield from self._image(trust)
        try:
            accelerator = open_accelerator(self._config.driver, self._config.device)
        except HalError as error:
            yield Finding("device", str(error), error.todo or "see `fenced devices`")
            return
        try:
            if trust is not None:
                for path in self._config.bundle_paths:
                    yield from self._bundle(path, trust, accelerator)
                if len(self.models) == len(self._config.bundle_paths):
                    yield from self._names()
        finally:
            accelerator.close()

    def _folders(self) -> Iterator[Finding]:
        state = self._config.state_directory
        try:
            status = os.stat(state)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(state)):
                yield Finding("state_directory", f"{os.path.dirname(state)} is not there", "make it, or name another")
        except OSError as error:
            yield Finding("state_directory", str(error), "name a folder that the daemon's user may use")
        else:
            if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
                todo = "give the daemon a folder of its own, mode 0700"
                yield Finding("state_directory", f"{state} has mode {stat.S_IMODE(status.st_mode):04o}", todo)
            self._is_ours = status.st_uid in (0, os.geteuid())
            if not self._is_ours:
                who = f"uid {status.st_uid}'s, this runs as uid {os.geteuid()}"
                what = f"{state} is {who}: its rollback floors are left out"
                todo = "run it as the daemon's user: `runuser -u fenced -- fenced check-config …`"
                yield Finding("state_directory", what, todo, blocks=False)
        for folder in self._config.bundle_directories:
            if not os.path.isdir(folder):
                todo = "make it, or name another"
                yield Finding("bundle_directories", f"{folder} is not a folder", todo, blocks=False)

    def _cores(self) -> Iterator[Finding]:
        usable, wanted = os.sched_getaffinity(0), set(self._config.realtime.cores)
        if not wanted <= usable:
            yield Finding("realtime.cores", f"{sorted(wanted)} of the usable {sorted(usable)}", "name others")

    def _trust(self) -> TrustStore:
        """Raises Refused."""
        roots = [store.read_file(one, limit_bytes=ENVELOPE_LIMIT_BYTES) for one in self._root_paths]
        state = os.path.join(self._config.state_directory, STATE_NAME)
        resumed = store.resume_trust(state) if self._is_ours else None
        return (resumed or TrustStore.bootstrap(roots[0])).follow(roots)

    def _image(self, trust: TrustStore) -> Iterator[Finding]:
        try:
            verify_tree(os.path.dirname(self._config.image_manifest_path), trust.root)
        except Refused as refused:
            yield Finding("image_manifest_path", str(refused), refused.todo)
        except OSError as error:
            yield Finding("image_manifest_path", str(error), "name the image.json of the tree that runs, or none")

    def _bundle(self, path: str, trust: TrustStore, accelerator: Accelerator) -> Iterator[Finding]:
        try:
            sealed = store.read_bundle(path, limit_bytes=self._config.limits.bundle_bytes)
            try:
                machine = describe_machine(accelerator, self._config.limits.model_memory_bytes)
                bundle = verify_bundle(sealed, trust, machine=machine, now_unix_s=int(time.time()))
                yield from self._model(path, bundle, decode(bundle.blob("graph")))
            finally:
                sealed.close()
        except Refused as refused:
            yield Finding("bundle_paths", f"{path}: {refused}", refused.todo)
        except GraphError as error:
            yield Finding("bundle_paths", f"{path}: {error}", "compile it again with matching lab tools")
        except OSError as error:
            yield Finding("bundle_paths", str(error), "install the bundle, or name another")

    def _model(self, path: str, bundle: VerifiedBundle, graph: Graph) -> Iterator[Finding]:
        stated = bundle.statement.model
        streams = [one.stream for one in graph.frames]
        verdict = verdicts(self._config.state_directory).get(bundle.digest) if self._is_ours else None
        if verdict is not None:
            what = f"{path}: {verdict}: a start takes what served before it, where that may serve"
            yield Finding("bundle_paths", what, "name another release; `fenced activate` tries it again", blocks=False)
        if any(one["name"] == stated.name for one in self.models):
            todo = "name one bundle of each model"
            yield Finding("bundle_paths", f"{path}: a second bundle of {stated.name}", todo)
        self.models.append(
            {"name": stated.name, "version": stated.version, "release": stated.release, "path": path,
             "streams": streams, "aux": [one.name for one in graph.aux]}
        )  # fmt: skip
        for stream in streams:
            taken = self._streams.setdefault(stream, stated.name)
            if taken != stated.name:
                what = f"{path}: stream {stream} of {stated.name} is also taken by {taken}"
                yield Finding("bundle_paths", what, "give the streams of the models different names")

    def _names(self) -> Iterator[Finding]:
        """Tables for streams and models that nothing has, and streams that only the daemon's own user may open."""
        for stream in sorted(self._config.streams.keys() - self._streams.keys()):
            what = f"no model of bundle_paths takes it; they take {sorted(self._streams) or 'none'}"
            yield Finding(f"stream.{stream}", what, "mend the name, or leave the table out", blocks=False)
        for stream in sorted(self._streams.keys() - self._config.streams.keys()):
            what = f"{self._streams[stream]} takes it and no table lists who may open it: the daemon's own user alone"
            yield Finding(f"stream.{stream}", what, "list the camera's uids or gids", blocks=False)
        served = {one["name"] for one in self.models}
        for model in sorted(self._config.models.keys() - served):
            todo = "mend the name, or leave the table out"
            yield Finding("model", f"{model}: no bundle of bundle_paths is of this name", todo, blocks=False)
