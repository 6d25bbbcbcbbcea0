"""`python -m tests.fuzz --seconds 60`: the fuzz targets with coverage guidance. Exits non-zero at the first defect."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from tests.fuzz import guided, harness


def main() -> None:
    """Fuzz each target in turn and say how far it came."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (default 60)")
    parser.add_argument("--target", choices=sorted(harness.TARGETS), action="append", help="default: all")
    parser.add_argument("--corpus", type=Path, default=Path("out/fuzz"), help="folder that keeps inputs (out/fuzz)")
    parser.add_argument("--seed", type=int, help="of the mutations, to repeat a run")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    for name in given.target or sorted(harness.TARGETS):
        print(f"{name}: seed {seed} ...", flush=True)
        target = harness.TARGETS[name]
        folder = given.corpus / name
        runs, kept, arcs = guided.fuzz(target, harness.seeds(name), folder, seed=seed, seconds=given.seconds)
        print(f"{name}: {runs} runs, {kept} inputs kept, {arcs} line pairs reached, no defect", flush=True)


if __name__ == "__main__":
    main()
