"""Reads a spec.toml into `lab.compile.spec.Spec`.

Every key is typed and bounded here, unknown keys are refused, and each refusal names the file, the key, what was
expected and what was found. Only form is checked: whether the model has such an input is for `lab.compile.model`.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

from abi.colour import CfaOrder, ChromaSite, Matrix, Primaries, Range, Transfer
from abi.format import make_format
from abi.pixels import PIXEL_FORMATS, ColourModel
from abi.stream_format import FormatError, Rect, StreamFormat
from lab.compile.pixels import FORMATS
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import CheckSpec, InputSpec, ModelSpec, OutputSpec, Spec, TargetSpec, TimingSpec
from lab.compile.spec_entries import SOURCE, read_entries, split_source
from lab.compile.spec_tensors import read_aux, read_states
from lab.compile.target import TARGETS

_NAME = r"[a-z0-9_.-]{1,64}"
_SEMVER = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?"
_MAX_SIDE = 16384
RECURRENT_STEPS = 20
"""Fewest steps that a model with state is checked over: errors in it add up."""
_MISSING = object()
E = TypeVar("E", bound=IntEnum)


class Table:
    """One TOML table being read: hands out checked values and refuses what nobody asked for."""

    def __init__(self, path: Path, key: str, values: Any) -> None:
        self.path, self.key = path, key
        if not isinstance(values, dict):
            raise self.refuse(CompileRefusal.SPEC_VALUE, "", "a table", values)
        self._values = dict(values)

    def refuse(self, code: CompileRefusal, key: str, expected: str, found: object) -> CompileRefused:
        """The refusal for `key` of this table."""
        where = ".".join(part for part in (self.key, key) if part)
        text = "nothing" if found is _MISSING else f"{found!r}"
        todo = "remove the key" if code is CompileRefusal.SPEC_KEY_UNKNOWN else f"set {where}"
        return CompileRefused(code, f"{self.path.name}: {where}", expected=expected, found=text, todo=todo)

    def take(self, key: str, expected: str, good: Callable[[Any], bool], default: Any = _MISSING) -> Any:
        """The value of `key`; refused if it is missing without a default or `good` says no."""
        value = self._values.pop(key, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                raise self.refuse(CompileRefusal.SPEC_KEY_MISSING, key, expected, value)
            return default
        if not good(value):
            raise self.refuse(CompileRefusal.SPEC_VALUE, key, expected, value)
        return value

    def integer(self, key: str, low: int, high: int, default: Any = _MISSING) -> int:
        """An integer in low..high."""
        return int(self.take(key, f"an integer in {low}..{high}", lambda v: _is_integer(v, low, high), default))

    def number(self, key: str, low: float, high: float, default: Any = _MISSING) -> float:
        """A finite number in low..high."""
        return float(self.take(key, f"a number in {low:g}..{high:g}", lambda v: _is_number(v, low, high), default))

    def text(self, key: str, pattern: str, expected: str, default: Any = _MISSING) -> str:
        """A string that matches `pattern` as a whole."""
        good = lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None  # noqa: E731
        return str(self.take(key, expected, good, default))

    def choice(self, key: str, choices: tuple[str, ...], default: Any = _MISSING) -> str:
        """One of `choices`."""
        expected = (
            f"one of {', '.join(choices)}" if len(choices) > 1 else f'"{choices[0]}", the only one that fits here'
        )
        return str(self.take(key, expected, lambda v: v in choices, default))

    def integers(self, key: str, count: int | None, low: int, high: int, default: Any = _MISSING) -> Any:
        """A tuple of integers, `count` long or 1..8 where that is None; the default where the key is missing."""
        expected = f"{count or '1..8'} integers in {low}..{high}"
        value = self.take(key, expected, lambda v: _is_list(v, count, lambda x: _is_integer(x, low, high)), default)
        return tuple(value) if isinstance(value, list) else value

    def numbers(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """Finite numbers in low..high, one for each of `count` channels."""
        expected = f"{count} numbers in {low:g}..{high:g}, one for each channel"
        found = self.take(key, expected, lambda v: _is_list(v, count, lambda x: _is_number(x, low, high)))
        return tuple(map(float, found))

    def tables(self, key: str, default: Any = _MISSING) -> list[Table]:
        """A non-empty array of tables; the default where there is none."""
        values = self.take(key, f"at least one [[{key}]] table", lambda v: isinstance(v, list) and len(v) > 0, default)
        return [Table(self.path, f"{key}[{index}]", value) for index, value in enumerate(values)]

    def table(self, key: str, default: Any = _MISSING) -> Table:
        """A table."""
        return Table(self.path, key, self.take(key, f"a [{key}] table", lambda v: isinstance(v, dict), default))

    def finish(self) -> None:
        """Refuses whatever was not taken."""
        for key, value in self._values.items():
            raise self.refuse(CompileRefusal.SPEC_KEY_UNKNOWN, key, "no such key", value)


def _is_integer(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any, low: float, high: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and low <= value <= high


def _is_list(value: Any, count: int | None, good: Callable[[Any], bool]) -> bool:
    if not isinstance(value, list) or not (len(value) == count if count else 1 <= len(value) <= 8):
        return False
    return all(map(good, value))


def _model(table: Table, folder: Path) -> ModelSpec:
    expected = "the path of an .onnx file, or of a Python file and a function in it like pipeline.py:build"
    source, function = split_source(table.text("source", SOURCE, expected), folder)
    spec = ModelSpec(
        name=table.text("name", _NAME, "a name of 1..64 characters a-z 0-9 _ . -"),
        version=table.text("version", _SEMVER, "a semantic version like 1.0.0"),
        source=source,
        release=table.integer("release", 1, 2**63 - 1),
        function=function,
    )
    table.finish()
    return spec


def _target(table: Table) -> TargetSpec:
    driver = table.choice("driver", TARGETS)
    if driver == "hcq":
        arch = table.text("arch", r"gfx[0-9a-f]{3,4}|sm_[0-9]{2,3}|a[0-9]{3}", "the GPU's, like gfx1100, sm_89 or a630")
    elif driver == "cuda":
        arch = table.text("arch", r"sm_[0-9]{2,3}", "the GPU's, like sm_90")
    else:
        arch = table.choice("arch", ("x86_64", "aarch64"))
    if driver != "cpu":  # its code is for the one device in the machine, whatever processor is beside it
        table.finish()
        return TargetSpec(driver, arch, cpu="", threads=1)
    spec = TargetSpec(
        driver=driver,
        arch=arch,
        cpu=table.text("cpu", r"[a-z0-9_]{1,64}", "a CPU in zig's spelling like x86_64_v3 or cortex_a78"),
        threads=table.integer("threads", 1, 64),
    )
    table.finish()
    return spec


def _part(table: Table, key: str, whole: tuple[int, int, int, int], name: str) -> tuple[int, int, int, int]:
    """x, y, width, height of a part of `whole`, which it is where the key is missing."""
    x, y, w, h = part = table.integers(key, 4, 0, _MAX_SIDE, whole)
    left, top, width, height = whole
    if w == 0 or h == 0 or not (left <= x and top <= y and x + w <= left + width and y + h <= top + height):
        expected = f"x, y, width, height of a part of {name}"
        raise table.refuse(CompileRefusal.SPEC_VALUE, key, expected, list(part))
    return x, y, w, h


def _colour(table: Table, key: str, kind: type[E], good: tuple[E, ...]) -> E:
    """A colour field in the schema's spelling; the format decides which values make sense."""
    by_name = {_schema_name(value): value for value in kind if value in good}
    return by_name[table.choice(key, tuple(by_name))]


