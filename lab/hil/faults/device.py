"""A device that hangs or is lost: the daemon's own limit fires first; no slot is freed before a reset or its end."""

from __future__ import annotations

import json
from dataclasses import replace

from client.errors import ConnectionLost
from lab.hil.bench import PROBES, Bench, Need
from lab.hil.clients import LIMIT_S, ended, picture, run_one, submit
from lab.hil.daemon import DaemonProcess
from lab.hil.faults.fault import Fault
from lab.hil.probe import ENDLESS
from lab.hil.verdict import WrongAnswer, expect, expect_in

__all__ = ["FAULTS"]

FAULT_STATUS = 1
SHORT_OVERRUN = 120  # first pixel for the slow probe: some 0.24 s
HANG_BUDGET_NS, RESET_BUDGET_NS = 400_000_000, 100_000_000  # the golden vectors take microseconds


def stall(bench: Bench) -> str:
    """A kernel far beyond its signed budget, that cannot be interrupted."""
    with bench.own("stall", [replace(PROBES["slow"], budget_ns=HANG_BUDGET_NS)]) as daemon:
        own = replace(bench, sockets=daemon.sockets)
        with own.camera("slow") as camera:
            submit(camera, 1, picture(1, first=ENDLESS))
            try:
                ended(camera)
            except ConnectionLost:
                return _ended(daemon, held=camera.ledger.held)
    raise WrongAnswer("a run of 10 s with a budget of 0.4 s", "a device that hangs", "a frame given back")


def _ended(daemon: DaemonProcess, held: int) -> str:
    """The daemon ended by itself: with a fault, with the reason on record, and with the slot never given back."""
    expect("exit status", daemon.wait(LIMIT_S), FAULT_STATUS)
    expect("frames that the camera never got back", held, 1)
    expect_in("the log", daemon.log_path.read_text(), ["device is lost", "device-hang"])
    events = [json.loads(line)["event"] for line in daemon.audit_path.read_text().splitlines()]
    if "device.lost" not in events:
        raise WrongAnswer("audit log", "device.lost in it", ", ".join(events))
    return "device-hang by the daemon's own limit; it ended with status 1 for the service manager to start it anew"


def lost(bench: Bench) -> str:
    """A kernel beyond its budget that ends soon after: the device latches and is reset (or the daemon ends cleanly)."""
    with bench.own("lost", [replace(PROBES["slow"], budget_ns=RESET_BUDGET_NS)]) as daemon:
        own = replace(bench, sockets=daemon.sockets)
        with own.camera("slow") as camera, own.consumer("slow") as consumer:
            epoch = run_one(camera, consumer, 1, picture(1)).receipt.state_epoch
            submit(camera, 2, picture(2, first=SHORT_OVERRUN))
            try:
                expect("frames lost", ended(camera)["lost"], 1)
            except ConnectionLost:
                return _ended(daemon, held=camera.ledger.held)
            delivery = run_one(camera, consumer, 3, picture(3))
            expect("frame of the next result", delivery.receipt.frames[0].sequence, 3)
            expect("state epoch after the reset", delivery.receipt.state_epoch, epoch + 1)
            expect("resets of the device", own.status()["faults"]["device_resets"], 1)
    return "the fence ended in an error, the frame came back as lost after the reset, and the next one ran"


FAULTS = (
    Fault("runtime/8", "30 s timeout inside the runtime",
          "the daemon's own limit fires first, with a device-hang status", Need.OWN, stall),
    Fault("runtime/12", "device lost mid-frame",
          "fences in error, frames released after the reset, or a clean exit", Need.OWN, lost),
)  # fmt: skip
