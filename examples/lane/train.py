"""Trains the lane network on synthetic roads and writes lane.onnx beside this file.

    python examples/lane/train.py

tinygrad on the CPU, no torch; a few minutes on two cores. Every random number comes from SEED, and kernels are
compiled for a fixed CPU, so the same versions on the same machine give the same file. Then `evaluate.py` measures it
on whole frames of drives along roads that were never trained on.
"""

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from lab.compile.toolchain import open_cpu_device

open_cpu_device()  # before tinygrad is imported: it reads its compiler and device from the environment

from network import OUTPUT_UNITS, LaneNetwork, export_onnx  # noqa: E402
from scenes import draw, lane_input  # noqa: E402
from tinygrad import Tensor, TinyJit, dtypes, nn  # noqa: E402
from tinygrad.helpers import Context  # noqa: E402

SEED = 20
TRAINING_ROADS = range(1000, 1048)
"""Seeds of the roads trained on; evaluation and tests use others."""
SCENES_PER_ROAD = 200
STEPS, WARM_UP_STEPS, BATCH = 2500, 100, 32
LEARNING_RATE = 0.02
MODEL = Path(__file__).with_name("lane.onnx")

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


def learning_rate(step: int) -> float:
    """Linear warm-up, then a half cosine down to zero (Loshchilov and Hutter, 2017)."""
    rest = max(0, step - WARM_UP_STEPS) / (STEPS - WARM_UP_STEPS)
    return LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * 0.5 * (1.0 + math.cos(math.pi * rest))


def batches(pictures: U8, truths: F32, rng: np.random.Generator) -> Iterator[tuple[U8, F32]]:
    """Endless shuffled batches of pictures and unit-spread targets, half of them mirrored left to right."""
    targets = truths / OUTPUT_UNITS
    while True:
        order = rng.permutation(len(pictures))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            mirrored = rng.random(BATCH) < 0.5
            sign = np.where(mirrored, -1.0, 1.0).astype(np.float32)[:, None]
            picture = np.where(mirrored[:, None, None, None], pictures[chosen][..., ::-1], pictures[chosen])
            yield picture, targets[chosen] * sign


def train(pictures: U8, truths: F32) -> LaneNetwork:
    """Fits a network by Muon (Jordan, 2024) on the mean absolute error of both outputs; prints the loss as it goes."""
    spec = lane_input()
    mean, std = (Tensor(np.array(v, np.float32).reshape(1, 3, 1, 1)) for v in (spec.mean, spec.std))
    network = LaneNetwork(SEED)
    optimiser = nn.optim.Muon(network.parameters(), lr=LEARNING_RATE)

    def learn(picture: Tensor, target: Tensor, rate: Tensor) -> Tensor:
        optimiser.lr.assign(rate)
        optimiser.zero_grad()
        images = (picture.cast(dtypes.float32) - mean) / std
        loss = (network(images) - target).abs().mean().backward()
        return loss.realize(optimiser.lr, *optimiser.schedule_step())

    step = TinyJit(learn)
    source = batches(pictures, truths, np.random.default_rng([SEED, 0xBA7]))
    recent: list[float] = []
    with Context(TRAINING=1):
        for count in range(STEPS):
            picture, target = next(source)
            rate = Tensor(np.array([learning_rate(count)], np.float32))
            recent.append(step(Tensor(picture).realize(), Tensor(target).realize(), rate.realize()).item())
            if (count + 1) % 250 == 0:
                print(f"step {count + 1:5d} of {STEPS}: loss {np.mean(recent[-250:]):.4f}", flush=True)
    return network


def main() -> None:
    """Draws the scenes, trains, writes the model."""
    parser = argparse.ArgumentParser(description="Trains the lane network and writes lane.onnx.")
    parser.add_argument("--output", type=Path, default=MODEL, help="where the ONNX file goes")
    parser.add_argument("--processes", type=int, default=2, help="processes that draw scenes")
    arguments = parser.parse_args()
    started = time.monotonic()
    print(f"drawing {len(TRAINING_ROADS) * SCENES_PER_ROAD} scenes of {len(TRAINING_ROADS)} roads", flush=True)
    pictures, truths = draw(TRAINING_ROADS, SCENES_PER_ROAD, arguments.processes)
    network = train(pictures, truths)
    onnx.save(export_onnx(network), str(arguments.output))
    print(f"wrote {arguments.output} ({arguments.output.stat().st_size} bytes) in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
