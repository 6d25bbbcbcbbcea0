"""`fenced`: the vehicle's command line. Serves, asks a running daemon, and looks at bundles.

Exit statuses: 0 done; 1 our fault (a file, a connection, a device); 2 usage or configuration; 3 refused, with the
refusal's code on stderr (and as JSON on stdout with --json). `serve` imports nothing before the guard is installed, so
imports here are made where they are needed.
"""

# ruff: noqa: PLC0415 (see above)

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from client.control import Control
    from client.errors import Refused

DONE, FAULT, USAGE, REFUSED = 0, 1, 2, 3
SOCKET_DIRECTORY = "/run/fenced"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["serve"]:
        from daemon import guard

        guard.install()
    from client.terminal import guarded

    return guarded("fenced", lambda: _main(given))


def _main(given: Sequence[str]) -> int:
    parsed = _parser().parse_args(given)
    if parsed.command == "serve":
        from daemon.serve import serve

        return serve(parsed.config)
    return _run(parsed)


def _run(parsed: argparse.Namespace) -> int:
    try:
        answer = _COMMANDS[parsed.command](parsed)
    except _refusals() as error:
        return _refuse(parsed, error)
    except _configuration_errors() as error:
        print(f"fenced: bad-configuration: {error}", file=sys.stderr)
        return USAGE
    except TimeoutError as error:
        todo = "the daemon may still carry it out: `fenced status` tells what it came to"
        print(f"fenced: {error}; {todo}", file=sys.stderr)
        return FAULT
    except _faults() as error:
        print(f"fenced: {type(error).__name__}: {error}", file=sys.stderr)
        return FAULT
    _show(answer, as_json=parsed.json)
    return DONE if isinstance(answer, str) or answer.get("passed", True) else FAULT


def _refusals() -> tuple[type[Exception], ...]:
    from abi.graph import GraphError
    from client.errors import Refused
    from daemon.audit import AuditBroken
    from daemon.refusal import ModelRefused
    from hal.refusal import AdmissionRefused
    from signing.refusal import Refused as SigningRefused

    return Refused, SigningRefused, ModelRefused, AdmissionRefused, GraphError, AuditBroken


def _configuration_errors() -> tuple[type[Exception], ...]:
    from daemon.config import ConfigError

    return (ConfigError,)


def _faults() -> tuple[type[Exception], ...]:
    from abi.packet import ProtocolError
    from hal.error import HalError

    return HalError, OSError, ProtocolError


def _refuse(parsed: argparse.Namespace, error: Exception) -> int:
    """The code and its sentences on stderr; with --json the same as JSON on stdout."""
    from client.errors import Refused

    if isinstance(error, Refused):
        words = _said(error)
        text = "{code}: {what}: expected {expected}, found {found}. {todo}".format_map(words)
    else:
        words, text = _words(error), str(error)
    code = str(words["code"])
    print(f"fenced: refused: {text if code in text else f'{code}: {text}'}", file=sys.stderr)
    if parsed.json:
        _print_json({"refused": words})
    return REFUSED


def _said(error: Refused) -> dict[str, object]:
    """A daemon's refusal in the words of every other."""
    code, what = error.named
    return {"code": code, "what": what, "expected": error.expected, "found": error.found, "todo": error.action}


def _words(error: Exception) -> dict[str, object]:
    words: dict[str, object] = {}
    for name in ("code", "step", "where", "line", "what", "expected", "found", "todo"):
        value = getattr(error, name, None)
        if value is not None:
            named = getattr(value, "name", None)
            text = getattr(value, "value", value)
            words[name] = named.lower().replace("_", "-") if named and not isinstance(text, str) else text
    return words or {"code": type(error).__name__, "what": str(error)}


def _print_json(tree: Mapping[str, object]) -> None:
    import json

    print(json.dumps(tree, indent=2, sort_keys=False))


def _show(answer: Mapping[str, object] | str, *, as_json: bool) -> None:
    if isinstance(answer, str):
        print(answer, end="")
    elif as_json:
        _print_json(answer)
    else:
        _show_branch(answer, 0)


