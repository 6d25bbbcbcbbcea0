"""`fenced-lab`: the lab's commands. Each is one function below; the work is done in the rooms they import.

Exit codes: 0 done; 1 our fault; 2 usage; 3 refused. A refusal is printed on stderr as `refused: CODE: what was wrong`,
with what was expected, what was found and what to do; `--json` prints the same as one JSON object. Where a daemon
failed it is `failed: CODE`, with exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import Progress

from abi.packet import ProtocolError
from client import errors as client_errors
from client.terminal import guarded
from lab import numbers
from lab.compile.refusal import CompileRefused
from lab.hil import cli as hil_cli
from lab.hil.daemon import DaemonFailed
from lab.hil.scenario import ScenarioRefused
from lab.image import cli as image_cli
from lab.json_text import json_text
from lab.refusal import LabRefused, refusal_of
from lab.replay import cli as replay_cli
from lab.replay.refusal import LogRefused
from lab.sign import cli as sign_cli
from lab.top import cli as top_cli
from signing import refusal as signing_refusal

DONE, FAULT, USAGE, REFUSED = 0, 1, 2, 3

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return guarded("fenced-lab", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = parser().parse_args(argv)
    command: Command = arguments.command
    try:
        return command(arguments)
    except (CompileRefused, signing_refusal.Refused, LogRefused, ScenarioRefused) as refusal:
        text = _refusal_text(refusal.code.value, refusal, refusal.todo, as_json=arguments.json)
    except client_errors.Refused as refusal:
        code, refusal.what = refusal.named
        text = _refusal_text(code, refusal, refusal.action, as_json=arguments.json)
    except BrokenPipeError:
        raise
    except LabRefused as refusal:
        return _tell(refusal, as_json=arguments.json)
    except (OSError, ValueError, DaemonFailed, ProtocolError) as error:
        if (refused := refusal_of(error)) is not None:
            return _tell(refused, as_json=arguments.json)
        print(f"fenced-lab: {error}", file=sys.stderr)
        return FAULT
    print(text, file=sys.stderr)
    return REFUSED


def _tell(refusal: LabRefused, *, as_json: bool) -> int:
    """Print it; returns the exit status. What failed on the other side is no refusal and does not say that it is."""
    status = refusal.code.status
    word = "failed" if status == FAULT else "refused"
    print(_refusal_text(refusal.code.value, refusal, refusal.todo, as_json=as_json, word=word), file=sys.stderr)
    return status


class _Refusal(Protocol):
    what: str
    expected: str
    found: str


def _refusal_text(code: str, refusal: _Refusal, action: str, *, as_json: bool, word: str = "refused") -> str:
    """A refusal as a person or a script reads it."""
    parts = {"expected": refusal.expected, "found": refusal.found, "action": action}
    if as_json:
        return json_text({word: code, "what": refusal.what, **parts})
    return f"{word}: {code}: {refusal.what}\n" + "\n".join(f"  {key:10}{value}" for key, value in parts.items())


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="fenced-lab", description=__doc__.splitlines()[0] if __doc__ else None)
    top.add_argument("--json", action="store_true", help="print results and refusals as JSON")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    compile_ = commands.add_parser("compile", help="build an unsigned bundle from a spec.toml")
    compile_.add_argument("spec", type=Path)
    compile_.add_argument("-o", "--output", type=Path, help="the bundle; default: MODEL.unsigned.fenced here")
    compile_.add_argument(
        "--without-device", action="store_true",
        help="for cuda, or a cpu of another arch: compile where it is not; the bundle is then admitted and not run",
    )  # fmt: skip
    compile_.add_argument(
        "--tune", type=numbers.seconds, metavar="SECONDS",
        help="time other choices for CPU kernels for so long, and keep the better ones; 0: only what earlier runs kept",
    )  # fmt: skip
    compile_.set_defaults(command=_compile)
    sign_cli.add_commands(commands)
    replay_cli.add_commands(commands)
    hil_cli.add_commands(commands)
    top_cli.add_command(commands)
    image_cli.add_commands(commands)
    demo = commands.add_parser("demo", help="the whole way once: compile, sign, serve, 20 Hz frames, replay")
    demo.add_argument("--frames", type=numbers.count, default=240)
    demo.add_argument("--rate-hz", type=numbers.rate_hz, default=20.0)
    demo.add_argument("-o", "--output", type=Path, default=Path("out/demo"), help="folder, made anew")
    demo.set_defaults(command=_demo)
    bench = commands.add_parser("bench", help="measure against peers in one run")
    bench.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; default: all")
    bench.add_argument("--only", action="append", default=[], metavar="NAME", help="the same, once for each")
    bench.add_argument("--models", type=Path, metavar="DIR", help="folder with FastestDet.onnx and RFB320.onnx")
    bench.add_argument("--repeat", type=numbers.count, default=1, metavar="N", help="measure every row so often (1)")
    bench.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    bench.set_defaults(command=_bench)
    return top


def _compile(arguments: argparse.Namespace) -> int:
    from lab.compile.compiler import compile_spec  # noqa: PLC0415 (brings tinygrad in, which no other command needs)
    from lab.compile.page import compile_page  # noqa: PLC0415
    from lab.compile.spec_toml import load_spec  # noqa: PLC0415

    output: Path = arguments.output or Path(f"{load_spec(arguments.spec).model.name}.unsigned.fenced")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        report = compile_spec(
            arguments.spec, output, progress=progress, without_device=arguments.without_device, tune_s=arguments.tune
        )
    page = output.with_suffix(".html")
    page.write_text(compile_page(report), encoding="utf-8")
    print(report.to_json() if arguments.json else f"{report.to_text()}report {page}")
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    from lab import demo  # noqa: PLC0415 (as above)

    return demo.run(arguments.output, frames=arguments.frames, rate_hz=arguments.rate_hz)


def _bench(arguments: argparse.Namespace) -> int:
    from lab.bench import suite  # noqa: PLC0415 (as above)

    return suite.run(arguments.output, [*arguments.names, *arguments.only], as_json=arguments.json,
                     models=arguments.models, repeat=arguments.repeat)  # fmt: skip