def _schema_name(value: IntEnum) -> str:
    first, *others = value.name.lower().split("_")
    return first + "".join(map(str.capitalize, others))


def _cfa(table: Table, format_: str) -> CfaOrder:
    """The mosaic's order: of the format's name, stated for one-channel formats, none for the others."""
    if PIXEL_FORMATS[format_].model is ColourModel.MONO:
        return _colour(table, "cfa", CfaOrder, tuple(CfaOrder)[1:])
    return PIXEL_FORMATS[format_].cfa


def _strides(table: Table, planes: int) -> int | list[int] | None:
    """Bytes between rows: one number (other planes in proportion), or one for each plane."""
    high = 8 * _MAX_SIDE
    expected = f"an integer in 1..{high}, or {planes} of them, one for each plane"

    def good(value: Any) -> bool:
        return _is_integer(value, 1, high) or _is_list(value, planes, lambda one: _is_integer(one, 1, high))

    found: int | list[int] | None = table.take("stride", expected, good, None)
    return found


def _stream_format(table: Table, format_: str) -> StreamFormat:
    model = PIXEL_FORMATS[format_].model
    is_yuv = model is ColourModel.YUV
    width, height = table.integer("width", 1, _MAX_SIDE), table.integer("height", 1, _MAX_SIDE)
    stride = _strides(table, len(PIXEL_FORMATS[format_].planes))
    rows = table.integer("rows", 1, 2 * _MAX_SIDE, height)
    matrices = (Matrix.BT601, Matrix.BT709, Matrix.BT2020NC) if is_yuv else (Matrix.IDENTITY,)
    sites = (ChromaSite.LEFT, ChromaSite.CENTER, ChromaSite.TOP_LEFT) if is_yuv else (ChromaSite.NOT_SUBSAMPLED,)
    cfa = _cfa(table, format_)
    ranges = (Range.LIMITED, Range.FULL) if cfa is CfaOrder.NONE else (Range.FULL,)  # a sensor's own codes
    try:
        return make_format(
            format_,
            width,
            height,
            range=_colour(table, "range", Range, ranges),
            matrix=_colour(table, "matrix", Matrix, matrices),
            primaries=_colour(table, "primaries", Primaries, tuple(Primaries)[1:]),
            transfer=_colour(table, "transfer", Transfer, tuple(Transfer)[1:]),
            chroma_site=_colour(table, "chroma_site", ChromaSite, sites),
            cfa=cfa,
            crop=Rect(*_part(table, "valid", (0, 0, width, height), f"the {width}x{height} picture")),
            stride=stride,
            rows=rows,
        )
    except FormatError as error:
        key = error.field.rsplit(".", 1)[-1]  # planes[0].stride is the spec's stride
        raise table.refuse(CompileRefusal.SPEC_VALUE, key, error.expected, error.found) from error


