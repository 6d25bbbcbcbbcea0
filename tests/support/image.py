"""The vehicle's image, built once in a test run from this checkout; its wheels stay in `build/image`, as make's do."""

from __future__ import annotations

import functools
import platform
import tempfile
from pathlib import Path

from lab.image.target import ImageTarget
from lab.image.tree import ImageReport, build_image
from lab.image.wheels import CHECKOUT


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fenced-image-")  # removed when the interpreter ends


@functools.cache
def built_image(*, accelerator: bool = False) -> ImageReport:
    """An unsigned image for this machine. Raises LabRefused where its wheels cannot be had."""
    target = ImageTarget(platform.machine())
    wheels = CHECKOUT / "build" / "image" / target.arch
    wheels.parent.mkdir(parents=True, exist_ok=True)
    tree = Path(_folder().name) / ("accelerator" if accelerator else "image")
    return build_image(tree, target, wheels, accelerator=accelerator)
