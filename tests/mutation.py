"""`make mutate`: small faults planted in the safety core, of which the tests must notice at least FLOOR.

mutmut makes the mutants; a sample of them is tried, chosen by the hash of each name, so that the same code is always
tried alike and another part of it after every change. `--every 1` tries them all (an hour or more on two cores).

    python -m tests.mutation [--every N]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "mutants"
FLOOR = 0.90
EVERY = 20
KILLED = (1, 3)
"""Exit codes of a run of the tests that noticed: a failed test, an internal error."""
TIMED_OUT = (-24, 24, 36, 152, 255)
"""SIGXCPU and mutmut's own code: the mutant never came back, which is noticed too."""


def names() -> list[str]:
    """Every mutant that mutmut made, by name."""
    found: list[str] = []
    for meta in MUTANTS.rglob("*.meta"):
        found += json.loads(meta.read_text())["exit_code_by_key"]
    return sorted(found)


def results(chosen: set[str]) -> dict[str, int | None]:
    """The exit code of the tests for each chosen mutant; None where it was not tried."""
    codes: dict[str, int | None] = {}
    for meta in MUTANTS.rglob("*.meta"):
        codes |= {
            name: code for name, code in json.loads(meta.read_text())["exit_code_by_key"].items() if name in chosen
        }
    return codes


def mutmut(*arguments: str) -> int:
    """Run mutmut in the checkout; its output is shown."""
    program = Path(sys.executable).with_name("mutmut")
    return subprocess.run([program, "run", *arguments], cwd=ROOT, check=False).returncode


def main() -> int:
    """Plant, try, count; returns 0 when the floor holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--every", type=int, default=EVERY, help="try one mutant in N")
    every: int = parser.parse_args().every
    shutil.rmtree(MUTANTS, ignore_errors=True)
    mutmut("none.*")  # makes the mutants and tries none
    chosen = {name for name in names() if zlib.crc32(name.encode()) % every == 0}
    if not chosen:
        print("mutation: mutmut made no mutants", file=sys.stderr)
        return 1
    mutmut(*sorted(chosen))
    codes = results(chosen)
    verdicts = Counter(
        "killed" if code in KILLED else "timed out" if code in TIMED_OUT else "not tried" if code is None else "alive"
        for code in codes.values()
    )
    tried = len(codes) - verdicts["not tried"]
    score = (verdicts["killed"] + verdicts["timed out"]) / max(1, tried)
    for name, code in sorted(codes.items()):
        if code not in KILLED and code not in TIMED_OUT:
            print(f"  {'not tried' if code is None else 'alive'}: {name}")
    print(f"mutation: {dict(verdicts)} of {len(names())} mutants; score {score:.3f}, floor {FLOOR}")
    return 0 if score >= FLOOR and not verdicts["not tried"] else 1


if __name__ == "__main__":
    sys.exit(main())
