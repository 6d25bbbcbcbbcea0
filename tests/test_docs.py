"""What a newcomer follows is true: links lead somewhere, examples compile and run, every key of a spec is explained."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.compile import spec_toml
from lab.compile.compiler import compile_spec
from lab.compile.spec_toml import load_spec
from lab.sign.throwaway import sign_throwaway
from tests.lab.compile.python_pipelines import PIPELINE, write_entries, write_pipeline
from tests.lab.compile.test_compile_bundle import TWO_INPUTS
from tests.lab.compile.tiny_models import SPEC
from tests.support.bundles import BundleMaker
from tests.support.daemons import LIMIT_S, DaemonThread

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted(path for folder in (".", "docs", "docs/adr", "examples/*") for path in REPOSITORY.glob(f"{folder}/*.md"))
LANE = REPOSITORY / "examples" / "lane" / "spec.toml"


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (REPOSITORY / page).read_text(), re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Where a page's relative links lead, their fragments included."""
    return [one for one in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in one]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, fragment = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if fragment else []
        assert not fragment or fragment in {heading.lower().replace(" ", "-") for heading in headings}, link


def test_the_readme_leads_to_every_page_of_the_docs() -> None:
    found, new = set[Path](), {REPOSITORY / "README.md"}
    while new:
        found |= new
        targets = {(page.parent / link.partition("#")[0]).resolve() for page in new for link in links(page)}
        new = {target for target in targets if target.suffix == ".md"} - found
    assert set((REPOSITORY / "docs").resolve().glob("*.md")) <= found


def test_every_key_of_a_spec_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    take = spec_toml.Table.take

    def noted(table: spec_toml.Table, key: str, *rest: Any) -> Any:
        asked.add(key)
        return take(table, key, *rest)

    monkeypatch.setattr(spec_toml.Table, "take", noted)
    mosaic = SPEC.replace('"NV12"', '"R12"').replace('"limited"', '"full"').replace('"bt709"', '"identity"', 1)
    mosaic = mosaic.replace('"left"', '"notSubsampled"\ncfa = "rggb"\ndemosaic = "bilinear"')
    for text in (mosaic, SPEC.replace("\n[check]", TWO_INPUTS)):
        (tmp_path / "spec.toml").write_text(text)
        load_spec(tmp_path / "spec.toml")
    load_spec(write_pipeline(tmp_path))
    load_spec(write_entries(tmp_path))
    assert {"demosaic", "cfa", "max_skew_ms", "dims", "max_age_ms", "hand_over", "on_misses"} <= asked
    page = (REPOSITORY / "docs" / "compile.md").read_text()
    explained = set(re.findall(r"`(?:\w+\.)?(\w+)`", " ".join(re.findall(r"^\|([^|]*)\|", page, re.MULTILINE))))
    tables = {"model", "target", "input", "output", "check", "timing", "aux", "state", "entrypoint"}
    assert asked - tables == explained - tables


def test_the_example_of_a_python_pipeline_is_the_one_that_the_tests_compile() -> None:
    (text,) = blocks("docs/compile.md", "python")
    assert text.strip() in PIPELINE


def test_the_example_of_a_spec_is_one(tmp_path: Path) -> None:
    (text,) = [block for block in blocks("docs/compile.md", "toml") if "[model]" in block]
    (tmp_path / "spec.toml").write_text(text)
    spec = load_spec(tmp_path / "spec.toml")
    assert (spec.model.name, spec.inputs[0].shape) == ("tiny", (1, 3, 60, 80))


def test_the_camera_and_the_consumer_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    camera, consumer = blocks("README.md", "python")
    assert "range(200)" in camera
    (tmp_path / "camera.py").write_text(camera.replace("range(200)", "range(5)"))
    (tmp_path / "consumer.py").write_text(consumer.replace("while True:", "for _ in range(1):"))
    folder = tmp_path / "out" / "demo"
    (folder / "daemon").mkdir(parents=True)
    compile_spec(LANE, folder / "lane.fenced")
    lab = cast(BundleMaker, SimpleNamespace(root_path=sign_throwaway(folder / "lane.fenced", folder), folder=folder))
    monkeypatch.chdir(tmp_path)  # the sockets' paths in the README are relative
    with (
        DaemonThread(folder / "daemon", [folder / "lane.fenced"], lab),
        contextlib.redirect_stdout(io.StringIO()) as text,
    ):
        panel = threading.Thread(target=runpy.run_path, args=("consumer.py",))
        panel.start()
        while panel.is_alive():  # it may subscribe after the first frames
            runpy.run_path("camera.py")
            panel.join(0.1)
        panel.join(LIMIT_S)
    shown = text.getvalue()
    assert "run=5" in shown
    assert re.search(r"frame \d, .* ms after its start: lane_offset_m [+-]\d.* m heading_rad [+-]\d.* rad", shown)
