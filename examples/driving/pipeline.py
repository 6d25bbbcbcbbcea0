"""The shape of a driving stack in one graph: warp, image queue, vision network, feature queue, policy network.

Two cameras are brought into the model's view by a homography each, which calibration sets; the picture now and the one
0.2 s ago go through the vision network; its features of the last 5 s, with desire and traffic convention, through the
policy network. A second entrypoint, `warp_only`, does no more than keep the queue of pictures in step. The networks are
small, and their weights are seeded noise: it shows the form, and drives nothing.
Conventions: a homography maps the model's picture to the camera's, both in coordinates that run from -1 to 1 over the
picture, x to the right and y down, so it does not depend on resolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from tinygrad import Tensor, dtypes

CAMERA_WIDTH, CAMERA_HEIGHT, STRIDE = 1928, 1208, 1928  # spec.toml says the same
CHROMA_OFFSET = STRIDE * CAMERA_HEIGHT  # NV12: interleaved Cb and Cr, halved both ways, behind the luma
WIDTH, HEIGHT = 256, 128
CHANNELS = 6  # four phases of luma, Cb, Cr, all at half resolution
PICTURES = 5  # 0.2 s at 20 Hz between the first and the last
FEATURES, HISTORY = 128, 100
PLAN_POINTS = 10
_NEAREST_W = 1e-4  # the horizon of a homography is cut here, before a division by 0

Network = Callable[[Any], Any]


def build() -> Callable[..., Any]:
    """The function to capture: frames, aux inputs and state to outputs and the next state."""
    road_warp, wide_warp = Warp(), Warp()
    random = np.random.default_rng(20)
    vision, policy = vision_network(random), policy_network(random)

    def drive(
        road: Any,
        wide: Any,
        *,
        road_homography: Any,
        wide_homography: Any,
        desire_pulse: Any,
        traffic_convention: Any,
        images: Any,
        features: Any,
    ) -> Any:
        views, rolled = look(images, road_warp(road, road_homography), wide_warp(wide, wide_homography))
        seen = images[1].cat(views, dim=0).reshape(1, -1, HEIGHT // 2, WIDTH // 2)
        found = vision((seen.cast(dtypes.float) - 128.0) * (1.0 / 64.0))
        remembered = features[1:].cat(found[:, :FEATURES], dim=0).contiguous()
        facts = desire_pulse.reshape(1, -1).cat(traffic_convention.reshape(1, -1), dim=1)
        plan = policy((remembered, facts))
        outputs = {"plan": plan, "ego_motion": found[:, FEATURES:]}
        return outputs, {"images": rolled, "features": remembered}

    return drive


def warp_only() -> Callable[..., Any]:
    """The function for frames that come too late for a plan: they only take their place in the queue of pictures."""
    road_warp, wide_warp = Warp(), Warp()

    def keep(road: Any, wide: Any, *, road_homography: Any, wide_homography: Any, images: Any) -> Any:
        _, rolled = look(images, road_warp(road, road_homography), wide_warp(wide, wide_homography))
        return {"images": rolled}

    return keep


def look(images: Any, road: Any, wide: Any) -> tuple[Any, Any]:
    """The two warped pictures, uint8 [2, CHANNELS, HEIGHT / 2, WIDTH / 2], and the queue with them as its newest."""
    views = Tensor.stack(road, wide).contiguous()
    return views, images[1:].cat(views.unsqueeze(0), dim=0)


class Warp:
    """The model's view of an NV12 frame by its nearest samples, uint8 [CHANNELS, HEIGHT / 2, WIDTH / 2].

    What is gathered is written to memory before it is put together: fused with the padding of a concatenation, tinygrad
    0.14 would read the index tables outside their ends.
    """

    def __init__(self) -> None:
        self.luma_points = model_points(WIDTH, HEIGHT)
        self.chroma_points = model_points(WIDTH // 2, HEIGHT // 2)

    def __call__(self, frame: Any, homography: Any) -> Any:
        """`frame`: uint8 bytes; `homography`: float32 [3, 3]."""
        x, y = nearest(homography, self.luma_points, CAMERA_WIDTH, CAMERA_HEIGHT)
        luma = frame[y * STRIDE + x].contiguous().reshape(HEIGHT // 2, 2, WIDTH // 2, 2)
        x, y = nearest(homography, self.chroma_points, CAMERA_WIDTH // 2, CAMERA_HEIGHT // 2)
        first = CHROMA_OFFSET + y * STRIDE + x * 2
        phases = luma.permute(1, 3, 0, 2).reshape(4, HEIGHT // 2, WIDTH // 2)
        chroma = [frame[first + one].contiguous().unsqueeze(0) for one in (0, 1)]
        return phases.cat(*chroma, dim=0)


def model_points(width: int, height: int) -> tuple[Any, Any]:
    """Centres of the model's pixels: x [1, width] and y [height, 1], from -1 to 1."""
    x = (np.arange(width, dtype=np.float32) + 0.5) * (2.0 / width) - 1.0
    y = (np.arange(height, dtype=np.float32) + 0.5) * (2.0 / height) - 1.0
    return Tensor(x[None, :].astype(np.float32)).realize(), Tensor(y[:, None].astype(np.float32)).realize()


