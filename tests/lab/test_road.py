"""The synthetic road camera: its truth holds in the picture, its bytes are NV12, its drive obeys kinematics."""

import math
import tracemalloc
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lab.compile.reference import to_rgb
from lab.hil.nv12 import Nv12Error, Nv12Layout, Nv12Refusal, encode_bt709_limited
from lab.hil.road import Camera, RoadCamera, RoadError, RoadRefusal, RoadScene, RoadTruth
from lab.hil.road_drive import RoadDrive
from lab.hil.road_surface import RoadStyle
from lab.hil.road_way import TABLE_M, RoadWay

U8 = NDArray[np.uint8]
SMALL = Camera.of_size(640, 400)
STRAIGHT = RoadScene(RoadTruth(0.0, 0.0, 0.0), distance_m=20.0)


def picture(camera: RoadCamera, scene: RoadScene, noise_index: int = 0) -> tuple[U8, U8]:
    """Luma and chroma planes of a scene."""
    buffer = np.zeros(camera.layout.buffer_bytes, np.uint8)
    camera.render_scene_into(buffer, scene, noise_index)
    return camera.layout.planes(buffer)


def project(camera: Camera, pitch_rows: int, forward_m: float, left_m: float) -> tuple[float, float]:
    """Column and row of a point on the ground, by rotating it into the camera's frame: the textbook pinhole."""
    pitch = math.atan((camera.height / 2 - camera.horizon_row - pitch_rows) / camera.focal_px)
    depth = forward_m * math.cos(pitch) + camera.height_m * math.sin(pitch)
    down = camera.height_m * math.cos(pitch) - forward_m * math.sin(pitch)
    return (
        camera.width / 2 - camera.focal_px * left_m / depth,
        camera.height / 2 + camera.focal_px * down / depth,
    )


def forward_of_row(camera: Camera, pitch_rows: int, row: float) -> float:
    """Metres ahead of the ground seen at `row`, by bisection over `project`."""
    near, far = 0.5, 500.0
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (middle, far) if project(camera, pitch_rows, middle, 0.0)[1] > row else (near, middle)
    return near


def paint_column(row: U8, expected: float, half_px: float) -> float | None:
    """Centre of the bright stroke within 12 pixels of `expected`; None where it leaves the picture."""
    low, high = math.floor(expected - half_px - 12), math.ceil(expected + half_px + 12)
    if low < 0 or high > row.size:
        return None
    window = row[low:high].astype(np.float64)
    bright = np.clip(window - (np.percentile(window, 20) + window.max()) / 2, 0.0, None)
    return float((bright * (np.arange(low, high) + 0.5)).sum() / bright.sum())


def solid_roads(count: int) -> list[int]:
    """The first seeds whose road has no dashed line."""
    solid = (seed for seed in range(1, 200) if not any(line.dashed for line in RoadStyle.drawn(seed).lines))
    return list(islice(solid, count))


def place_in_the_sun(road: RoadCamera) -> float:
    """A place with no shade of trees for 40 m ahead."""
    way = RoadWay(road.seed, road.style.dash_m, road.style.dash_period_m)
    for start in np.arange(0.0, TABLE_M, 10.0).tolist():
        right, left = way.shade_bounds_m(start + np.arange(0.0, 40.0, 0.25))
        if np.all(left - right <= 0.0):
            return float(start)
    raise AssertionError(f"road {road.seed} has no 40 m without shade: take another seed")


@pytest.mark.parametrize("seed", solid_roads(3))
@pytest.mark.parametrize(
    "truth", [RoadTruth(0.0, 0.0, 0.0), RoadTruth(0.8, -0.03, 0.003), RoadTruth(-1.1, 0.05, -0.004)]
)
@pytest.mark.parametrize("pitch_rows", [0, 6])
def test_paint_lies_where_the_truth_puts_it(seed: int, truth: RoadTruth, pitch_rows: int) -> None:
    road = RoadCamera(seed)
    camera = road.camera
    start_m = place_in_the_sun(road)
    scene = RoadScene(truth, curvature_rate_per_m2=1e-5, distance_m=start_m, pitch_rows=pitch_rows)
    luma, _ = picture(road, scene)
    errors = []
    for row in range(camera.horizon_row + 60, camera.height, 25):
        x = forward_of_row(camera, pitch_rows, row + 0.5)
        centre = (
            truth.lane_offset_m
            + math.tan(truth.heading_rad) * x
            + truth.curvature_per_m * x**2 / 2
            + scene.curvature_rate_per_m2 * x**3 / 6
        )
        for line in road.style.lines[:1] + road.style.lines[-1:]:
            expected, _ = project(camera, pitch_rows, x, centre + line.centre_m)
            half = line.width_m / 2 * camera.focal_px / x
            found = paint_column(luma[row], expected, half)
            if found is not None:
                errors.append(found - expected)
    assert len(errors) > 20
    assert abs(np.mean(errors)) < 0.3
    assert np.max(np.abs(errors)) < 2.0


