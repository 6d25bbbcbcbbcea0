"""The CUDA driver under the guard: its library is mapped before the seal, and nothing more is needed after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import cuda

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import json, time
from daemon import guard
from hal.accelerator import LIBRARIES
from hal.conformance_rig import Rig
from hal.error import HalError
from tests.conformance import subject
from tests.support import cuda
module, LIMIT_NS = cuda.module(), cuda.LIMIT_NS
cuda.library = lambda: PATH
guard.install()
acts = []
guard.on_violation(lambda act, detail: acts.append([act.value, detail]))
with guard.opening(LIBRARIES["cuda"]):
    gpu = cuda.open_fake()
guard.seal(readable=(), writable=())
statuses = []
for _ in range(2):
    with Rig(gpu, module, subject.STATEFUL) as rig:
        fence = rig.submit()
        statuses.append(fence.wait(time.monotonic_ns() + LIMIT_NS).name)
        statuses.append(len(rig.executable.state("sum")))
try:
    cuda.open_fake()
except Exception as error:
    statuses.append(type(error).__name__)
gpu.close()
print(json.dumps([statuses, acts]))
"""


@pytest.mark.skipif(
    os.geteuid() != 0, reason="the guard takes only libraries that root owns: the fake is the test's own"
)
def test_a_sealed_process_loads_and_runs_modules_and_opens_no_second_library() -> None:
    code = f"PATH = {cuda.library()!r}\n{CODE}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    statuses, acts = json.loads(done.stdout.splitlines()[-1])
    assert statuses == ["SIGNALED", 4096, "SIGNALED", 4096, "ForbiddenAct"]
    assert [act for act, _ in acts] == ["native-code"]
