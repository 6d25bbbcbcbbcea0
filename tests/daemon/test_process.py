"""The daemon as the process it is on a vehicle: guarded, sealed, told to stop, killed, started twice.

It runs from the vehicle environment of `tests.support.vehicle`, in which nothing of the lab can be imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from client.errors import ConnectionLost, Refused
from daemon.audit import verify
from tests.simulators import flip_byte
from tests.support import vehicle
from tests.support.bundles import WIDTH, BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, Sockets, config_text, ended, picture, run_one, submit
from tests.support.messages import manager_socket, wait_for_line

OLD = TinyModel("slow")
NEW = TinyModel("add", version="2.0.0", release=2, number=9)
CODE_OFFSET = 9000  # of these bundles: the envelope and the graph take a page each, the code begins at 8192


class Process(Sockets):
    """`fenced serve` in a child process, with a service manager that listens."""

    program: tuple[str, ...] = ("-m", "client.cli", "serve", "--config")
    pass_fds: tuple[int, ...] = ()

    def __init__(
        self, site: Path, folder: Path, bundles: Sequence[Path], maker: BundleMaker, *, more: str = ""
    ) -> None:
        super().__init__(folder / "sockets")
        self.folder = folder
        self._site = site
        self.config_path = folder / "fenced.toml"
        self.config_path.write_text(config_text(folder, bundles, maker, more))
        self.child: subprocess.Popen[str] | None = None

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Starts it and waits for READY=1 or its end."""
        with manager_socket(self.folder / "notify") as manager:
            self.child = subprocess.Popen(
                vehicle.command(*self.program, str(self.config_path)),
                env=vehicle.environment(self._site, NOTIFY_SOCKET=str(self.folder / "notify"), **environment),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=self.pass_fds,
            )
            wait_for_line(manager, "READY=1", self.child)
        return self.child

    def fenced(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another `fenced` command from the same environment."""
        return subprocess.run(
            vehicle.command("-m", "client.cli", *arguments),
            env=vehicle.environment(self._site),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )

    def fenced_into_closed_pipe(self, *arguments: str) -> tuple[int, str]:
        """Status and stderr of a command whose output nobody reads any more."""
        reader, writer = os.pipe()
        os.close(reader)
        command, environment = vehicle.command("-m", "client.cli", *arguments), vehicle.environment(self._site)
        try:
            done = subprocess.run(
                command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S
            )
        finally:
            os.close(writer)
        return done.returncode, done.stderr

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        assert self.child is not None
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(LIMIT_S)


@pytest.fixture
def process(vehicle_site: Path, tmp_path: Path, maker: BundleMaker) -> Iterator[Process]:
    """A daemon that serves OLD; NEW is installed beside it."""
    daemon = Process(vehicle_site, tmp_path, [maker.write(OLD)], maker)
    yield daemon
    if daemon.child is not None and daemon.child.poll() is None:
        daemon.child.kill()
    if daemon.child is not None:
        daemon.child.communicate()


def test_the_device_is_opened_as_the_configuration_says_for_every_model(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    core = max(os.sched_getaffinity(0))
    options = f"[device]\npin_cores = [{core}]\nlock_memory = true\nqueue_slots = 2\n"
    daemon = Process(vehicle_site, tmp_path, [maker.write(OLD)], maker, more=options)
    child = daemon.start()
    try:
        with daemon.camera() as camera, daemon.consumer() as consumer, daemon.control() as control:
            control.activate(maker.write(NEW))  # after the seal
            run_one(camera, consumer, 1, picture(1))
        proc = Path(f"/proc/{child.pid}")
        workers = [
            task for task in (proc / "task").iterdir() if _line(task / "status", "Cpus_allowed_list") == f"{core}"
        ]
        assert len(workers) == 2 * OLD.graph().threads  # the model that serves, and the one that is kept
        assert int(_line(proc / "status", "VmLck").removesuffix(" kB")) > 0
        assert daemon.stop() == 0
    finally:
        child.kill()
        child.communicate()


def _line(path: Path, name: str) -> str:
    """One field of a /proc status file; empty where the thread has ended since its folder was listed."""
    try:
        lines = path.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(name))


def test_a_sealed_daemon_does_all_its_work_without_a_forbidden_act(process: Process, maker: BundleMaker) -> None:
    process.start()
    new = maker.write(NEW)
    tampered = new.with_name("tampered.fenced")
    tampered.write_bytes(flip_byte(new.read_bytes(), CODE_OFFSET))
    tampered.chmod(0o644)
    with process.camera() as camera, process.consumer() as consumer, process.control() as control:
        for sequence in range(5):
            outputs = run_one(camera, consumer, sequence, picture(sequence)).outputs
            assert np.array_equal(outputs["values"], OLD.values(picture(sequence)))
        with pytest.raises(Refused, match="digest-mismatch"):
            control.activate(tampered)
        control.activate(new)
        outputs = run_one(camera, consumer, 5, picture(5)).outputs
        assert np.array_equal(outputs["values"], NEW.values(picture(5)))
        control.rollback()
        control.drain()
        control.resume()
        control.reset_state()
        assert "fenced_frames_ended_total" in control.metrics()
        status = control.status()
    assert status["guard"]["sealed"] is True
    assert set(status["guard"]["refused"].values()) == {0}
    assert process.stop() == 0
    assert verify(str(process.folder / "state" / "audit.jsonl")).entries >= 7


def test_killed_in_mid_run_the_daemon_publishes_nothing(process: Process) -> None:
    child = process.start()
    with process.camera() as camera, process.consumer() as consumer:
        submit(camera, 1, picture(1, first=255))
        process.wait_for(lambda status: status["models"][0]["busy"])
        child.kill()
        with pytest.raises(ConnectionLost):
            consumer.recv(timeout_s=LIMIT_S)
        assert consumer.torn == 0
        with pytest.raises(ConnectionLost):
            ended(camera)  # its end shows as a closed socket, not as a release
        assert camera.ledger.held == 1
        assert consumer._ring[:8] == bytes(8)  # the first slot of the ring was never written


def test_a_killed_daemon_starts_again_over_what_it_left(process: Process) -> None:
    process.start().kill()
    assert process.child is not None
    process.child.communicate()
    assert (process.sockets / "camera.sock").exists()
    process.start()
    with process.camera() as camera, process.consumer() as consumer:
        run_one(camera, consumer, 1, picture(1))
    verify(str(process.folder / "state" / "audit.jsonl"))


def test_a_second_daemon_on_the_same_sockets_is_refused_and_the_first_serves_on(
    process: Process, vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    process.start()
    text = process.config_path.read_text().replace(f"{tmp_path / 'state'}", f"{tmp_path / 'other-state'}")
    (tmp_path / "second.toml").write_text(text)
    second = process.fenced("serve", "--config", str(tmp_path / "second.toml"))
    assert second.returncode == 3
    assert "sockets-taken" in second.stderr
    with process.camera() as camera, process.consumer() as consumer:
        run_one(camera, consumer, 1, picture(1))


def test_a_hang_that_cannot_be_reset_ends_the_process_with_a_fault(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    bundle = maker.write(TinyModel("slow", budget_ns=200_000_000))
    process = Process(vehicle_site, tmp_path, [bundle], maker)
    child = process.start()
    with process.camera() as camera:
        submit(camera, 1, picture(1, first=255))
        with pytest.raises(ConnectionLost):
            ended(camera)
    _, log = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 1
    assert "device is lost" in log
    assert "device-hang" in log


@pytest.mark.parametrize("case", ["unsigned", "missing", "no root", "configuration"])
def test_a_start_that_must_fail_ends_with_its_status_and_code(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker, case: str
) -> None:
    statuses = {"unsigned": (3, "no-valid-signature"), "missing": (3, "unreadable-file"),
                "no root": (3, "unreadable-file"), "configuration": (2, "limits.slots")}  # fmt: skip
    bundle = maker.write(OLD, edit=lambda simulator: setattr(simulator, "signers", ()))
    if case == "missing":
        bundle.unlink()
    process = Process(vehicle_site, tmp_path, [bundle], maker)
    if case == "no root":
        maker.root_path.unlink()
    if case == "configuration":
        process.config_path.write_text(process.config_path.read_text() + "slots = 0\n")
    done = process.fenced("serve", "--config", str(process.config_path))
    assert (done.returncode, statuses[case][1] in done.stderr) == (statuses[case][0], True), done.stderr
    assert (f"{bundle} must serve" in done.stderr) == (case in {"unsigned", "missing"})


def test_a_dirty_environment_is_refused_before_anything_is_opened(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    process = Process(vehicle_site, tmp_path, [maker.write(OLD)], maker)
    (tmp_path / "extra" / "onnx").mkdir(parents=True)
    done = subprocess.run(
        vehicle.command("-m", "client.cli", "serve", "--config", str(process.config_path)),
        env={**vehicle.environment(vehicle_site), "PYTHONPATH": f"{vehicle_site}:{tmp_path / 'extra'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "dirty-process: importable: onnx" in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("package", ["lab", "onnx", "onnxruntime", "torch", "ziglang", "tinygrad"])
def test_the_vehicle_environment_holds_nothing_of_the_lab(vehicle_site: Path, package: str) -> None:
    done = subprocess.run(
        vehicle.command("-c", f"import {package}"),
        env=vehicle.environment(vehicle_site),
        capture_output=True,
        check=False,
    )
    assert b"ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_there_is_anything_to_stop_ends_the_start_in_order(
    process: Process, number: signal.Signals
) -> None:
    marked = (
        "import os, sys; from client import cli; from daemon import record; check = record.assert_as_installed\n"
        f"record.assert_as_installed = lambda: (os.kill(os.getpid(), {int(number)}), check())\n"
        "sys.exit(cli.main(['serve', '--config', sys.argv[1]]))"
    )
    child = subprocess.run(
        vehicle.command("-c", marked, str(process.config_path)),
        env=vehicle.environment(process._site), capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert (child.returncode, "Traceback" in child.stderr) == (0, False)
    assert verify(str(process.folder / "state" / "audit.jsonl")).entries >= 2  # started, stopped
    assert list(process.sockets.glob("*.sock")) == []


def test_a_standard_descriptor_that_is_closed_is_not_given_to_a_file(vehicle_site: Path, tmp_path: Path) -> None:
    program = (
        "import os, sys; from daemon.serve import fill_standard_descriptors; os.closerange(0, 3);"
        "fill_standard_descriptors(); sys.exit(os.open(sys.argv[1], os.O_RDONLY))"
    )
    child = subprocess.run(
        vehicle.command("-c", program, str(tmp_path)),
        env=vehicle.environment(vehicle_site),
        check=False,
        timeout=LIMIT_S,
    )
    assert child.returncode == 3  # the descriptor after the standard ones


def test_the_watchdog_is_fed_while_the_loop_turns(process: Process) -> None:
    with manager_socket(process.folder / "notify") as manager:
        environment = vehicle.environment(
            process._site, NOTIFY_SOCKET=str(process.folder / "notify"), WATCHDOG_USEC="100000"
        )
        process.child = subprocess.Popen(
            vehicle.command("-m", "client.cli", "serve", "--config", str(process.config_path)),
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in ("EXTEND_TIMEOUT_USEC=", "READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"):
            wait_for_line(manager, line, process.child)
        process.child.send_signal(signal.SIGTERM)
        wait_for_line(manager, "STOPPING=1", process.child)
        assert process.child.wait(LIMIT_S) == 0


def test_the_commands_work_on_a_running_daemon(process: Process, maker: BundleMaker) -> None:
    process.start()
    new = maker.write(NEW)
    sockets = ("--sockets", str(process.sockets))
    status = process.fenced("status", "--json", *sockets)
    assert (status.returncode, json.loads(status.stdout)["state"]) == (0, "serving")
    assert "serving" in process.fenced("status", *sockets).stdout
    assert process.fenced("activate", str(new), *sockets).returncode == 0
    assert process.fenced("rollback", *sockets).returncode == 0
    for command in ("drain", "resume", "reset-state", "metrics"):
        done = process.fenced(command, *sockets)
        assert done.returncode == 0, done.stderr
    assert process.fenced_into_closed_pipe("status", *sockets) == (0, "")
    refused = process.fenced("activate", str(new.with_name("none.fenced")), "--json", *sockets)
    assert refused.returncode == 3
    assert "unreadable-file" in refused.stderr
    assert json.loads(refused.stdout)["refused"]["code"] == "unreadable-file"
    process.stop()
    gone = process.fenced("status", *sockets)
    assert gone.returncode == 1
    assert f"no daemon listens at {process.sockets}/control.sock" in gone.stderr
    audit = process.fenced("audit", "verify", str(process.folder / "state" / "audit.jsonl"))
    assert (audit.returncode, "head_sha256" in audit.stdout) == (0, True)


def test_the_commands_look_at_bundles_without_a_daemon(process: Process, maker: BundleMaker) -> None:
    good = maker.write(NEW)
    bad = good.with_name("bad.fenced")
    bad.write_bytes(flip_byte(good.read_bytes(), CODE_OFFSET))
    bad.chmod(0o644)
    root = str(maker.root_path)
    verified = process.fenced("verify", str(good), "--root", root, "--json")
    assert (verified.returncode, json.loads(verified.stdout)["model"]) == (0, "tiny")
    refused = process.fenced("verify", str(bad), "--root", root, "--json")
    assert refused.returncode == 3
    assert "digest-mismatch" in refused.stderr
    assert json.loads(refused.stdout)["refused"]["code"] == "digest-mismatch"
    shown = json.loads(process.fenced("inspect", str(good), "--json").stdout)
    assert (shown["entrypoints"][0]["launches"], shown["entrypoints"][0]["budget_ms"]) == (1, 5000.0)
    (given,) = shown["inputs"]
    assert (given["stream"], given["format"], given["width"]) == ("road", "R8", WIDTH)
    assert (given["chroma_site"], given["plane_strides"]) == ("notSubsampled", [WIDTH])
    tested = process.fenced("selftest", str(good), "--root", root, "--json")
    assert (tested.returncode, json.loads(tested.stdout)["passed"]) == (0, True), tested.stdout
    assert json.loads(process.fenced("devices", "--json").stdout)["driver"] == "cpu"
    assert process.fenced("check-config", str(process.config_path)).returncode == 0
    assert process.fenced("verify", str(good)).returncode == 2  # no root: wrong usage


def test_a_stalled_log_reader_does_not_stall_frames(process: Process) -> None:
    child = process.start()  # its stderr is a pipe that nobody reads
    with process.camera() as camera, process.consumer() as consumer:
        for _ in range(300):  # more lines than a pipe holds
            with pytest.raises(Refused):
                process.camera("no-such-stream-" + "x" * 40)
        run_one(camera, consumer, 1, picture(1))
    assert process.status()["faults"]["log_lines_dropped"] > 0
    assert child.poll() is None
