"""spec.toml: every key typed, unknown keys refused, refusals that name file, key, expected and found."""

from pathlib import Path

import pytest

from abi.colour import Matrix, Range
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import Spec
from lab.compile.spec_toml import load_spec
from tests.lab.compile.tiny_models import RGB_INPUT, SPEC, edited


def load(tmp_path: Path, edits: dict[str, str]) -> Spec:
    path = tmp_path / "spec.toml"
    path.write_text(edited(SPEC, edits))
    return load_spec(path)


def test_a_whole_spec_is_read_with_its_defaults(tmp_path: Path) -> None:
    spec = load(tmp_path, {})
    assert (spec.model.name, spec.model.version, spec.model.release) == ("tiny", "1.2.3", 7)
    assert spec.model.source == (tmp_path / "tiny.onnx").resolve()
    image = spec.inputs[0]
    assert image.shape == (1, 3, 12, 16)
    assert (image.channels, image.layout) == ("RGB", "NCHW")
    assert (image.stream_format.range, image.stream_format.matrix) == (Range.LIMITED, Matrix.BT709)
    assert [one.name for one in spec.outputs] == ["offset_m", "rest"]
    assert (spec.timing.deadline_ms, spec.timing.budget_ms) == (0.0, 1000.0)


def test_odd_sizes_round_chroma_up_and_stride_and_rows_place_the_second_plane(tmp_path: Path) -> None:
    tight = load(tmp_path, {}).inputs[0]
    assert [(p.offset, p.stride, p.rows) for p in tight.planes] == [(0, 33, 21), (33 * 21, 34, 11)]
    padded = load(tmp_path, {"height = 21": "height = 21\nstride = 64\nrows = 32"}).inputs[0]
    assert [(p.offset, p.stride, p.rows) for p in padded.planes] == [(0, 64, 21), (64 * 32, 64, 11)]
    assert padded.buffer_bytes == 64 * 32 + 64 * 16


def test_rgb_takes_identity_and_full_range_only(tmp_path: Path) -> None:
    assert load(tmp_path, RGB_INPUT).inputs[0].planes[0].stride == 99
    with pytest.raises(CompileRefused) as refused:
        load(tmp_path, {**RGB_INPUT, 'matrix = "bt709"': 'matrix = "bt601"'})
    assert "input[0].matrix" in refused.value.what
    assert refused.value.expected == '"identity", the only one that fits here'


@pytest.mark.parametrize(
    "key", ["range", "matrix", "primaries", "transfer", "chroma_site", "std", "stream", "resize", "release", "threads"]
)
def test_a_missing_key_is_refused_by_name(tmp_path: Path, key: str) -> None:
    lines = [line for line in SPEC.splitlines() if not line.startswith(f"{key} =")]
    (tmp_path / "spec.toml").write_text("\n".join(lines))
    with pytest.raises(CompileRefused) as refused:
        load_spec(tmp_path / "spec.toml")
    assert refused.value.code is CompileRefusal.SPEC_KEY_MISSING
    assert refused.value.what.endswith("." + key)
    assert refused.value.found == "nothing"


@pytest.mark.parametrize(
    ("edits", "key", "code"),
    [
        ({"release = 7": "release = 7\nbatch = 4"}, "model.batch", CompileRefusal.SPEC_KEY_UNKNOWN),
        ({"[check]": "[extra]\n[check]"}, "extra", CompileRefusal.SPEC_KEY_UNKNOWN),
        ({"width = 33": "width = 33.0"}, "input[0].width", CompileRefusal.SPEC_VALUE),
        ({"width = 33": "width = true"}, "input[0].width", CompileRefusal.SPEC_VALUE),
        ({"width = 33": "width = 33\nstride = 32"}, "input[0].stride", CompileRefusal.SPEC_VALUE),
        ({"release = 7": "release = 0"}, "model.release", CompileRefusal.SPEC_VALUE),
        ({'version = "1.2.3"': 'version = "1.2"'}, "model.version", CompileRefusal.SPEC_VALUE),
        ({'name = "tiny"': 'name = "../tiny"'}, "model.name", CompileRefusal.SPEC_VALUE),
        ({'range = "limited"': 'range = "unspecified"'}, "input[0].range", CompileRefusal.SPEC_VALUE),
        ({'matrix = "bt709"': 'matrix = "identity"'}, "input[0].matrix", CompileRefusal.SPEC_VALUE),
        ({"crop = [1, 2, 31, 18]": "crop = [3, 2, 31, 18]"}, "input[0].crop", CompileRefusal.SPEC_VALUE),
        ({"crop = [1, 2, 31, 18]": "crop = [1, 2, 0, 18]"}, "input[0].crop", CompileRefusal.SPEC_VALUE),
        ({"std = [100.0, ": "std = [0.0, "}, "input[0].std", CompileRefusal.SPEC_VALUE),
        ({"std = [100.0, ": "std = [nan, "}, "input[0].std", CompileRefusal.SPEC_VALUE),
        ({"slice = [0, 1]": "slice = [1, 1]"}, "output[0].slice", CompileRefusal.SPEC_VALUE),
        ({"slice = [1, 6]": "slice = [1, 6]\ndims = [2, 3]"}, "output[1].dims", CompileRefusal.SPEC_VALUE),
        ({'name = "rest"': 'name = "offset_m"'}, "output.name", CompileRefusal.SPEC_VALUE),
        ({'driver = "cpu"': 'driver = "tpu"'}, "target.driver", CompileRefusal.SPEC_VALUE),
        ({"onnxruntime_tolerance = 1e-3": "onnxruntime_tolerance = -1.0"}, "check.onnxruntime_tolerance", None),
    ],
)
def test_a_wrong_value_is_refused_by_key(
    tmp_path: Path, edits: dict[str, str], key: str, code: CompileRefusal | None
) -> None:
    with pytest.raises(CompileRefused) as refused:
        load(tmp_path, edits)
    assert refused.value.what == f"spec.toml: {key}"
    assert refused.value.code is (code or CompileRefusal.SPEC_VALUE)
    assert refused.value.expected
    assert refused.value.todo


def test_an_unreadable_file_is_refused_with_its_path(tmp_path: Path) -> None:
    for content in (b"[model", b"\xff\xfe"):
        (tmp_path / "spec.toml").write_bytes(content)
        with pytest.raises(CompileRefused) as refused:
            load_spec(tmp_path / "spec.toml")
        assert refused.value.code is CompileRefusal.SPEC_UNREADABLE
    with pytest.raises(CompileRefused, match=r"absent\.toml"):
        load_spec(tmp_path / "absent.toml")


def test_how_far_cameras_may_be_apart_is_stated_where_there_are_several(tmp_path: Path) -> None:
    second = SPEC[SPEC.index("[[input]]") : SPEC.index("[[output]]")]
    second = second.replace('name = "image"', 'name = "rear"').replace('stream = "road"', 'stream = "rear"')
    two = {"[[output]]": second + "[[output]]"}
    with pytest.raises(CompileRefused) as refused:
        load(tmp_path, two)
    assert refused.value.what.endswith("timing.max_skew_ms")
    assert load(tmp_path, {**two, "[check]": "[timing]\nmax_skew_ms = 2.5\n[check]"}).timing.max_skew_ms == 2.5
    with pytest.raises(CompileRefused) as refused:
        load(tmp_path, {"[check]": "[timing]\nmax_skew_ms = 2.5\n[check]"})
    assert refused.value.code is CompileRefusal.SPEC_KEY_UNKNOWN