def _show_branch(tree: Mapping[str, object], depth: int) -> None:
    """An indented outline: `key  value`, branches below their key."""
    margin = "  " * depth
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            print(f"{margin}{key}")
            _show_branch(value, depth + 1)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for item in value:
                title = item.get("name", item.get("check", ""))
                print(f"{margin}{key}  {title}")
                _show_branch({name: one for name, one in item.items() if one != title}, depth + 1)
        elif isinstance(value, str) and "\n" in value:
            print(f"{margin}{key}")
            print(*(f"{margin}  {line}" for line in value.splitlines()), sep="\n")
        else:
            shown = " ".join(str(item) for item in value) if isinstance(value, list | tuple) else value
            print(f"{margin}{key}  {'-' if shown in ({}, '', None) else shown}")


# commands on files and devices


def _verify(parsed: argparse.Namespace) -> dict[str, object]:
    from daemon import offline

    return offline.verify(parsed.bundle, parsed.root, parsed.state, parsed.device)


def _inspect(parsed: argparse.Namespace) -> dict[str, object]:
    from daemon import offline

    inspected = offline.inspect(parsed.bundle)
    return inspected if parsed.json else offline.with_arena_maps(inspected)


def _selftest(parsed: argparse.Namespace) -> dict[str, object]:
    from daemon import offline

    return offline.selftest(parsed.bundle, parsed.root, parsed.device)


def _devices(parsed: argparse.Namespace) -> dict[str, object]:
    from daemon import offline

    return offline.devices(parsed.device)


def _check_config(parsed: argparse.Namespace) -> dict[str, object]:
    from daemon.config import load
    from daemon.config_check import check

    return check(load(parsed.config), parsed.root or ())


def _audit_verify(parsed: argparse.Namespace) -> dict[str, object]:
    from daemon.audit import verify

    head = verify(parsed.log)
    return {"verified": True, "log": parsed.log, "entries": head.entries, "head_sha256": head.sha256}


# commands for a running daemon


def _control(parsed: argparse.Namespace) -> Control:
    from client.control import Control
    from client.errors import ConnectionLost

    path = f"{parsed.sockets}/control.sock"
    try:
        return Control(path, name="fenced command line")
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        todo = "start it, or name its socket_directory with --sockets"
        raise ConnectionLost(f"no daemon listens at {path}; {todo}") from None
    except PermissionError:
        todo = "join the socket's group, and be listed under [control], or [observe] to look only"
        raise ConnectionLost(f"{path} is not open to this user; {todo}") from None


def _ask(parsed: argparse.Namespace, method: str, *arguments: str) -> dict[str, object]:
    with _control(parsed) as control:
        answer: dict[str, object] = getattr(control, method)(*arguments)
        return answer


def _activate(parsed: argparse.Namespace) -> dict[str, object]:
    if parsed.shadow == "off" or not parsed.bundle:
        if parsed.shadow != "off" or parsed.bundle or parsed.frames:
            print("fenced activate: name a bundle, or say --shadow off alone", file=sys.stderr)
            raise SystemExit(USAGE)
        return _ask(parsed, "end_shadow")
    path = os.path.abspath(parsed.bundle)
    if parsed.frames < 0 or (parsed.frames and parsed.shadow is None):
        print("fenced activate: --frames is a count, and goes with --shadow", file=sys.stderr)
        raise SystemExit(USAGE)
    if parsed.shadow is None:
        return _ask(parsed, "activate", path)
    with _control(parsed) as control:
        return control.shadow(path, parsed.frames)


def _rollback(parsed: argparse.Namespace) -> dict[str, object]:
    with _control(parsed) as control:
        return control.rollback(model=parsed.model)


def _snapshot_state(parsed: argparse.Namespace) -> dict[str, object]:
    from abi.snapshot import decode
    from client.snapshot_file import write_snapshot

    with _control(parsed) as control:
        data = control.snapshot_state(parsed.model)
    snapshot, _ = decode(data)
    write_snapshot(parsed.output, data)
    return {
        "snapshot": parsed.output,
        "model": snapshot.model,
        "digest": snapshot.model_digest.hex(),
        "state_epoch": snapshot.state_epoch,
        "states": [
            {"name": one.name, "dtype": one.dtype.name.lower(), "shape": list(one.shape)} for one in snapshot.states
        ],
        "bytes": len(data),
    }


