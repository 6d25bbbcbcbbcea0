"""What timing has found, kept between compiles: with the same cache a tuned compile gives the same bundle.

One JSON file of the user's cache for each kind of machine and rule: the CPU's model, the code's target, threads, the
rule's version and tinygrad's. Times are of that machine and day; only the choice reaches a bundle.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.json_text import json_text

FORMAT = 2


@dataclass(frozen=True)
class Timed:
    """A kernel's verdict. chosen: None where the rule's choice stays. Times in microseconds; tried: other choices."""

    kernel: str
    chosen: tuple[tuple[str, int, int], ...] | None
    rule_us: float
    chosen_us: float
    tried: int


class TuneCache:
    """The verdicts in `folder` for `place`, which names everything that they depend on beside the kernel."""

    def __init__(self, folder: Path, place: Mapping[str, str]) -> None:
        self._place = dict(sorted(place.items()))
        name = hashlib.sha256(json_text(self._place).encode()).hexdigest()[:16]
        self.path = folder / f"tuned-{name}.json"
        self.timed = self._read()

    def add(self, found: Mapping[str, Timed]) -> None:
        """Adds verdicts by kernel key, and writes the file."""
        self.timed = {**self._read(), **found}
        kernels = {key: asdict(self.timed[key]) for key in sorted(self.timed)}
        document = {"format": FORMAT, "place": self._place, "kernels": kernels, "digest": _digest(kernels)}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            file.write(json_text(document, indent=1))
        os.replace(file.name, self.path)

    def _read(self) -> dict[str, Timed]:
        """What the file holds; nothing where it is missing, damaged or of another place."""
        try:
            document = json.loads(self.path.read_text())
            kernels = document["kernels"]
            if document["format"] != FORMAT or document["place"] != self._place:
                return {}
            if document["digest"] != _digest(kernels):  # a choice that was changed may not apply
                return {}
            return {key: _timed(value) for key, value in kernels.items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def _digest(kernels: object) -> str:
    return hashlib.sha256(json_text(kernels).encode()).hexdigest()


def _timed(value: dict[str, object]) -> Timed:
    one = Timed(**value)  # type: ignore[arg-type]
    if one.chosen is None:
        return one
    chosen = tuple((str(name), int(axis), int(amount)) for name, axis, amount in one.chosen)
    return Timed(one.kernel, chosen, one.rule_us, one.chosen_us, one.tried)


def cpu_model() -> str:
    """What /proc/cpuinfo calls this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    wanted = ("model name", "CPU part")
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(wanted)), "unknown")
