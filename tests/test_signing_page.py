"""docs/signing.md shows only commands and keys that are there."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from client import cli as vehicle_cli
from daemon import config
from lab import cli as lab_cli
from tests.support.named_tests import ROOT

PAGE = (ROOT / "docs" / "signing.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line]


@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_a_command_of_the_page_is_understood(number: int) -> None:
    program, *words = shlex.split(COMMANDS[number])
    parser = {"fenced": vehicle_cli._parser, "fenced-lab": lab_cli.parser}[program]()
    parser.parse_args(words)


def test_the_configuration_of_the_page_is_accepted(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    parsed = config.parse({"state_directory": "state", **tomllib.loads(text)}, str(tmp_path / "fenced.toml"))
    assert parsed.limits.probation_frames == 100


def test_the_page_shows_every_signing_command() -> None:
    shown = {tuple(shlex.split(line)[1:3]) for line in COMMANDS}
    for words in (("root", "init"), ("root", "rotate"), ("root", "revoke"), ("root", "show"), ("root", "sign")):
        assert words in shown
    commands = "keygen sign require expire envelope attach inspect verify"
    assert {line.split()[1] for line in COMMANDS} >= set(commands.split())
