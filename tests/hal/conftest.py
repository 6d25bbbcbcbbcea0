"""Fixtures of the HAL's tests: this machine's OpenCL device, or a reason to skip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hal.accelerator import DeviceOptions, Module
from hal.opencl import OpenClAccelerator
from hal.opencl_device import Sharing
from tests.support import opencl


@pytest.fixture(scope="module")
def cl_module() -> Module:
    opencl.require_device()
    return opencl.module()


@pytest.fixture
def cl(cl_module: Module) -> Iterator[OpenClAccelerator]:
    opened = OpenClAccelerator(DeviceOptions())
    yield opened
    opened.close()


@pytest.fixture(params=Sharing)
def cl_shared(cl_module: Module, request: pytest.FixtureRequest) -> Iterator[OpenClAccelerator]:
    opened = OpenClAccelerator(DeviceOptions(), request.param)
    yield opened
    opened.close()
