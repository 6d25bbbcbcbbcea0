"""Prints docs/refusals.md from the enums, so that the page cannot drift: `python -m lab.sign.refusal_table`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from abi.graph import GraphErrorCode
from daemon.realtime import RealtimeCode
from daemon.refusal import ModelCode
from daemon.serve import StartCode
from daemon.trials import Verdict
from hal.error import HalCode
from hal.refusal import AdmissionCode
from lab.compile.refusal import CompileRefusal
from lab.hil.scenario import ScenarioRefusal
from lab.refusal import LabRefusal
from lab.replay.refusal import LogRefusal
from signing.refusal import RefusalCode

_HEAD = """# Refusals

Generated from the code by `python -m lab.sign.refusal_table > docs/refusals.md`; do not edit.

A refusal is a decision about data. It names what was wrong, what was expected and what was found, and ends with what
to do. The same text stands on the command line (exit code 3), in the audit log and in the control socket's answer;
`code` is stable and may be matched by scripts.

| code | what it means | what to do |
|---|---|---|
"""


_LATER = """
## Codes of the other steps

These refusals carry the same sentences; what was expected and found is particular to the model, and stands in the text.
The daemon's answers to cameras and consumers are explained in [abi.md](abi.md).

| step | codes |
|---|---|
"""


def table() -> str:
    """Return the page as Markdown."""
    trust = "".join(f"| `{code.value}` | {code.meaning} | {code.todo} |\n" for code in RefusalCode)
    steps: tuple[tuple[str, Iterable[str]], ...] = (
        ("the graph's bytes", (code.name.lower().replace("_", "-") for code in GraphErrorCode)),
        ("the graph's admission", (code.value for code in AdmissionCode)),
        ("the device; in the self-test behind `self-test-`", (code.value for code in HalCode)),
        ("the daemon: room, self-test, the models beside each other, a shadow", (code.value for code in ModelCode)),
        ("a release that was tried before", (verdict.value for verdict in Verdict)),
        ("a daemon that does not start", (code.value for code in StartCode)),
        ("what `[realtime]` asks of the kernel", (code.value for code in RealtimeCode)),
        ("`fenced-lab compile`", (code.value for code in CompileRefusal)),
        ("`fenced-lab record`, `import` and `replay`", (code.value for code in LogRefusal)),
        ("`fenced-lab hil`", (code.value for code in ScenarioRefusal)),
        ("options, files and daemons of any `fenced-lab` command", (code.value for code in LabRefusal)),
    )
    later = "".join(f"| {step} | {', '.join(f'`{code}`' for code in codes)} |\n" for step, codes in steps)
    return _HEAD + trust + _LATER + later


if __name__ == "__main__":
    sys.stdout.write(table())