def _demosaic(table: Table, frame: StreamFormat, crop: tuple[int, int, int, int], resize: tuple[int, int]) -> str:
    """What becomes of a mosaic; empty where the format is none. Nothing that would mix its colours unasked."""
    if frame.cfa is CfaOrder.NONE:
        return ""
    demosaic = table.choice("demosaic", ("none", "bilinear"))
    x, y, width, height = crop
    if demosaic == "none" and (resize != (width, height) or x % 2 or y % 2):
        expected = f"bilinear, or none with resize = [{width}, {height}] and a crop from an even x and y"
        found = f"none with resize = {list(resize)} and a crop from {x}, {y}"
        raise table.refuse(CompileRefusal.SPEC_VALUE, "demosaic", expected, found)
    if demosaic == "bilinear" and min(frame.crop.width, frame.crop.height) < 2:
        size = f"{frame.crop.width}x{frame.crop.height}"
        raise table.refuse(CompileRefusal.SPEC_VALUE, "demosaic", "none for a valid picture below 2x2", f"{size}")
    return demosaic


def _input(table: Table, is_python: bool) -> InputSpec:
    format_ = table.choice("format", tuple(FORMATS))
    frame = _stream_format(table, format_)
    valid = frame.crop.x, frame.crop.y, frame.crop.width, frame.crop.height
    layout = table.choice("layout", ("NCHW", "bytes") if is_python else ("NCHW",), "NCHW")
    if layout == "bytes":
        return _bytes_input(table, format_, frame, valid)
    resize_width, resize_height = table.integers("resize", 2, 1, 4096)
    crop = _part(table, "crop", valid, f"the valid picture, {valid[2]}x{valid[3]} from {valid[0]}, {valid[1]}")
    demosaic = _demosaic(table, frame, crop, (resize_width, resize_height))
    has_colour = len(FORMATS[format_].components) == 3 or demosaic == "bilinear"
    channels = table.choice("channels", *((("RGB", "BGR"), "RGB") if has_colour else (("GREY",), "GREY")))
    count = 3 if has_colour else 1
    spec = InputSpec(
        name=table.text("name", r"[^\0]{1,256}", "the name of the model's input tensor"),
        stream=table.text("stream", _NAME, "a stream name of 1..64 characters a-z 0-9 _ . -"),
        format=format_,
        stream_format=frame,
        range=_schema_name(frame.range),
        matrix=_schema_name(frame.matrix),
        crop=crop,
        resize=(resize_width, resize_height),
        mean=table.numbers("mean", count, -1e6, 1e6),
        std=table.numbers("std", count, 1e-6, 1e6),
        layout=layout,
        channels=channels,
        demosaic=demosaic,
    )
    table.finish()
    return spec


