"""The daemon as a guarded, sealed process on OpenCL: the driver's library before the seal, nothing after it."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from abi.graph import Graph
from client.errors import Refused
from lab.compile import opencl as compiler
from signing.statement import Target
from tests.daemon.test_process import Process
from tests.simulators import BundleSimulator
from tests.support import opencl, vehicle
from tests.support.bundles import PIXELS, BundleMaker, TinyModel
from tests.support.daemons import config_text, picture, run_one

OLD, NEW = TinyModel("add", number=3), TinyModel("add", version="2.0.0", release=2, number=9)
GROUP = 64
SOURCE = """__kernel void add(__global float* o, __global const uchar* a, const int n) {
  int i = get_global_id(0); o[i] = a[i] + n; }"""


def for_opencl(graph: Graph) -> Graph:
    """A graph of the `add` kernel as it is for OpenCL."""
    size = len(code(graph))
    launch = replace(graph.launches[0], global_size=(PIXELS // GROUP, 1, 1), local_size=(GROUP, 1, 1))
    program = replace(graph.programs[0], symbol=compiler.symbol(0), code_bytes=size)
    buffers = tuple(replace(one, align_bytes=opencl.ALIGN_BYTES) for one in graph.buffers)
    return replace(graph, driver="opencl", buffers=buffers, programs=(program,), launches=(launch,))


def code(graph: Graph) -> bytes:
    launch = graph.launches[0]
    sizes = tuple(one.size_bytes for one in launch.arguments)
    uses = compiler.OpenClLaunch((PIXELS // GROUP, 1, 1), (GROUP, 1, 1), sizes, launch.values)
    return compiler.build([compiler.OpenClKernel(SOURCE, "add", (uses,))])


def write(maker: BundleMaker, model: TinyModel, device_id: str) -> Path:
    def edit(simulator: BundleSimulator) -> None:
        simulator.blobs["code"] = code(model.graph())
        target = Target("opencl", os.uname().machine, (), 1024 * 1024, device_id)
        simulator.statement = replace(simulator.statement, target=target)

    return maker.write(model, edit=edit, edit_graph=for_opencl)


class OpenClProcess(Process):
    """A daemon with the accelerator extra (tinygrad) in its environment."""

    def __init__(self, site: Path, folder: Path, bundles: list[Path], maker: BundleMaker) -> None:
        super().__init__(site, folder, bundles, maker)
        self.config_path.write_text(config_text(folder, bundles, maker, '[device]\ndriver = "opencl"\n'))
        self.extra = folder / "extra"
        self.extra.mkdir()
        (self.extra / "tinygrad").symlink_to(Path(sysconfig.get_paths()["purelib"]) / "tinygrad")
        self.binaries = folder / "binaries"
        self.binaries.mkdir(mode=0o700)

    def begin(self) -> None:
        path = f"{self._site}:{self.extra}"
        self.start(PYTHONPATH=path, POCL_CACHE_DIR=str(self.binaries))


@pytest.fixture
def process(vehicle_site: Path, tmp_path: Path, maker: BundleMaker) -> Iterator[OpenClProcess]:
    opencl.require_device()
    device_id = compiler.local_device().identity
    daemon = OpenClProcess(vehicle_site, tmp_path, [write(maker, OLD, device_id)], maker)
    yield daemon
    if daemon.child is not None and daemon.child.poll() is None:
        daemon.child.kill()
    if daemon.child is not None:
        daemon.child.communicate()


def test_a_sealed_daemon_serves_and_switches_models_on_opencl(process: OpenClProcess, maker: BundleMaker) -> None:
    new = write(maker, NEW, compiler.local_device().identity)
    foreign = write(maker, replace(NEW, version="3.0.0"), "another device; 1.0")
    process.begin()
    with process.camera() as camera, process.consumer() as consumer, process.control() as control:
        for sequence in range(5):
            delivery = run_one(camera, consumer, sequence, picture(sequence))
            assert np.array_equal(delivery.outputs["values"], OLD.values(picture(sequence)))
        with pytest.raises(Refused, match="device id"):
            control.activate(foreign)
        control.activate(new)
        outputs = run_one(camera, consumer, 5, picture(5)).outputs
        assert np.array_equal(outputs["values"], NEW.values(picture(5)))
        status = control.status()
    assert status["guard"]["sealed"] is True
    assert set(status["guard"]["refused"].values()) == {0}
    assert process.stop() == 0
    assert list(process.binaries.iterdir()) == []


# a library of the system's that any machine has, in the place of a driver's
WINDOW = """
import json, os, shutil, sys
from daemon import guard
import ctypes
mapped = [line.split()[-1] for line in open("/proc/self/maps")]
libc = next(path for path in mapped if os.path.basename(path).startswith("libc.so"))
shutil.copy(libc, sys.argv[1])
guard.install()
seen = []
def attempt(name):
    try:
        ctypes.CDLL(name)
        seen.append("mapped")
    except guard.ForbiddenAct as error:
        seen.append(error.act.value)
attempt(libc)
with guard.opening("c"):
    for name in (libc, sys.argv[1] + "/" + os.path.basename(libc), os.path.basename(libc), "/absent/libc.so.6"):
        attempt(name)
with guard.opening("OpenCL"):
    attempt(libc)
attempt(libc)
guard.seal(readable=(), writable=())
with guard.opening("c"):
    attempt(libc)
print(json.dumps(seen))
"""


def test_the_guard_lets_in_one_system_library_and_only_while_a_device_is_opened(
    vehicle_site: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)  # a library of the right name where others could have put it
    done = subprocess.run(
        vehicle.command("-c", WINDOW, str(tmp_path)),
        env=vehicle.environment(vehicle_site),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    no = "native-code"
    assert json.loads(done.stdout) == [no, "mapped", no, no, no, no, no, no]
