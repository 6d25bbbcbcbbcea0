"""The bundles of a scenario: the model's releases, signed by the bench's own lab, or a bundle that somebody signed.

All releases of a model hold the same parts; each says its own number and version, so that a switch between them shows
in receipts and audit log and in nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.hil.bench import PROBES
from lab.hil.probe_lab import ProbeLab
from lab.hil.scenario import DaemonPlan, ScenarioRefusal, ScenarioRefused
from lab.sign.pack import open_checked, write_bundle
from signing.statement import Model

__all__ = ["prepare", "tampered"]


def prepare(plan: DaemonPlan, folder: Path) -> tuple[tuple[Path, ...], Path]:
    """The bundles by release (the first is release 1), and the root that vouches for them; all below `folder`.

    Raises ScenarioRefused, CompileRefused, and signing's Refused.
    """
    if plan.bundle is not None and plan.root is not None:
        return (plan.bundle,), plan.root
    lab = ProbeLab(folder / "lab")
    if plan.probe is not None:
        model = PROBES[plan.probe]
        numbers = range(1, plan.releases + 1)
        bundles = [lab.write(replace(model, version=f"{number}.0.0", release=number)) for number in numbers]
        return tuple(bundles), lab.root_path
    if plan.spec is None:
        raise ScenarioRefused(
            ScenarioRefusal.NEEDS_OWN_DAEMON, "daemon", expected="a spec, a bundle with its root, or a probe",
            found="none", todo="name one, or play the scenario against a daemon that serves (--sockets)",
        )  # fmt: skip
    from lab.compile.compiler import compile_spec  # noqa: PLC0415 (brings tinygrad in, which no other scenario needs)

    unsigned = folder / "unsigned.fenced"
    compile_spec(plan.spec, unsigned)
    return tuple(_release(unsigned, lab, number) for number in range(1, plan.releases + 1)), lab.root_path


def _release(unsigned: Path, lab: ProbeLab, number: int) -> Path:
    with open_checked(unsigned) as (sealed, _, stated):
        path = lab.folder / f"{stated.model.name}-{number}.fenced"
        model = Model(stated.model.name, f"{number}.0.0", number)
        blobs = {
            blob.name: bytes(sealed.view(span)) for blob, span in zip(stated.blobs, sealed.layout.blobs, strict=True)
        }
        write_bundle(path, replace(stated, model=model), blobs)
    lab.sign(path)
    return path


def tampered(bundle: Path) -> Path:
    """A copy beside `bundle` with one bit of its code turned."""
    content = bytearray(bundle.read_bytes())
    with open_checked(bundle) as (sealed, _, stated):
        spans = dict(zip((blob.name for blob in stated.blobs), sealed.layout.blobs, strict=True))
    content[spans["code"].offset_bytes] ^= 1
    path = bundle.with_name(f"tampered-{bundle.name}")
    path.write_bytes(content)
    path.chmod(0o644)
    return path
