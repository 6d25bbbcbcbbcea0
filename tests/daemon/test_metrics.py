"""`fenced metrics`: OpenMetrics that its reference parser takes, every family described, and numbers that are true."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from abi.packet import RefusalCode
from client.errors import Refused
from daemon.metrics import FAMILIES, LEFT_OUT, TEXT_LIMIT_BYTES, family_names
from daemon.openmetrics import Family, Kind, render
from lab.exporter.source import FAMILIES as EXPORTER_FAMILIES
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, picture, run_one

REPOSITORY = Path(__file__).parents[2]
SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_info")


def parsed(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]


def value(families: dict[str, Metric], name: str, sample: str = "", **labels: str) -> float:
    (found,) = [
        one.value
        for one in families[name].samples
        if (not sample or one.name == sample) and labels.items() <= one.labels.items()
    ]
    return float(found)


def test_the_numbers_are_those_of_the_frames(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        for sequence in range(1, 4):
            run_one(camera, consumer, sequence, picture(sequence))
        with pytest.raises(Refused):
            control.activate("/not/allowed")
        found = parsed(control.metrics())
        status = control.status()
    (model,) = status["models"]
    assert value(found, "fenced_frames_submitted", stream="road") == 3
    assert value(found, "fenced_frames_ended", stream="road", end="run") == 3
    assert value(found, "fenced_published", model="tiny") == 3
    assert value(found, "fenced_fences_ended", model="tiny", status="signaled") == 3
    assert value(found, "fenced_model", digest=model["digest"]) == 1
    assert value(found, "fenced_release", model="tiny") == model["release"]
    assert value(found, "fenced_packet_refusals", role="control", code="not_permitted") == 1
    assert value(found, "fenced_audit_events", event="activation.refused") == 1
    stages = [f"fenced_{name}_seconds" for name in ("queue", "run", "publish")]
    assert [value(found, name, f"{name}_count") for name in stages] == [3, 3, 3]
    total = sum(value(found, name, f"{name}_sum") for name in stages)
    assert total == pytest.approx(value(found, "fenced_latency_seconds", "fenced_latency_seconds_sum"))
    assert value(found, LEFT_OUT) == 0


def test_every_family_stands_in_the_answer_with_the_labels_that_its_table_says(
    tmp_path: Path, maker: BundleMaker
) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.control() as control:
        found = parsed(control.metrics())
    assert set(found) == set(family_names())
    for family in FAMILIES:
        for sample in found[family.name].samples:
            assert set(sample.labels) - {"le"} == set(family.labels), family.name
        assert found[family.name].type == family.kind.value
        assert found[family.name].documentation.endswith(".")


def test_the_text_of_many_models_arrives_in_one_packet_and_says_what_it_left_out(
    tmp_path: Path, maker: BundleMaker
) -> None:
    models = [TinyModel(name=f"model-{index:02}", streams=(f"stream-{index:02}",)) for index in range(12)]
    bundles = [maker.write(model) for model in models]
    with DaemonThread(tmp_path, bundles, maker) as daemon, daemon.control() as control:
        text = control.metrics()
    found = parsed(text)
    assert len(text.encode()) <= TEXT_LIMIT_BYTES
    missing = set(family_names()) - set(found)
    assert value(found, LEFT_OUT) == len(missing) > 0
    assert missing <= {f"fenced_{name}_seconds" for name in ("latency", "queue", "run", "publish")}
    assert len(found["fenced_published"].samples) == len(models)


def test_a_text_that_would_not_fit_into_a_packet_loses_whole_families_and_says_how_many() -> None:
    def family(name: str, samples: int) -> Family[None]:
        return Family(name, Kind.GAUGE, "Text.", ("n",), lambda _: [({"n": str(one)}, 1) for one in range(samples)])

    families = [family("first", 3), family("long", 200), family("last", 3)]
    text = render(families, None, limit_bytes=600, left_out="left_out")
    assert len(text.encode()) <= 600
    assert set(parsed(text)) == {"first", "last", "left_out"}
    assert value(parsed(text), "left_out") == 1


def test_labels_are_escaped() -> None:
    strange = 'a "quoted" \\ name\nof two lines'
    family: Family[None] = Family("one", Kind.GAUGE, "Text.", ("n",), lambda _: [({"n": strange}, 1)])
    text = render([family], None, limit_bytes=999, left_out="left_out")
    assert parsed(text)["one"].samples[0].labels == {"n": strange}


def test_every_exported_name_is_documented_and_no_other() -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    documented = re.findall(r"^\| `(fenced_\w+)`", page, re.MULTILINE)
    assert sorted(documented) == sorted([*family_names(), *EXPORTER_FAMILIES])


def test_every_metric_of_the_dashboard_exists_and_is_used_by_its_kind() -> None:
    dashboard = json.loads((REPOSITORY / "grafana" / "fenced.json").read_text())
    kinds = {family.name: family.kind for family in FAMILIES}
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    names = {name for text in expressions for name in re.findall(r"fenced_\w+", text)}
    assert len(names) > 25
    for name in names:
        base = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
        known = kinds.get(base, Kind.COUNTER if name == "fenced_exporter_failures_total" else Kind.GAUGE)
        assert base in (*family_names(), *EXPORTER_FAMILIES), name
        assert (known is Kind.COUNTER) == name.endswith("_total"), name
        assert (known is Kind.HISTOGRAM) == name.endswith(("_bucket", "_count", "_sum")), name
        assert (known is Kind.INFO) == name.endswith("_info"), name


def test_an_observer_may_look_and_not_command(tmp_path: Path, maker: BundleMaker) -> None:
    more = f"[control]\nuids = [4000000]\n[observe]\nuids = [{os.geteuid()}]\n"
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=more) as daemon,
        daemon.control() as control,
    ):
        assert control.metrics().endswith("# EOF\n")
        for act in (control.drain, control.rollback, control.reset_state, lambda: control.set_aux("gain", 1, b"1234")):
            with pytest.raises(Refused) as refused:
                act()
            assert refused.value.code is RefusalCode.NOT_PERMITTED
        assert control.status()["state"] == "serving"
