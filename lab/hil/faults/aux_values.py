"""Aux inputs that are too old: the run is refused, or takes the signed default, as the contract says."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from client.camera import Camera
from client.errors import Refused
from lab.hil.bench import AUX_MAX_AGE_NS, PROBES, Bench, Need
from lab.hil.clients import ended, picture, run_one, submit
from lab.hil.faults.fault import Fault
from lab.hil.verdict import WrongAnswer, expect

__all__ = ["FAULTS"]


def gain(value: float) -> bytes:
    """The aux input's bytes: one float32."""
    return np.float32(value).tobytes()


def stale(bench: Bench) -> str:
    """A gain that is older than its limit, for a model without a default and for one with."""
    model = PROBES["scale"]
    with bench.camera("scale") as camera, bench.consumer("scale") as consumer:
        _set_stale(camera)
        submit(camera, 1, picture(1))
        expect("refusals of the stale gain", ended(camera)["refusals"], {"bad_aux": 1})
        camera.set_aux("gain", time.monotonic_ns(), gain(3.0))
        delivery = run_one(camera, consumer, 2, picture(2))
        if (delivery.outputs["values"] != model.values(picture(2), gain=3.0)).any():
            raise WrongAnswer("outputs with a fresh gain of 3", "three times the pixels", "others")
        (age_ns,) = delivery.receipt.aux_ages_ns
        if not 0 <= age_ns <= AUX_MAX_AGE_NS:
            raise WrongAnswer("age in the receipt", f"0..{AUX_MAX_AGE_NS} ns", f"{age_ns} ns")
    return f"stale: refused; fresh: run, its age in the receipt {age_ns / 1e6:.2f} ms; {_default(bench)}"


def _default(bench: Bench) -> str:
    if bench.daemon is None:
        return "the default was not tried: it needs a daemon of the harness's own"
    model = replace(PROBES["scale"], aux_default=gain(2.0))
    with bench.own("default", [model]) as daemon:
        own = replace(bench, sockets=daemon.sockets)
        with own.camera("scale") as camera, own.consumer("scale") as consumer:
            delivery = run_one(camera, consumer, 1, picture(3))
    if (delivery.outputs["values"] != model.values(picture(3), gain=2.0)).any():
        raise WrongAnswer("outputs without a gain", "those of the signed default", "others")
    expect("age of the default", delivery.receipt.aux_ages_ns, ())
    return "with a signed default: run by it, and the receipt says so"


def _set_stale(camera: Camera) -> None:
    """Sets a gain that is older than its limit: as such, or, where a younger one was set, by waiting."""
    set_ns = time.monotonic_ns() - AUX_MAX_AGE_NS
    try:
        camera.set_aux("gain", set_ns, gain(3.0))
    except Refused:  # times must rise
        set_ns = time.monotonic_ns()
        camera.set_aux("gain", set_ns, gain(3.0))
    while (left_ns := set_ns + AUX_MAX_AGE_NS - time.monotonic_ns()) >= 0:
        time.sleep(left_ns / 1e9 + 1e-3)


FAULTS = (
    Fault("frames/30", "stale calibration accepted",
          "refused or signed default, as the contract says; age in the receipt", Need.PROBES, stale),
)  # fmt: skip
