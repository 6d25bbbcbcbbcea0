"""The configuration: one TOML file, every key with its unit in its name, unknown keys refused.

A mistake raises ConfigError, which names the key, what was expected and what was found. Defaults are the safest: no
stream may be opened and nothing subscribed to, tapped or controlled but by the daemon's own user, until a
policy says so.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from abi.packet import MAX_PACKET_BYTES, MAX_SLOTS
from daemon.config_table import ConfigError, Table
from hal.accelerator import DRIVERS, DeviceOptions

__all__ = [
    "Activation", "Config", "ConfigError", "Isolation", "Limits", "ModelPolicy", "Peers", "Queueing", "Realtime",
    "SocketModes", "StreamPolicy", "load", "parse",
]  # fmt: skip
_MS = 1_000_000
_SOCKET_FOLDER_BYTES = 107 - len("/consumer.sock")  # unix(7): sun_path with its NUL


class Isolation(Enum):
    """How far a camera is trusted to leave a submitted slot alone."""

    LEASE = "lease"  # zero copy; a broken lease is detected and the result discarded
    COPY = "copy"  # the frame is copied into private memory before it runs


class Queueing(Enum):
    """What becomes of frames that wait."""

    LATEST = "latest"  # a newer frame supersedes the one that waits
    FIFO = "fifo"  # up to `queue_frames` wait; beyond that the oldest is superseded


@dataclass(frozen=True)
class Peers:
    """Who may: user ids and group ids. Either one suffices."""

    uids: frozenset[int]
    gids: frozenset[int]


@dataclass(frozen=True)
class StreamPolicy:
    """One camera stream, by its name in the models' contracts."""

    name: str
    peers: Peers
    isolation: Isolation
    queueing: Queueing
    queue_frames: int


@dataclass(frozen=True)
class ModelPolicy:
    """How one model is treated, by its name. `priority`: whose runs go first on a shared device; higher first."""

    name: str
    priority: int = 0


@dataclass(frozen=True)
class Limits:
    """Bounds on what peers and models may ask for. Times in nanoseconds, sizes in bytes."""

    max_age_ns: int
    future_tolerance_ns: int
    idle_timeout_ns: int
    in_fence_timeout_ns: int
    slots: int
    ring_slots: int
    packet_bytes: int
    peers: int
    peers_per_user: int
    bundle_bytes: int
    model_memory_bytes: int
    loaded_bytes: int
    probation_frames: int
    device_load_percent: int


@dataclass(frozen=True)
class Activation:
    """When a release that is not confirmed yet is taken back. See `daemon.trials` and `daemon.probation`."""

    crash_limit: int
    crash_window_s: int
    fault_limit: int


@dataclass(frozen=True)
class Realtime:
    """What is asked of the kernel for the thread that serves and for the process. See `daemon.realtime`.

    fifo_priority: SCHED_FIFO, 1..99; 0: the ordinary policy. cores: of all threads that have no own; empty: any.
    memory_limit_bytes: RLIMIT_DATA; 0: as it is.
    """

    fifo_priority: int = 0
    cores: tuple[int, ...] = ()
    lock_memory: bool = False
    memory_limit_bytes: int = 0


@dataclass(frozen=True)
class SocketModes:
    """File mode and group (-1: unchanged) of a socket that the daemon binds itself."""

    mode: int
    gid: int


@dataclass(frozen=True)
class Config:
    """Everything `fenced serve` is told. Paths are absolute."""

    path: str
    state_directory: str
    socket_directory: str
    image_manifest_path: str  # "": the tree that the daemon runs from is not checked against a signature
    root_paths: tuple[str, ...]
    bundle_paths: tuple[str, ...]
    bundle_directories: tuple[str, ...]
    driver: str
    device: DeviceOptions
    limits: Limits
    activation: Activation
    realtime: Realtime
    sockets: Mapping[str, SocketModes]
    streams: Mapping[str, StreamPolicy]
    models: Mapping[str, ModelPolicy]
    subscribe: Peers
    tap: Peers
    control: Peers
    observe: Peers  # who may ask for status and metrics, and command nothing

    def stream(self, name: str) -> StreamPolicy:
        """The policy for a stream; one that is not configured may only be opened by the daemon's own user."""
        found = self.streams.get(name)
        return found if found is not None else StreamPolicy(name, _own(), Isolation.LEASE, Queueing.LATEST, 1)

    def model(self, name: str) -> ModelPolicy:
        """The policy for a model; one that is not configured has priority 0."""
        found = self.models.get(name)
        return found if found is not None else ModelPolicy(name)


