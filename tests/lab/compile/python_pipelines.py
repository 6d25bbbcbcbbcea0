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
