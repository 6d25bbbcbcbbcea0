"""What a pipeline takes from outside its inputs is seen: clocks and draws at the call, memory by what it leaves."""

from __future__ import annotations

import datetime
import importlib.util
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor

from lab.compile.outside import TakenFromOutside, kept_values, watched

FILE = """
import random
import numpy as np

class Slim:
    __slots__ = ("calls",)

class Layer:
    def __init__(self):
        self.slim = Slim()
        self.slim.calls = 0
        self.scale, self.calls, self.cache = 2.0, 0, {}

    def __call__(self, x):
        CHANGE
        return x

GENERATOR = np.random.default_rng(1)
DICE = random.Random(1)
TABLE = np.zeros(3)
SEEN = []

def build():
    layer, count = Layer(), 0

    def step(x):
        nonlocal count
        return layer(x)

    return step
"""


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (time.time, "time.time()"),
        (lambda: time.localtime().tm_hour, "time.localtime()"),
        (lambda: datetime.date.today().day, "datetime.date.today()"),
        (lambda: datetime.datetime.now(datetime.UTC), "datetime.datetime.now()"),
        (lambda: os.urandom(1), "posix.urandom()"),
        (lambda: random.random() < 1e-9, "a draw"),
        (lambda: np.random.rand() < 1e-9, "a draw"),
        (lambda: np.random.default_rng().integers(2), "posix.urandom()"),
    ],
)
def test_a_clock_or_a_draw_is_named(read: Callable[[], Any], what: str) -> None:
    with pytest.raises(TakenFromOutside) as taken, watched():
        read()
    assert taken.value.what.startswith(what)


def test_what_tinygrad_does_inside_and_a_seeded_draw_are_no_clock() -> None:
    with watched():
        (Tensor([1.0, 2.0]) * 2).realize()  # it measures its own kernels
        np.random.default_rng(3).integers(9)
        random.Random(3).random()
        time.sleep(0)


def load(folder: Path, change: str) -> ModuleType:
    path = folder / "pipeline.py"
    path.write_text(FILE.replace("CHANGE", change))
    found = importlib.util.spec_from_file_location("a_pipeline", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("self.calls += 1", "layer.calls"),
        ("self.cache[len(self.cache)] = x", "layer.cache[1]"),
        ("self.last = object()", "layer.last"),
        ("self.slim.calls += 1", "layer.slim.calls"),
        ("SEEN.append(1)", "SEEN"),
        ("TABLE[0] += 1", "TABLE"),
        ("GENERATOR.integers(9)", "GENERATOR"),
        ("DICE.random()", "DICE"),
        ("global NEW; NEW = globals().get('NEW', 0) + 1", "NEW"),
        ("Layer.calls_of_all = getattr(Layer, 'calls_of_all', 0) + 1", "Layer.calls_of_all"),
        ("build.calls = getattr(build, 'calls', 0) + 1", "build.calls"),
    ],
)
def test_what_a_call_leaves_behind_is_found_where_it_is(tmp_path: Path, change: str, where: str) -> None:
    module = load(tmp_path, change)
    step = module.build()
    step(1)
    before = kept_values(step, module)
    step(1)
    now = kept_values(step, module)
    assert where in {name for name in {**before, **now} if before.get(name) != now.get(name)}


def test_what_is_filled_once_is_no_memory(tmp_path: Path) -> None:
    module = load(tmp_path, "self.cache.setdefault('table', object()); self.calls = 1")
    step = module.build()
    step(1)
    before = kept_values(step, module)
    step(2)
    assert kept_values(step, module) == before