def nearest(homography: Any, points: tuple[Any, Any], width: int, height: int) -> tuple[Any, Any]:
    """The camera's pixel nearest to each point, int32 columns and rows, at the border where it is outside.

    Whatever a peer sets as homography, NaN included, the result is inside the picture: integers are clamped too.
    """
    (x, y), h = points, homography.reshape(9)
    w = h[6] * x + h[7] * y + h[8]
    w = (w.abs() < _NEAREST_W).where(_NEAREST_W, w)
    found = []
    for row, size in ((0, width), (3, height)):
        position = (h[row] * x + h[row + 1] * y + h[row + 2]) / w
        pixel = ((position + 1.0) * (0.5 * size)).maximum(0.0).minimum(size - 1.0)
        found.append(pixel.cast(dtypes.int32).maximum(0).minimum(size - 1).contiguous())
    return found[0], found[1]


def vision_network(random: np.random.Generator) -> Network:
    """[1, 4 * CHANNELS, HEIGHT / 2, WIDTH / 2] to [1, FEATURES + 6]: features, and the camera's motion (m/s, rad/s)."""
    channels = (4 * CHANNELS, 16, 32, 64, 64)
    layers = [weight(random, after, before, 3, 3) for before, after in pairwise(channels)]
    head = weight(random, channels[-1] * (HEIGHT // 32) * (WIDTH // 32), FEATURES + 6)

    def network(x: Any) -> Any:
        for layer in layers:
            x = x.contiguous().conv2d(layer, stride=2, padding=1).relu().contiguous()  # no convolution inside another
        return x.reshape(1, -1).dot(head).contiguous()

    return network


def policy_network(random: np.random.Generator) -> Network:
    """Features [HISTORY, FEATURES] and facts [1, 10] to [1, 3 * PLAN_POINTS + 2]."""
    each, hidden = weight(random, FEATURES, 16), weight(random, HISTORY * 16 + 10, 64)
    head = weight(random, 64, 3 * PLAN_POINTS + 2)

    def network(given: Any) -> Any:
        remembered, facts = given
        reduced = remembered.dot(each).relu().reshape(1, -1).contiguous()
        return reduced.cat(facts, dim=1).contiguous().dot(hidden).relu().contiguous().dot(head).contiguous()

    return network


def weight(random: np.random.Generator, *shape: int) -> Any:
    """A weight of seeded noise that keeps activations near one."""
    fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
    values = random.standard_normal(shape) * np.sqrt(2.0 / fan_in)
    return Tensor(values.astype(np.float32)).realize()