def _bytes_input(table: Table, format_: str, frame: StreamFormat, valid: tuple[int, int, int, int]) -> InputSpec:
    """A frame that the pipeline unpacks itself: nothing is done to it, so nothing may be said of how."""
    spec = InputSpec(
        name=table.text("name", r"[^\0]{1,256}", "the name of the pipeline's parameter"),
        stream=table.text("stream", _NAME, "a stream name of 1..64 characters a-z 0-9 _ . -"),
        format=format_,
        stream_format=frame,
        range=_schema_name(frame.range),
        matrix=_schema_name(frame.matrix),
        crop=valid,
        resize=valid[2:],
        mean=(),
        std=(),
        layout="bytes",
        channels="",
    )
    table.finish()
    return spec


def _output(table: Table) -> OutputSpec:
    slice_ = table.integers("slice", 2, 0, 2**31 - 1, None)
    if slice_ is not None and slice_[0] >= slice_[1]:
        raise table.refuse(CompileRefusal.SPEC_VALUE, "slice", "first < end, in elements", list(slice_))
    dims = table.integers("dims", None, 1, 2**31 - 1, None)
    if slice_ is not None and dims is not None and math.prod(dims) != slice_[1] - slice_[0]:
        expected = f"sizes whose product is the slice's {slice_[1] - slice_[0]} elements"
        raise table.refuse(CompileRefusal.SPEC_VALUE, "dims", expected, list(dims))
    spec = OutputSpec(
        tensor=table.text("tensor", r"[^\0]{1,256}", "the name of a model output tensor"),
        name=table.text("name", _NAME, "a name of 1..64 characters a-z 0-9 _ . -"),
        slice=slice_,
        unit=table.text("unit", r"[^\0]{1,32}", 'an SI symbol, "1" for a pure number'),
        nan=table.choice("nan", ("refuse", "flag")),
        dims=dims,
    )
    table.finish()
    return spec


def _check(table: Table, is_python: bool, has_state: bool) -> CheckSpec:
    tolerance = 0.0 if is_python else table.number("onnxruntime_tolerance", 0.0, 1e3)
    fewest = RECURRENT_STEPS if has_state else 2
    steps = table.integer("steps", fewest, 1000, max(4, fewest))
    spec = CheckSpec(onnxruntime_tolerance=tolerance, steps=steps)
    table.finish()
    return spec


def _timing(table: Table, inputs: int) -> TimingSpec:
    spec = TimingSpec(
        deadline_ms=table.number("deadline_ms", 0.0, 1e6, 0.0),
        budget_ms=table.number("budget_ms", 0.001, 1e6, 1000.0),
        max_skew_ms=table.number("max_skew_ms", 0.0, 1e6) if inputs > 1 else 0.0,
    )
    table.finish()
    return spec


def _refuse_repeats(root: Table, key: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise root.refuse(CompileRefusal.SPEC_VALUE, key, "a different name for each", name)


def load_spec(path: Path) -> Spec:
    """The spec in the file at `path`. Raises CompileRefused, naming the key, for anything that is not as it should."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # no file, no text, no TOML, brackets without end
        raise CompileRefused(
            CompileRefusal.SPEC_UNREADABLE,
            str(path),
            expected="a readable TOML file",
            found=str(error),
            todo="mend the file or the path",
        ) from error
    root = Table(path, "", values)
    model, target = _model(root.table("model"), path.parent), _target(root.table("target"))
    is_python = bool(model.function)
    inputs = tuple(_input(table, is_python) for table in root.tables("input"))
    aux, states = read_aux(root, is_python), read_states(root, is_python)
    timing = _timing(root.table("timing", {}), len(inputs))
    spec = Spec(
        path=path,
        model=model,
        target=target,
        inputs=inputs,
        outputs=tuple(map(_output, root.tables("output"))),
        check=_check(root.table("check", {} if is_python else _MISSING), is_python, bool(states)),
        timing=timing,
        aux=aux,
        states=states,
        entries=read_entries(root, model, timing),
    )
    root.finish()
    _refuse_repeats(root, "name", list(spec.names))
    _refuse_repeats(root, "input.stream", [one.stream for one in spec.inputs])
    _refuse_repeats(root, "output.name", [one.name for one in spec.outputs])
    return spec
