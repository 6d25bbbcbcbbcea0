"""Small Python pipelines and their specs: a queue of pictures that rolls, a scale that a peer sets."""

from __future__ import annotations

from pathlib import Path

from tests.lab.compile.tiny_models import edited

SPEC = """
[model]
name = "rolling"
version = "0.1.0"
source = "pipeline.py:build"
release = 1

[target]
driver = "cpu"
arch = "x86_64"
cpu = "x86_64_v3"
threads = 2

[[input]]
name = "road"
stream = "road"
format = "RGB24"
width = 8
height = 4
range = "full"
matrix = "identity"
primaries = "bt709"
transfer = "srgb"
chroma_site = "notSubsampled"
layout = "bytes"

[[aux]]
name = "gain"
dtype = "int32"
shape = [1]
max_age_ms = 250.0
default = 3

[[state]]
name = "queue"
dtype = "int32"
shape = [5, 96]
hand_over = true

[[output]]
tensor = "oldest"
name = "oldest"
unit = "1"
nan = "refuse"

[[output]]
tensor = "sums"
name = "sums"
unit = "1"
nan = "refuse"
"""
PIPELINE = '''
"""A queue of the latest five pictures, each times the gain of its own time."""


def build():
    def step(road, gain, queue):
        rolled = queue[1:].cat((road.cast("int32") * gain).reshape(1, 96), dim=0)
        return {"oldest": rolled[0], "sums": rolled.sum(axis=1)}, {"queue": rolled}

    return step
'''


def write_pipeline(folder: Path, text: str = PIPELINE, edits: dict[str, str] | None = None) -> Path:
    """A folder with pipeline.py and spec.toml; returns the spec's path."""
    (folder / "pipeline.py").write_text(text)
    path = folder / "spec.toml"
    path.write_text(edited(SPEC, edits or {}))
    return path


# Three ways to run a model: sums of a rolling queue weighted by a table, the same by a shorter way, and no sums at all.
ENTRIES_SPEC = {
    'name = "rolling"': 'name = "turns"',
    "[[aux]]": """[timing]
deadline_ms = 60
budget_ms = 400

[[entrypoint]]
name = "full"
role = "primary"
miss_limit = 3
miss_window = 20
on_misses = "lighter"

[[entrypoint]]
name = "keep"
role = "stateOnly"
source = "pipeline.py:keep"

[[entrypoint]]
name = "brief"
role = "lighter"
source = "pipeline.py:brief"
deadline_ms = 80
budget_ms = 200

[[aux]]""",
}
ENTRIES_PIPELINE = '''
"""A rolling queue, its weighted sums, and how often the full network ran."""
import numpy as np
from tinygrad import Tensor

TABLE = np.random.default_rng(5).integers(1, 99, (5, 96)).astype(np.int32)


def build():
    table = Tensor(TABLE).realize()

    def full(road, gain, queue, runs):
        rolled = queue[1:].cat((road.cast("int32") * gain).reshape(1, 96), dim=0).contiguous()
        outputs = {"oldest": rolled[0] + runs, "sums": (rolled * table).sum(axis=1) + runs}
        return outputs, {"queue": rolled, "runs": runs + 1}

    return full


def keep():
    def roll(road, gain, queue):
        return {"queue": queue[1:].cat((road.cast("int32") * gain).reshape(1, 96), dim=0)}

    return roll


def brief():
    table = Tensor(TABLE).realize()

    def light(road, queue):
        rolled = queue[1:].cat((road.cast("int32") * 3).reshape(1, 96), dim=0).contiguous()
        return {"oldest": rolled[0], "sums": (rolled[4:] * table[4:]).sum(axis=1).expand(5)}, {"queue": rolled}

    return light
'''
RUNS = """[[state]]
name = "runs"
dtype = "int32"
shape = [1]
hand_over = false

[[output]]
tensor = "oldest\""""


def write_entries(folder: Path, text: str = ENTRIES_PIPELINE, edits: dict[str, str] | None = None) -> Path:
    """As `write_pipeline`, with three entrypoints over one more state."""
    first = {'[[output]]\ntensor = "oldest"': RUNS}
    return write_pipeline(folder, text, {**ENTRIES_SPEC, **first, **(edits or {})})
