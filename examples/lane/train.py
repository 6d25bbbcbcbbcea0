"""Trains the lane network on synthetic roads and writes lane.onnx beside this file.

    python examples/lane/train.py

tinygrad on the CPU, no torch; a few minutes on two cores. Every random number comes from a seed. `evaluate.py` then
measures the model on whole frames of drives along roads that were never trained on.
"""

import argparse
import time
from pathlib import Path

import onnx
from scenes import draw

TRAINING_ROADS = range(1000, 1048)
"""Seeds of the roads trained on; evaluation, tests and the demo use others."""
SCENES_PER_ROAD = 200
MODEL = Path(__file__).with_name("lane.onnx")


def main() -> None:
    """Draws the scenes, trains, writes the model."""
    parser = argparse.ArgumentParser(description="Trains the lane network and writes lane.onnx.")
    parser.add_argument("--output", type=Path, default=MODEL, help="where the ONNX file goes")
    parser.add_argument("--processes", type=int, default=2, help="processes that draw scenes")
    arguments = parser.parse_args()
    started = time.monotonic()
    print(f"drawing {len(TRAINING_ROADS) * SCENES_PER_ROAD} scenes of {len(TRAINING_ROADS)} roads", flush=True)
    pictures, truths = draw(TRAINING_ROADS, SCENES_PER_ROAD, arguments.processes)
    # Only here: the processes that draw import this file too, and have no use for a compiler.
    from fit import fit  # noqa: PLC0415
    from network import export_onnx  # noqa: PLC0415

    onnx.save(export_onnx(fit(pictures, truths)), str(arguments.output))
    print(f"wrote {arguments.output} ({arguments.output.stat().st_size} bytes) in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