def _restore_state(parsed: argparse.Namespace) -> dict[str, object]:
    from client.snapshot_file import read_snapshot

    data = read_snapshot(parsed.snapshot)
    with _control(parsed) as control:
        return control.restore_state(data, parsed.model)


def _metrics(parsed: argparse.Namespace) -> str:
    with _control(parsed) as control:
        return control.metrics()


_COMMANDS: dict[str, Callable[[argparse.Namespace], dict[str, object] | str]] = {
    "verify": _verify,
    "inspect": _inspect,
    "selftest": _selftest,
    "devices": _devices,
    "check-config": _check_config,
    "audit": _audit_verify,
    "status": lambda parsed: _ask(parsed, "status"),
    "activate": _activate,
    "rollback": _rollback,
    "drain": lambda parsed: _ask(parsed, "drain"),
    "resume": lambda parsed: _ask(parsed, "resume"),
    "reset-state": lambda parsed: _ask(parsed, "reset_state", parsed.model),
    "snapshot-state": _snapshot_state,
    "restore-state": _restore_state,
    "metrics": _metrics,
}


def _parser() -> argparse.ArgumentParser:
    import argparse

    top = argparse.ArgumentParser(prog="fenced", description="The on-vehicle inference daemon and its command line.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = "serve by a configuration file until SIGTERM"
    commands.add_parser("serve", help=text, description=text).add_argument("--config", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print the answer, or the refusal, as JSON")

    def add(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[shared, *parents])

    _add_offline(add)
    _add_running(add)
    return top


def _add_offline(add: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands on files and devices."""
    import argparse

    device = argparse.ArgumentParser(add_help=False)
    device.add_argument("--device", default="cpu", help="the driver to use (default: cpu)")
    verify = add("verify", "verify a bundle's signatures, digests and target for this machine", device)
    verify.add_argument("bundle")
    verify.add_argument("--root", required=True, action="append", help="trusted root files, in order of version")
    verify.add_argument("--state", help="the vehicle's trust state, for its rollback floors")
    add("inspect", "show what a bundle holds, without looking at signatures").add_argument("bundle")
    selftest = add("selftest", "run a bundle's golden vectors and the device's conformance suite", device)
    selftest.add_argument("bundle")
    selftest.add_argument("--root", required=True, help="the trusted root file")
    add("devices", "show the device", device)
    check = add("check-config", "check a configuration, and what it names, as the daemon will want it")
    check.add_argument("config")
    check.add_argument("--root", action="append", help="root files in place of root_paths, for a unit's credential")
    audit = add("audit", "look at the audit log")
    audit.add_argument("action", choices=["verify"])
    audit.add_argument("log", help="the audit log, for instance /var/lib/fenced/audit.jsonl")


def _add_running(add: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands for a running daemon."""
    import argparse

    running = argparse.ArgumentParser(add_help=False)
    running.add_argument("--sockets", default=SOCKET_DIRECTORY, help=f"the socket folder (default: {SOCKET_DIRECTORY})")
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("--model", default="", help="the model's name; needed where several could be meant")
    add("status", "show the running daemon's state", running)
    activate = add("activate", "verify a bundle and let it serve; refused, what served before goes on", running)
    activate.add_argument("bundle", nargs="?")
    activate.add_argument(
        "--shadow", nargs="?", const="on", choices=["on", "off"],
        help="let it run on the same frames, compared with what is served and not published; off: end that",
    )  # fmt: skip
    activate.add_argument("--frames", type=int, default=0, help="end the shadow after so many were compared")
    add("rollback", "back to the model that served before", running, model)
    add("drain", "refuse new frames and finish those in flight", running)
    add("resume", "take frames again after drain", running)
    add("reset-state", "recurrent state to its initial value", running, model)
    snapshot = add("snapshot-state", "write a model's recurrent state to a new file", running, model)
    snapshot.add_argument("-o", "--output", required=True, help="the file; it must not exist")
    restore = add("restore-state", "give a model the recurrent state of a snapshot", running, model)
    restore.add_argument("snapshot")
    add("metrics", "print all counters as OpenMetrics text", running)


if __name__ == "__main__":
    raise SystemExit(main())