def test_a_frame_is_a_function_of_seed_and_index_alone() -> None:
    one, two = RoadCamera(4, SMALL), RoadCamera(4, SMALL)
    size = one.layout.buffer_bytes
    first, second = np.zeros(size, np.uint8), np.full(size, 255, np.uint8)
    truth = one.render_into(first, 7)
    two.render_into(second, 3)
    assert two.render_into(second, 7) == truth == two.frame(7)
    assert np.array_equal(first, second)


def test_seeds_and_indices_give_different_frames() -> None:
    frames = []
    for seed, index in ((4, 7), (4, 8), (5, 7)):
        road = RoadCamera(seed, SMALL)
        frame = np.zeros(road.layout.buffer_bytes, np.uint8)
        road.render_into(frame, index)
        frames.append(frame)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.mean(frames[a] != frames[b]) > 0.2


def test_the_same_scene_differs_from_frame_to_frame_only_by_noise() -> None:
    road = RoadCamera(4, SMALL)
    one, two = picture(road, STRAIGHT, 0)[0].astype(int), picture(road, STRAIGHT, 1)[0].astype(int)
    difference = one - two
    # Two frames of independent noise differ by √2 of one frame's spread.
    assert difference.std() == pytest.approx(road.style.noise_codes * math.sqrt(2), rel=0.1)
    assert abs(difference.mean()) < 0.1


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), frame=st.integers(0, 10**8))
def test_the_drive_obeys_kinematics_and_stays_in_the_lane(seed: int, frame: int) -> None:
    drive = RoadDrive(seed, rate_hz=1000.0)
    before, now, after = (drive.scene(max(frame, 1) + step) for step in (-1, 0, 1))
    rate = (after.truth.lane_offset_m - before.truth.lane_offset_m) / 0.002
    assert rate == pytest.approx(drive.speed_m_per_s * math.tan(now.truth.heading_rad), abs=1e-3)
    way_m = after.distance_m - before.distance_m
    assert (after.road_yaw_rad - before.road_yaw_rad) / way_m == pytest.approx(now.truth.curvature_per_m, abs=2e-6)
    bend = (after.truth.curvature_per_m - before.truth.curvature_per_m) / way_m
    assert bend == pytest.approx(now.curvature_rate_per_m2, abs=1e-7)
    assert abs(now.truth.lane_offset_m) <= 0.9
    assert abs(now.truth.curvature_per_m) <= 1 / 250


@pytest.mark.parametrize(
    ("colour", "codes"),
    [
        # 8-bit 100 % bars of ITU-R BT.709: white, black, red, green, blue.
        ((1, 1, 1), (235, 128, 128)),
        ((0, 0, 0), (16, 128, 128)),
        ((1, 0, 0), (63, 102, 240)),
        ((0, 1, 0), (173, 42, 26)),
        ((0, 0, 1), (32, 240, 118)),
    ],
)
def test_colours_become_the_standards_codes(colour: tuple[float, float, float], codes: tuple[int, int, int]) -> None:
    encoded = encode_bt709_limited(colour)
    assert tuple(round(code) for code in encoded) == codes
    decoded = to_rgb(*(np.array([code]) for code in encoded), range_="limited", matrix="bt709")
    assert [float(part[0]) for part in decoded] == pytest.approx([255.0 * part for part in colour], abs=1e-9)


