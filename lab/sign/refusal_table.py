"""Prints docs/refusals.md from the enum, so that the page cannot drift: `python -m lab.sign.refusal_table`."""

from __future__ import annotations

import sys

from signing.refusal import RefusalCode

_HEAD = """# Refusals

Generated from `signing/refusal.py` by `python -m lab.sign.refusal_table > docs/refusals.md`; do not edit.

A refusal is a decision about data. It names what was wrong, what was expected and what was found, and ends with what
to do. The same text stands on the command line (exit code 3), in the audit log and in the control socket's answer;
`code` is stable and may be matched by scripts.

| code | what it means | what to do |
|---|---|---|
"""


def table() -> str:
    """Return the page as Markdown."""
    return _HEAD + "".join(f"| `{code.value}` | {code.meaning} | {code.todo} |\n" for code in RefusalCode)


if __name__ == "__main__":
    sys.stdout.write(table())
