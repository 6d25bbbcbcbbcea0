"""Processes that die or come twice: a camera killed in mid-frame, a dead or stopped consumer, a second daemon."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

from lab.hil.bench import PROBES, Bench, Need
from lab.hil.clients import LIMIT_S, ended, picture, run_one, submit
from lab.hil.faults.fault import Fault
from lab.hil.peer import LONG, peer_process
from lab.hil.verdict import WrongAnswer, expect, expect_in

__all__ = ["FAULTS"]

FRAMES = 100
REFUSED_STATUS = 3


def camera(bench: Bench) -> str:
    """SIGKILL for a camera whose frame is on the device."""
    before = bench.status()["streams"].get("slow", {}).get("run", 0)
    with bench.consumer("slow") as consumer:
        with peer_process("camera", bench.sockets, "slow") as process:
            bench.wait_for(lambda status: _is_busy(status) or status["streams"]["slow"]["run"] > before)
            process.kill()
            process.wait()
        delivery = consumer.recv(timeout_s=LIMIT_S)
    if (delivery.outputs["values"] != picture(1, first=LONG)).any():
        raise WrongAnswer("the result of the dead camera's frame", "that of its pixels", "another")
    status = bench.wait_for(lambda status: status["streams"]["slow"]["held"] == 0)
    expect("frames run", status["streams"]["slow"]["run"], before + 1)
    with bench.camera("slow") as again:
        submit(again, 1, picture(1))
        expect("frames run by the next camera", ended(again)["run"], 1)
    return "its frame ran to the fence and was counted; the slot and the stream are free again"


def _is_busy(status: dict[str, Any]) -> bool:
    return any(one["busy"] for one in status["models"] if one["name"] == "slow")


def consumer(bench: Bench) -> str:
    """SIGKILL and SIGSTOP for a consumer beside another."""
    with bench.camera() as camera, bench.consumer() as alive:
        for begin, how in ((0, signal.SIGKILL), (FRAMES, signal.SIGSTOP)):
            with peer_process("consumer", bench.sockets, "tiny") as process:
                process.send_signal(how)
                for sequence in range(begin, begin + FRAMES):
                    pixels = picture(sequence)
                    outputs = run_one(camera, alive, sequence, pixels).outputs
                    if (outputs["values"] != PROBES["tiny"].values(pixels)).any():
                        raise WrongAnswer(f"result {sequence} beside a consumer after {how.name}", "right", "wrong")
        expect("frames run", ended(camera)["run"], 2 * FRAMES)
        bench.wait_for(lambda status: status["peers"]["consumer"] == 1)
    return f"{FRAMES} frames each beside a killed and a stopped consumer: all run, none held"


def second(bench: Bench) -> str:
    """Another daemon is started on the same sockets."""
    with bench.own("first", [PROBES["tiny"]]) as daemon:
        own = replace(bench, sockets=daemon.sockets)
        text = daemon.config_path.read_text().replace(str(daemon.folder / "state"), str(daemon.folder / "second"))
        config = daemon.folder / "second.toml"
        config.write_text(text)
        done = daemon.command("serve", "--config", str(config))
        expect("exit status of the second", done.returncode, REFUSED_STATUS)
        expect_in("what it says", done.stderr, ["sockets-taken"])
        with own.camera() as camera, own.consumer() as consumer:
            run_one(camera, consumer, 1, picture(1))
    return f"the second ends with status {done.returncode}: {done.stderr.strip()}; the first serves on"


FAULTS = (
    Fault("frames/25", "killed producer stays connected", "seen at once; slots reclaimed after the fence", Need.PROBES,
          camera),
    Fault("frames/26", "second server steals the path", "second refuses to start; first unaffected", Need.OWN, second),
    Fault("frames/28", "dead consumer holds samples", "nothing held, producers never wait", Need.PROBES, consumer),
)  # fmt: skip
