"""Fits the lane network to scenes, in tinygrad on the CPU.

Importing this opens tinygrad's CPU device with the lab's compiler, for a fixed CPU: the same versions on the same
machine give the same weights.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lab.compile.toolchain import open_cpu_device

open_cpu_device()  # before tinygrad is imported: it reads its compiler and device from the environment

from network import OUTPUT_UNITS, LaneNetwork  # noqa: E402
from scenes import lane_input  # noqa: E402
from tinygrad import Tensor, TinyJit, dtypes, nn  # noqa: E402
from tinygrad.helpers import Context  # noqa: E402

SEED = 20
STEPS, WARM_UP_STEPS, BATCH = 2000, 100, 32
LEARNING_RATE = 0.02
REPORT_STEPS = 250

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


def fit(pictures: U8, truths: F32) -> LaneNetwork:
    """A network fitted by Muon (Jordan, 2024) on the mean absolute error; prints the loss as it goes.

    `pictures` uint8 [count, 3, H, W] on the scale 0..255, `truths` float32 [count, 2] in m and rad.
    """
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
            if (count + 1) % REPORT_STEPS == 0:
                print(f"step {count + 1:5d} of {STEPS}: loss {np.mean(recent[-REPORT_STEPS:]):.4f}", flush=True)
    return network
