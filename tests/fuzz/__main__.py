"""`make fuzz`: the fuzz targets with coverage guidance, by atheris, or by `tests.fuzz.guided` where it is absent.

Inputs that reached new code are kept in `out/fuzz/TARGET`, beginning from the good ones of the harness and the corpus
of the repository (`tests/fuzz/corpus`). `--keep` adds to that corpus what reaches code that nothing in it reaches yet.
Exits non-zero at the first defect, whose input lies beside the others as `crash-…`.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz import guided, harness

CORPUS = Path(__file__).with_name("corpus")


def main() -> None:
    """Fuzz each target in turn and say how far it came."""
    has_atheris = importlib.util.find_spec("atheris") is not None
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (default 60)")
    parser.add_argument("--target", choices=sorted(harness.TARGETS), action="append", help="default: all")
    parser.add_argument("--found", type=Path, default=Path("out/fuzz"), help="folder that keeps inputs (out/fuzz)")
    parser.add_argument("--seed", type=int, help="of the mutations, to repeat a run")
    parser.add_argument("--engine", choices=("atheris", "guided"), default="atheris" if has_atheris else "guided")
    parser.add_argument("--keep", action="store_true", help="add to tests/fuzz/corpus what reaches new code")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if given.seed is None else given.seed
    print(f"engine {given.engine}, seed {seed}", flush=True)
    for name in given.target or sorted(harness.TARGETS):
        folder = given.found / name
        folder.mkdir(parents=True, exist_ok=True)
        run = _atheris if given.engine == "atheris" else _guided
        print(f"{name}: {run(name, folder, seed, given.seconds)}, no defect", flush=True)
        if given.keep:
            print(f"{name}: {guided.keep(harness.TARGETS[name], harness.seeds(name), folder, CORPUS / name)} added")


def _guided(name: str, folder: Path, seed: int, seconds: float) -> str:
    committed = [file.read_bytes() for file in sorted((CORPUS / name).glob("*"))]
    begin = [*harness.seeds(name), *committed]
    runs, kept, arcs = guided.fuzz(harness.TARGETS[name], begin, folder, seed=seed, seconds=seconds)
    return f"{runs} runs, {kept} inputs kept, {arcs} line pairs reached"


def _atheris(name: str, folder: Path, seed: int, seconds: float) -> str:
    for index, data in enumerate(harness.seeds(name)):
        (folder / f"seed-{index}").write_bytes(data)
    corpora = [str(folder), *([str(CORPUS / name)] if (CORPUS / name).is_dir() else [])]
    log = _libfuzzer(name, folder, f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}",
                     f"-max_len={guided.LONGEST}", *corpora)  # fmt: skip
    runs, covered, inputs = re.findall(r"^#(\d+)\s+DONE\s+cov: (\d+) .*corp: (\d+)", log, re.MULTILINE)[-1]
    return f"{runs} runs, {inputs} inputs kept, {covered} edges reached"


def _libfuzzer(name: str, folder: Path, *options: str) -> str:
    """libFuzzer's log; ends this process with its status when it found a defect."""
    command = [sys.executable, "-m", "tests.fuzz.libfuzzer", name, f"-artifact_prefix={folder}/", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout, flush=True)
        print(f"{name}: a defect, or no run at all; its input is in {folder}", flush=True)
        sys.exit(done.returncode)
    return done.stdout


if __name__ == "__main__":
    main()
