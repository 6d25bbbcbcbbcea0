"""The configuration says what it means or is refused by key."""

import os
from pathlib import Path

import pytest

from daemon.config import ConfigError, Isolation, Peers, Queueing, load
from hal.accelerator import DeviceOptions

LEAST = 'state_directory = "state"\nroot_paths = ["root.json"]\nbundle_paths = ["models/lane.fenced"]\n'


def write(folder: Path, text: str) -> str:
    path = folder / "fenced.toml"
    path.write_text(text)
    return str(path)


def test_the_least_configuration_has_safe_defaults(tmp_path: Path) -> None:
    config = load(write(tmp_path, LEAST))
    own = Peers(frozenset({os.geteuid()}), frozenset())
    assert (config.subscribe, config.control, config.stream("road").peers) == (own, own, own)
    assert config.stream("road").isolation is Isolation.LEASE
    assert config.socket_directory == "/run/fenced"
    assert config.bundle_paths == (str(tmp_path / "models/lane.fenced"),)
    assert config.bundle_directories == (str(tmp_path / "models"),)
    assert config.root_paths == (str(tmp_path / "root.json"),)
    assert (config.limits.max_age_ns, config.limits.probation_frames) == (500_000_000, 100)
    assert (config.limits.peers, config.limits.peers_per_user) == (32, 16)
    assert config.sockets["control"].mode == 0o660
    assert (config.driver, config.device) == ("cpu", DeviceOptions())


def test_every_part_is_read(tmp_path: Path) -> None:
    text = (
        LEAST
        + """
socket_directory = "/tmp/here"
bundle_directories = ["/srv/models"]
[limits]
max_age_ms = 7
slots = 3
device_load_percent = 80
[device]
driver = "opencl"
name = "a board; 3.1"
pin_cores = [2, 3]
fifo_priority = 40
lock_memory = true
huge_pages = true
queue_slots = 4
spin_count = 0
spin_us = 20
[sockets]
camera_mode = "0600"
camera_gid = 44
[subscribe]
gids = [1000]
[control]
uids = [0]
[[model]]
name = "lane"
priority = 7
[[model]]
name = "driving"
[stream.road]
isolation = "copy"
queueing = "fifo"
queue_frames = 3
uids = [7]
gids = [8]
"""
    )
    config = load(write(tmp_path, text))
    road = config.stream("road")
    assert (road.isolation, road.queueing, road.queue_frames) == (Isolation.COPY, Queueing.FIFO, 3)
    assert road.peers == Peers(frozenset({7}), frozenset({8}))
    assert config.subscribe == Peers(frozenset(), frozenset({1000}))
    assert config.control == Peers(frozenset({0}), frozenset())
    assert config.driver == "opencl"
    assert config.device == DeviceOptions((2, 3), 40, True, True, 4, 0, 20, "a board; 3.1")
    assert (config.sockets["camera"].mode, config.sockets["camera"].gid) == (0o600, 44)
    assert (config.limits.max_age_ns, config.limits.slots, config.limits.device_load_percent) == (7_000_000, 3, 80)
    assert [config.model(name).priority for name in ("lane", "driving", "other")] == [7, 0, 0]
    assert config.bundle_directories == ("/srv/models",)
    assert config.socket_directory == "/tmp/here"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "bundle_paths"),
        (LEAST.replace('["models/lane.fenced"]', "[]"), "bundle_paths"),
        (LEAST.replace('["root.json"]', "[]"), "root_paths"),
        (LEAST.replace('["root.json"]', '"root.json"'), "root_paths"),
        (LEAST + "[limits]\nprobation_frames = 0\n", "limits.probation_frames"),
        (LEAST + f'socket_directory = "/run/{"x" * 90}"\n', "socket_directory"),
        (LEAST + "max_age = 5\n", "max_age"),
        (LEAST + 'device = "cpu"\n', "device"),
        (LEAST + '[device]\ndriver = "gpu"\n', "device.driver"),
        (LEAST + '[device]\nname = ""\n', "device.name"),
        (LEAST + "[device]\npin_cores = [true]\n", "device.pin_cores"),
        (LEAST + "[device]\nfifo_priority = 100\n", "device.fifo_priority"),
        (LEAST + "[device]\nlock_memory = 1\n", "device.lock_memory"),
        (LEAST + "[device]\nqueue_slots = 12\n", "device.queue_slots"),
        (LEAST + "[device]\nqueue_slots = 0\n", "device.queue_slots"),
        (LEAST + "[device]\nspin_us = -1\n", "device.spin_us"),
        (LEAST + "[device]\nspin_ms = 5\n", "device.spin_ms"),
        (LEAST + "[limits]\nmax_age = 5\n", "limits.max_age"),
        (LEAST + "[limits]\nslots = 0\n", "limits.slots"),
        (LEAST + "[limits]\nslots = true\n", "limits.slots"),
        (LEAST + '[limits]\nslots = "8"\n', "limits.slots"),
        (LEAST + "[sockets]\ncamera_mode = 432\n", "sockets.camera_mode"),
        (LEAST + '[sockets]\ncamera_mode = "rw"\n', "sockets.camera_mode"),
        (LEAST + '[sockets]\ncamera_mode = "1777"\n', "sockets.camera_mode"),
        (LEAST + '[stream."../x"]\n', "stream.../x"),
        (LEAST + '[stream.road]\nisolation = "none"\n', "stream.road.isolation"),
        (LEAST + "[stream.road]\nqueue_frames = 2\n", "stream.road.queue_frames"),
        (LEAST + '[stream.road]\nuids = ["root"]\n', "stream.road.uids"),
        (LEAST + "[stream.road]\nuid = 1\n", "stream.road.uid"),
        (LEAST + "stream = 1\n", "stream"),
        (LEAST + '[model]\nname = "lane"\n', "model"),
        (LEAST + "model = [3]\n", "model"),
        (LEAST + "[[model]]\npriority = 1\n", "model[0].name"),
        (LEAST + '[[model]]\nname = "Lane"\n', "model[0].name"),
        (LEAST + '[[model]]\nname = "a"\n[[model]]\nname = "a"\n', "model[1].name"),
        (LEAST + '[[model]]\nname = "a"\npriority = -1\n', "model[0].priority"),
        (LEAST + '[[model]]\nname = "a"\nprio = 1\n', "model[0].prio"),
        (LEAST + "[limits]\ndevice_load_percent = 0\n", "limits.device_load_percent"),
        (LEAST + "[control]\nusers = [1]\n", "control.users"),
        (LEAST + "[control]\ngids = [-1]\n", "control.gids"),
    ],
)
def test_a_mistake_is_refused_by_its_key(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write(tmp_path, text))
    assert refused.value.key == key
    assert key in str(refused.value)


@pytest.mark.parametrize("text", ["=", "a = 1\na = 2\n", pytest.param("a = " + "[" * 5000, id="without end")])
def test_what_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="well-formed TOML"):
        load(write(tmp_path, text))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fenced.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="well-formed TOML"):
        load(str(path))


def test_a_missing_file_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml.*No such file"):
        load(str(tmp_path / "none.toml"))
