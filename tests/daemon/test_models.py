"""A model serves only after everything held; whatever is refused, what served before goes on serving."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abi.graph import Graph
from abi.packet import RefusalCode
from client.errors import Refused
from daemon import models, roster
from daemon.audit import verify
from daemon.models import ModelLoader
from daemon.refusal import ModelRefused
from hal.error import HalCode, HalError
from tests.simulators import BundleSimulator, flip_byte
from tests.support.bundles import OUT_BYTES, BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import Gate, HeldModel
from tests.support.scripted import no_descriptor_leaks

OLD = TinyModel("add", number=3)
NEW = TinyModel("add", version="2.0.0", release=2, number=50)


def unsigned(simulator: BundleSimulator) -> None:
    simulator.signers = ()


def by_release_only(simulator: BundleSimulator) -> None:
    simulator.signers = simulator.keys.release


def altered_golden(simulator: BundleSimulator) -> None:
    simulator.blobs["goldens"] = flip_byte(simulator.blobs["goldens"], 0)


def no_graph(simulator: BundleSimulator) -> None:
    simulator.blobs["graph"] = b"\x80\x04N."  # a pickle


def other_code(simulator: BundleSimulator) -> None:
    simulator.blobs["code"] = b"\x7fELF" + bytes(4096)


def other_hal(simulator: BundleSimulator) -> None:
    simulator.statement = replace(simulator.statement, hal_version=2)


def too_much_memory(simulator: BundleSimulator) -> None:
    target = replace(simulator.statement.target, min_memory_bytes=1 << 50)
    simulator.statement = replace(simulator.statement, target=target)


def upper_case_name(simulator: BundleSimulator) -> None:
    simulator.statement = replace(simulator.statement, model=replace(simulator.statement.model, name="Tiny"))


def beyond_the_output(graph: Graph) -> Graph:
    launch = graph.launches[0]
    argument = replace(launch.arguments[0], size_bytes=OUT_BYTES + 4)
    return replace(graph, launches=(replace(launch, arguments=(argument, *launch.arguments[1:])),))


def one_golden(graph: Graph) -> Graph:
    return replace(graph, goldens=graph.goldens[:1])


def golden_beyond(graph: Graph) -> Graph:
    return replace(graph, goldens=(graph.goldens[0], replace(graph.goldens[1], output_offset=1 << 20)))


def delay_loads(monkeypatch: pytest.MonkeyPatch, gate: threading.Event) -> None:
    """No bundle is loaded before the gate is open."""
    load = ModelLoader.load
    monkeypatch.setattr(ModelLoader, "load", lambda self, path, **how: (gate.wait(LIMIT_S), load(self, path, **how))[1])


REFUSALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unsigned": ({"edit": unsigned}, "trust", "no-valid-signature"),
    "signed by one role": ({"edit": by_release_only}, "trust", "threshold-not-met"),
    "wrong CPU features": ({"cpu_features": ("avx512_teleport",)}, "trust", "target-mismatch"),
    "another HAL version": ({"edit": other_hal}, "trust", "target-mismatch"),
    "more memory than there is": ({"edit": too_much_memory}, "trust", "target-mismatch"),
    "a pickle for a graph": ({"edit": no_graph}, "admission", "truncated"),
    "code that is no ELF file": ({"edit": other_code}, "admission", "code"),
    "a launch beyond its buffer": ({"edit_graph": beyond_the_output}, "admission", "argument-range"),
    "altered golden outputs": ({"edit": altered_golden}, "self-test", "self-test-golden"),
    "one golden vector": ({"edit_graph": one_golden}, "self-test", "self-test-goldens"),
    "a golden vector beyond the blob": ({"edit_graph": golden_beyond}, "self-test", "self-test-goldens"),
    "a name that the ABI cannot carry": ({"edit": upper_case_name}, "contract", "model-name"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_bad_bundle_is_refused_by_name_and_the_old_model_serves_on(
    tmp_path: Path, maker: BundleMaker, case: str
) -> None:
    how, step, code = REFUSALS[case]
    bad = maker.write(NEW, "bad.fenced", **how)
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        before = control.status()["device"]["memory"]
        with pytest.raises(Refused) as refused:
            control.activate(bad)
        assert refused.value.code is RefusalCode.MODEL_REFUSED
        assert refused.value.what.startswith(f"{code}:")
        assert refused.value.action
        outputs = run_one(camera, consumer, 1, picture(1)).outputs
        assert np.array_equal(outputs["values"], OLD.values(picture(1)))
        assert control.status()["device"]["memory"] == before
        entry = json.loads((tmp_path / "state" / "audit.jsonl").read_text().splitlines()[-1])
        assert (entry["event"], entry["step"], entry["code"]) == ("bundle.refused", step, code)
    assert verify(str(tmp_path / "state" / "audit.jsonl")).entries > 3


def test_an_oversize_bundle_is_refused_before_it_is_read(tmp_path: Path, maker: BundleMaker) -> None:
    big = maker.folder / "big.fenced"
    with big.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    big.chmod(0o644)
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.control() as control,
        pytest.raises(Refused, match="file-too-large"),
    ):
        control.activate(big)


def test_a_bundle_outside_the_allowed_folders_is_not_opened(tmp_path: Path, maker: BundleMaker) -> None:
    outside = tmp_path / "outside.fenced"
    outside.write_bytes(maker.write(NEW).read_bytes())
    (tmp_path / "elsewhere" / "inner").mkdir(parents=True)
    (maker.folder / "link").symlink_to(tmp_path / "elsewhere" / "inner")
    (tmp_path / "elsewhere" / "new.fenced").write_bytes(outside.read_bytes())
    through = maker.folder / "link" / ".." / "new.fenced"  # reads as one in the folder, and is not
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as control:
        for path in (outside, maker.folder / ".." / "outside.fenced", Path("outside.fenced"), through):
            with pytest.raises(Refused) as refused:
                control.activate(path)
            assert refused.value.code is RefusalCode.NOT_PERMITTED
            entry = json.loads((tmp_path / "state" / "audit.jsonl").read_text().splitlines()[-1])
            assert (entry["event"], entry["path"]) == ("activation.refused", str(path))


def test_a_refused_bundle_at_start_ends_the_daemon_with_status_3(tmp_path: Path, maker: BundleMaker) -> None:
    daemon = DaemonThread(tmp_path, [maker.write(OLD, edit=unsigned)], maker)
    assert daemon.run_to_the_end() == 3
    assert any("no-valid-signature" in line for line in daemon.log.lines)


def test_drain_is_refused_before_the_daemon_serves(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    delay_loads(monkeypatch, gate)
    refusals: list[Refused] = []
    daemon = DaemonThread(tmp_path, [maker.write(OLD)], maker)

    def drain_early() -> None:
        with daemon.control() as control:
            try:
                control.drain()
            except Refused as refusal:
                refusals.append(refusal)
        gate.set()

    operator = threading.Thread(target=drain_early)
    operator.start()
    with daemon, daemon.camera() as camera, daemon.consumer() as consumer:
        operator.join()
        assert [one.code for one in refusals] == [RefusalCode.NOT_READY]
        assert run_one(camera, consumer, 1, picture(1))


def test_a_frame_whose_fence_ends_while_the_daemon_is_drained_goes_back(tmp_path: Path, maker: BundleMaker) -> None:
    more = "[limits]\nin_fence_timeout_ms = 60000\n"
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker, more=more) as daemon,
        daemon.camera() as camera,
        daemon.control() as control,
    ):
        fence = os.eventfd(0)
        submit(camera, 1, picture(1), in_fence=fence)
        daemon.wait_for(lambda status: status["streams"]["road"]["held"])
        control.drain()
        os.eventfd_write(fence, 1)
        os.close(fence)
        assert ended(camera)["refusals"] == {"not_ready": 1}


def test_a_frame_that_waits_for_its_fence_runs_where_its_stream_stands_in_the_new_model(
    tmp_path: Path, maker: BundleMaker
) -> None:
    old = maker.write(TinyModel("pair", streams=("left", "right")))
    new = maker.write(TinyModel("add", version="2.0.0", release=2, streams=("right",)))
    more = "[limits]\nin_fence_timeout_ms = 60000\n"
    with (
        DaemonThread(tmp_path, [old], maker, more=more) as daemon,
        daemon.camera("right") as camera,
        daemon.control() as control,
    ):
        fence = os.eventfd(0)
        submit(camera, 1, picture(1), in_fence=fence)
        daemon.wait_for(lambda status: status["streams"]["right"]["held"])
        control.activate(new)
        os.eventfd_write(fence, 1)
        os.close(fence)
        assert ended(camera)["run"] == 1


def test_drain_refuses_new_frames_until_resume(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [HeldModel().write(maker)], maker) as daemon,
        daemon.camera() as camera,
        daemon.control() as control,
        Gate() as gate,
    ):
        submit(camera, 1, gate.picture(1))
        gate.wait()
        answers = list[dict[str, Any]]()
        draining = threading.Thread(target=lambda: answers.append(control.drain()))
        draining.start()
        daemon.wait_for(lambda status: status["state"] == "draining")
        gate.open()
        draining.join()
        assert answers[0]["state"] == "draining"
        assert ended(camera)["run"] == 1  # what was in flight was finished
        submit(camera, 2, picture(2))
        assert ended(camera)["refusals"] == {"not_ready": 1}
        assert control.resume()["state"] == "serving"
        submit(camera, 3, picture(3))
        assert ended(camera)["run"] == 2


def test_a_second_activation_at_the_same_time_is_refused(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as one, daemon.control() as two:
        load = ModelLoader.load
        monkeypatch.setattr(
            ModelLoader, "load", lambda self, path, **how: (gate.wait(LIMIT_S), load(self, path, **how))[1]
        )
        new = maker.write(NEW)
        waiting = threading.Thread(target=one.activate, args=(new,))
        waiting.start()
        daemon.wait_for(lambda status: daemon.service.switching.activator.busy)
        with pytest.raises(Refused) as refused:
            two.activate(new)
        assert refused.value.code is RefusalCode.LIMIT
        gate.set()
        waiting.join()


@pytest.mark.parametrize("fault", [MemoryError("planted"), ModelRefused])
def test_a_fault_while_loading_leaves_the_old_model_serving(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    def fail(*_: object) -> None:
        raise fault if isinstance(fault, Exception) else RuntimeError("planted")

    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as control:
        monkeypatch.setattr(models, "decode", fail)
        with pytest.raises(Refused, match="fault: loading"):
            control.activate(maker.write(NEW))
        assert control.status()["state"] == "serving"


def test_a_full_disk_stops_new_models_and_nothing_that_serves(tmp_path: Path, maker: BundleMaker) -> None:
    newest = maker.write(replace(NEW, version="3.0.0", release=3))
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.activate(maker.write(NEW))
        log = daemon.service.audit._fd
        kept = os.dup(log)
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), log)
        with pytest.raises(Refused, match=r"system: loading .* No space left .*audit\.jsonl.; free disk space"):
            control.activate(newest)
        control.rollback()
        assert np.array_equal(run_one(camera, consumer, 1, picture(1)).outputs["values"], OLD.values(picture(1)))
        status = control.status()
        assert status["faults"]["internal_errors"] == 0
        assert status["faults"]["audit_entries_lost"] == 2  # rollback, serving
        os.dup2(kept, log)
        os.close(kept)
        control.activate(newest)
    assert daemon.exit_status == 0
    assert verify(str(tmp_path / "state" / "audit.jsonl")).entries > 3


@pytest.mark.parametrize("unit", ["1", "m"])  # with the ring of the one that serves, and with another
def test_a_model_that_finds_no_memory_is_refused_and_the_old_one_serves_on(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    def full(*_: object) -> None:
        raise HalError(HalCode.OUT_OF_MEMORY, "no memory is left", todo="free memory")

    newest = maker.write(replace(NEW, version="3.0.0", release=3, unit=unit))
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.activate(maker.write(NEW))
        before = control.status()["device"]["memory"]
        daemon.service.switching.settle()
        with monkeypatch.context() as patched, no_descriptor_leaks():
            patched.setattr(roster, "Pipeline", full)
            for change in (lambda: control.activate(newest), control.rollback):
                with pytest.raises(Refused, match=r"out-of-memory: .*free memory"):
                    change()
            daemon.service.switching.settle()
        assert control.status()["device"]["memory"] == before
        assert np.array_equal(run_one(camera, consumer, 1, picture(1)).outputs["values"], NEW.values(picture(1)))
        control.rollback()


def test_loaded_bytes_are_the_verified_ones(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = maker.write(NEW)
    verified: Callable[..., Any] = models.verify_bundle

    def verify_then_swap(*arguments: Any, **named: Any) -> Any:
        bundle = verified(*arguments, **named)
        evil = new.with_name("evil")
        evil.write_bytes(b"other bytes")
        os.replace(evil, new)
        return bundle

    monkeypatch.setattr(models, "verify_bundle", verify_then_swap)
    with (
        DaemonThread(tmp_path, [new], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        outputs = run_one(camera, consumer, 1, picture(1)).outputs
        assert np.array_equal(outputs["values"], NEW.values(picture(1)))