def load(path: str) -> Config:
    """Reads and checks the file. Raises ConfigError, also for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise ConfigError(path, "a readable TOML file", error.strerror) from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, bytes that are not UTF-8, brackets without end
        raise ConfigError(path, "well-formed TOML", str(error)) from error
    return parse(data, os.path.abspath(path))


def parse(data: Mapping[str, object], path: str) -> Config:
    """Checks parsed TOML. Relative paths in it are taken from the file's folder."""
    folder = os.path.dirname(path)
    table = Table(data, "")
    bundles = tuple(_path(item, "bundle_paths", folder) for item in table.texts("bundle_paths", least=1))
    driver, device = _device(table.table("device"))
    state = _path(table.text("state_directory"), "state_directory", folder)
    streams = {policy.name: policy for policy in _streams(table)}
    given = table.texts("bundle_directories", least=0)
    folders = [_path(item, "bundle_directories", folder) for item in given] or [
        os.path.dirname(item) for item in bundles
    ]
    sockets = _path(table.text("socket_directory", "/run/fenced"), "socket_directory", folder)
    manifest = table.text("image_manifest_path", "")
    if len(os.fsencode(sockets)) > _SOCKET_FOLDER_BYTES:
        raise ConfigError("socket_directory", f"a path of at most {_SOCKET_FOLDER_BYTES} bytes", sockets)
    config = Config(
        path=path,
        state_directory=state,
        socket_directory=sockets,
        image_manifest_path=manifest and _path(manifest, "image_manifest_path", folder),
        root_paths=tuple(_path(item, "root_paths", folder) for item in table.texts("root_paths", least=1)),
        bundle_paths=bundles,
        bundle_directories=tuple(dict.fromkeys(folders)),
        driver=driver,
        device=device,
        limits=_limits(table.table("limits")),
        activation=_activation(table.table("activation")),
        realtime=_realtime(table.table("realtime")),
        sockets=_sockets(table.table("sockets")),
        streams=streams,
        models=_models(table),
        subscribe=_peers(table.table("subscribe")),
        tap=_peers(table.table("tap")),
        control=_peers(table.table("control")),
        observe=_peers(table.table("observe"), usual=Peers(frozenset(), frozenset())),
    )
    table.done()
    return config


def _device(table: Table) -> tuple[str, DeviceOptions]:
    """The driver's name and how the device is opened. What a driver has no use for it refuses itself."""
    usual = DeviceOptions()
    queue_slots = table.number("queue_slots", usual.queue_slots, 1, 1_024)
    if queue_slots & (queue_slots - 1):
        raise ConfigError("device.queue_slots", "a power of two", queue_slots)
    driver = table.one_of("driver", DRIVERS, "cpu")
    options = DeviceOptions(
        pin_cores=table.numbers("pin_cores"),
        fifo_priority=table.number("fifo_priority", usual.fifo_priority, 0, 99),
        lock_memory=table.flag("lock_memory", usual.lock_memory),
        huge_pages=table.flag("huge_pages", usual.huge_pages),
        queue_slots=queue_slots,
        spin_count=table.number("spin_count", usual.spin_count, 0, 10_000_000),
        spin_us=table.number("spin_us", usual.spin_us, 0, 1_000_000),
        device=table.text("name", ""),
    )
    table.done()
    return driver, options