def test_every_code_is_within_the_limited_range() -> None:
    road = RoadCamera(6, SMALL)
    for exposure in (0.05, 1.0, 1.6):
        luma, chroma = picture(road, replace(STRAIGHT, exposure=exposure))
        assert luma.min() >= 16
        assert luma.max() <= 235
        assert chroma.min() >= 16
        assert chroma.max() <= 240


def test_light_scales_the_signal_above_black_and_leaves_hue() -> None:
    road = RoadCamera(6, SMALL)
    (dark, dark_chroma), (bright, bright_chroma) = (
        picture(road, replace(STRAIGHT, exposure=exposure)) for exposure in (0.5, 1.0)
    )
    assert (dark.mean() - 16) / (bright.mean() - 16) == pytest.approx(0.5, abs=0.01)
    for plane in (0, 1):
        low, high = (chroma[:, plane::2].mean() - 128 for chroma in (dark_chroma, bright_chroma))
        assert low / high == pytest.approx(0.5, abs=0.03)


def test_sky_is_blue_verge_is_green_and_asphalt_is_grey() -> None:
    road = RoadCamera(6)
    luma, chroma = picture(road, STRAIGHT)
    places = {"sky": (20, 900), "verge": (640, 60), "asphalt": (1100, 960)}
    colours = {}
    for name, (row, column) in places.items():
        y = luma[row - 8 : row + 8, column - 8 : column + 8].mean()
        pairs = chroma[row // 2 - 4 : row // 2 + 4, column - 8 : column + 8].reshape(-1, 2).mean(axis=0)
        parts = to_rgb(*(np.array([code]) for code in (y, *pairs)), range_="limited", matrix="bt709")
        colours[name] = [float(part[0]) for part in parts]
    assert colours["sky"][2] > colours["sky"][0] + 20
    assert colours["verge"][1] > colours["verge"][2] + 20
    assert max(colours["asphalt"]) - min(colours["asphalt"]) < 12


@pytest.mark.parametrize(("width", "height"), [(321, 241), (322, 242), (321, 242), (322, 241)])
def test_padding_and_odd_sizes_change_no_pixel_and_touch_no_padding(width: int, height: int) -> None:
    camera = Camera.of_size(width, height)
    tight = RoadCamera(3, camera)
    padded = RoadCamera(3, camera, Nv12Layout.aligned(width, height, stride_bytes=352, luma_rows=256))
    plain, poisoned = np.zeros(tight.layout.buffer_bytes, np.uint8), np.full(352 * 256 * 3 // 2 + 64, 7, np.uint8)
    tight.render_into(plain, 5)
    padded.render_into(poisoned, 5)
    planes = padded.layout.planes(poisoned)
    for one, two in zip(tight.layout.planes(plain), planes, strict=True):
        assert np.array_equal(one, two)
        # Code 7 is outside the limited range, so no pixel was left unwritten, the last row and column included.
        assert two.min() >= 16
    written = height * width + ((height + 1) // 2) * 2 * ((width + 1) // 2)
    assert int((poisoned != 7).sum()) == written


def test_every_kind_of_writable_memory_is_taken() -> None:
    road = RoadCamera(3, SMALL)
    array = np.zeros(road.layout.buffer_bytes, np.uint8)
    octets = bytearray(road.layout.buffer_bytes)
    road.render_into(array, 2)
    road.render_into(memoryview(octets), 2)
    assert bytes(octets) == array.tobytes()


def test_a_frame_allocates_little() -> None:
    road = RoadCamera(3)
    frame = np.zeros(road.layout.buffer_bytes, np.uint8)
    road.render_into(frame, 0)
    tracemalloc.start()
    road.render_into(frame, 1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < frame.nbytes / 8


def test_dashes_cover_their_share_and_flow_past_the_car() -> None:
    way = RoadWay(1, dash_m=4.0, dash_period_m=10.0)
    start = np.arange(0.0, 40.0, 0.5)
    cover = way.dash_cover(start, start + 0.5)
    assert cover.tolist() == [1.0 if at % 10.0 < 4.0 else 0.0 for at in start.tolist()]
    assert way.dash_cover(np.array([3.0]), np.array([13.0])) == pytest.approx(0.4)
    assert way.dash_cover(np.array([3.5]), np.array([4.5])) == pytest.approx(0.5)


def test_brightness_is_the_mean_over_the_stretch_and_repeats() -> None:
    way = RoadWay(1, dash_m=4.0, dash_period_m=10.0)
    edges = np.arange(0.0, TABLE_M + 1, 16.0)
    parts = way.brightness(edges[:-1], edges[1:])
    whole = way.brightness(np.array([0.0]), np.array([TABLE_M]))
    assert whole == pytest.approx(parts.mean())
    assert way.brightness(edges[:-1] + 3 * TABLE_M, edges[1:] + 3 * TABLE_M) == pytest.approx(parts)


def test_shade_darkens_the_road_it_falls_on() -> None:
    road = RoadCamera(6)
    along = np.arange(0.0, TABLE_M, 0.5)
    right, left = RoadWay(6, road.style.dash_m, road.style.dash_period_m).shade_bounds_m(along)
    shaded = (right < -1.5) & (left > 1.5)
    assert shaded.any(), "this seed has no shade across the whole lane: take another"
    place = float(along[shaded][0])
    clear = float(along[left - right < 1e-9][0])
    row = road.camera.horizon_row + 300
    ahead = forward_of_row(road.camera, 0, row + 0.5)
    means = [
        float(picture(road, replace(STRAIGHT, distance_m=at - ahead + TABLE_M))[0][row, 860:1060].mean())
        for at in (place, clear)
    ]
    assert means[0] - 16 < 0.75 * (means[1] - 16)


def test_a_buffer_too_small_or_read_only_is_refused() -> None:
    road = RoadCamera(3, SMALL)
    size = road.layout.buffer_bytes
    for buffer in (
        np.zeros(size - 1, np.uint8),
        bytes(size),
        np.zeros(2 * size, np.uint8)[::2],
        np.zeros(size, np.int8),
    ):
        with pytest.raises(Nv12Error) as caught:
            road.render_into(buffer, 0)  # type: ignore[arg-type]
        assert caught.value.code is Nv12Refusal.BUFFER


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ((0, 4, 4, 16, 4), Nv12Refusal.SIZE),
        ((4, 0, 4, 16, 4), Nv12Refusal.SIZE),
        ((4, 4, 3, 16, 4), Nv12Refusal.STRIDE),
        ((5, 4, 5, 32, 5), Nv12Refusal.STRIDE),
        ((4, 4, -4, 16, 4), Nv12Refusal.STRIDE),
        ((4, 4, 4, 15, 4), Nv12Refusal.OFFSET),
        ((4, 4, 4, 16, 4, -1), Nv12Refusal.OFFSET),
    ],
)
def test_a_layout_that_cannot_hold_the_picture_is_refused(fields: tuple[int, ...], code: Nv12Refusal) -> None:
    with pytest.raises(Nv12Error) as caught:
        Nv12Layout(*fields)
    assert caught.value.code is code


def test_a_camera_that_cannot_see_the_road_is_refused() -> None:
    for pitch in (-0.5, 0.5):
        with pytest.raises(RoadError) as caught:
            RoadCamera(1, replace(SMALL, pitch_rad=pitch))
        assert caught.value.code is RoadRefusal.HORIZON
    with pytest.raises(RoadError) as caught:
        RoadCamera(1, SMALL, Nv12Layout.tight(640, 402))
    assert caught.value.code is RoadRefusal.LAYOUT


@pytest.mark.parametrize(
    ("scene", "code"),
    [
        (replace(STRAIGHT, truth=RoadTruth(1.6, 0.0, 0.0)), RoadRefusal.OFFSET),
        (replace(STRAIGHT, truth=RoadTruth(math.nan, 0.0, 0.0)), RoadRefusal.OFFSET),
        (replace(STRAIGHT, pitch_rows=-9), RoadRefusal.PITCH),
        (replace(STRAIGHT, exposure=0.0), RoadRefusal.EXPOSURE),
        (replace(STRAIGHT, exposure=1.7), RoadRefusal.EXPOSURE),
    ],
)
def test_a_scene_beyond_what_is_drawn_is_refused(scene: RoadScene, code: RoadRefusal) -> None:
    road = RoadCamera(3, SMALL)
    with pytest.raises(RoadError) as caught:
        road.render_scene_into(np.zeros(road.layout.buffer_bytes, np.uint8), scene)
    assert caught.value.code is code
