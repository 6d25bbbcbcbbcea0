"""Broken leases: a slot written while the daemon holds it, and generations of a session that is over."""

from __future__ import annotations

import time
from dataclasses import replace

from client.camera import Camera
from lab.hil.bench import PROBES, Bench, Need
from lab.hil.clients import ended, picture, run_one, submit
from lab.hil.faults.fault import Fault
from lab.hil.probe import ENDLESS, Pixels
from lab.hil.verdict import WrongAnswer, expect

__all__ = ["FAULTS", "raise_control_word"]

LONG = 250  # of the slow probe: some 0.5 s


def raise_control_word(camera: Camera, slot: int) -> None:
    """Begins to write a slot that the daemon holds: what `acquire` would do, had the slot come back."""
    camera._control[slot] += 1


def overwrite(bench: Bench) -> str:
    """Two writes into a slot during its run: one with the control word raised, one behind its back."""
    with bench.camera("slow") as camera, bench.consumer("slow") as consumer:
        slot, _ = _in_flight(bench, camera, 1, LONG)
        raise_control_word(camera, slot)
        expect("torn frames", ended(camera)["torn"], 1)
        raise_control_word(camera, slot)  # written: even again
        _, pixels = _in_flight(bench, camera, 2, ENDLESS)
        pixels[1:] ^= 0xFF
        pixels[0] = 0  # which ends the run
        expect("torn frames", ended(camera)["torn"], 2)
        try:
            consumer.recv()
        except TimeoutError:
            return "both discarded and counted as torn; no result was published"
        raise WrongAnswer("results of frames that were overwritten", "none", "one")


def _in_flight(bench: Bench, camera: Camera, sequence: int, first: int) -> tuple[int, Pixels]:
    """Submits a frame and waits until it runs; its slot, and the pixels that are no longer ours."""
    frame = camera.acquire()
    slot, pixels = frame.slot, frame.pixels
    pixels[:] = picture(sequence, first=first)
    camera.submit(frame, sequence, time.monotonic_ns())
    bench.wait_for(lambda status: any(one["busy"] for one in status["models"] if one["name"] == "slow"))
    return slot, pixels


def restart(bench: Bench) -> str:
    """The daemon is killed and started again; the camera reconnects and goes on with its old generations."""
    with bench.own("restart", [PROBES["tiny"]]) as daemon:
        own = replace(bench, sockets=daemon.sockets)
        with own.camera() as camera:
            for sequence in range(3):
                submit(camera, sequence, picture(1))
                ended(camera)
            daemon.kill()
        daemon.start()
        with own.camera() as camera, own.consumer() as consumer:
            camera._stream.leases[0].generation = 3  # as a camera would that missed the restart
            submit(camera, 4, picture(1))
            expect("refusals", ended(camera)["refusals"], {"bad_generation": 1})
            run_one(camera, consumer, 5, picture(2))
    return "the old generation refused as bad_generation; a new lease runs"


FAULTS = (
    Fault("frames/15", "producer overwrites a held buffer", "result torn: discarded and counted", Need.PROBES,
          overwrite),
    Fault("frames/18", "stale frame after connection loss", "refused: unknown generation; new leases work", Need.OWN,
          restart),
)  # fmt: skip