def _limits(table: Table) -> Limits:
    peers = table.number("peers", 32, 1, 256)
    limits = Limits(
        max_age_ns=table.number("max_age_ms", 500, 1, 3_600_000) * _MS,
        future_tolerance_ns=table.number("future_tolerance_ms", 5, 0, 60_000) * _MS,
        idle_timeout_ns=table.number("idle_timeout_ms", 10_000, 10, 3_600_000) * _MS,
        in_fence_timeout_ns=table.number("in_fence_timeout_ms", 50, 1, 60_000) * _MS,
        slots=table.number("slots", 8, 1, MAX_SLOTS),
        ring_slots=table.number("ring_slots", 8, 2, 64),
        packet_bytes=table.number("packet_bytes", 16_384, 1_024, MAX_PACKET_BYTES),
        peers=peers,
        peers_per_user=table.number("peers_per_user", max(1, peers // 2), 1, peers),
        bundle_bytes=table.number("bundle_bytes", 2 << 30, 4_096, 16 << 30),
        model_memory_bytes=table.number("model_memory_bytes", 4 << 30, 4_096, 1 << 40),
        loaded_bytes=table.number("loaded_bytes", 0, 0, 1 << 50),
        probation_frames=table.number("probation_frames", 100, 1, 1_000_000),
        device_load_percent=table.number("device_load_percent", 100, 1, 10_000),
    )
    table.done()
    return limits


def _activation(table: Table) -> Activation:
    activation = Activation(
        crash_limit=table.number("crash_limit", 3, 1, 16),
        crash_window_s=table.number("crash_window_s", 600, 1, 1_000_000),
        fault_limit=table.number("fault_limit", 5, 0, 1_000_000),
    )
    table.done()
    return activation


def _realtime(table: Table) -> Realtime:
    realtime = Realtime(
        fifo_priority=table.number("fifo_priority", 0, 0, 99),
        cores=table.numbers("cores"),
        lock_memory=table.flag("lock_memory", False),
        memory_limit_bytes=table.number("memory_limit_bytes", 0, 0, 1 << 50),
    )
    table.done()
    return realtime


def _sockets(table: Table) -> dict[str, SocketModes]:
    sockets = {}
    for role in ("camera", "consumer", "control"):
        mode = table.text(f"{role}_mode", "0660")
        if len(mode) != 4 or mode[0] != "0" or not set(mode) <= set("01234567"):
            raise ConfigError(f"sockets.{role}_mode", 'four octal digits like "0660"', mode)
        sockets[role] = SocketModes(int(mode, 8), table.number(f"{role}_gid", -1, -1, 2**32 - 2))
    table.done()
    return sockets


def _models(table: Table) -> dict[str, ModelPolicy]:
    policies: dict[str, ModelPolicy] = {}
    for index, model in enumerate(table.tables("model")):
        name = _name(model.text("name"), f"model[{index}].name")
        if name in policies:
            raise ConfigError(f"model[{index}].name", "each model once", name)
        policies[name] = ModelPolicy(name, model.number("priority", 0, 0, 1_000))
        model.done()
    return policies


def _name(name: str, key: str) -> str:
    if not 1 <= len(name) <= 64 or not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-"):
        raise ConfigError(key, "a name of 1 to 64 of a-z 0-9 _ . -", name)
    return name


def _streams(table: Table) -> Iterator[StreamPolicy]:
    streams = table.table("stream")
    for name in streams.names():
        _name(name, f"stream.{name}")
        stream = streams.table(name)
        isolation = stream.choice("isolation", Isolation, Isolation.LEASE)
        queueing = stream.choice("queueing", Queueing, Queueing.LATEST)
        frames = stream.number("queue_frames", 1 if queueing is Queueing.LATEST else 4, 1, 64)
        if queueing is Queueing.LATEST and frames != 1:
            raise ConfigError(f"stream.{name}.queue_frames", '1 with queueing = "latest"', frames)
        yield StreamPolicy(name, _peers(stream, done=False), isolation, queueing, frames)
        stream.done()
    streams.done()


def _peers(table: Table, *, done: bool = True, usual: Peers | None = None) -> Peers:
    """`usual`: who may where nobody is listed; None: the daemon's own user."""
    uids, gids = table.numbers("uids"), table.numbers("gids")
    if done:
        table.done()
    return Peers(frozenset(uids), frozenset(gids)) if uids or gids else (usual or _own())


def _own() -> Peers:
    return Peers(frozenset({os.geteuid()}), frozenset())


def _path(text: str, key: str, folder: str) -> str:
    if not text or "\0" in text:
        raise ConfigError(key, "a path", text)
    return os.path.normpath(os.path.join(folder, text))
