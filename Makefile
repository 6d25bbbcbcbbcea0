# Two commands for a newcomer: `make demo` and `make test`. Each makes .venv if it is missing and installs
# the pinned packages; nothing is assumed but Python >= 3.11 and make.
#
#   .venv/          the lab domain: compiler, signer, tests (editable install)
#   .venv/vehicle/  the vehicle domain: the `fenced` wheel and its four dependencies, nothing else

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VEHICLE := $(VENV)/vehicle
VEHICLE_SOURCES := $(wildcard abi/*.py abi/*.capnp hal/*.py signing/*.py client/*.py daemon/*.py)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
PACKAGES := abi hal signing client daemon lab

.PHONY: demo test check lint coverage mutate bench soak fuzz lock clean vehicle image arm64 ray

demo: $(VEHICLE)/stamp
	$(BIN)/fenced-lab demo

test: $(VEHICLE)/stamp
	$(BIN)/python -m pytest $(ARGS)

check: lint coverage mutate

lint: $(VENV)/stamp
	$(BIN)/ruff check $(PACKAGES) tests examples
	$(BIN)/ruff format --check $(PACKAGES) tests examples
	$(BIN)/mypy -p abi -p hal -p signing -p client -p daemon -p lab
	MYPYPATH=examples/lane $(BIN)/mypy examples/lane/*.py
	MYPYPATH=examples/driving $(BIN)/mypy examples/driving/*.py
	$(BIN)/lint-imports

# The safety core is held to every branch.
CORE := abi/*,signing/*,hal/admit*,hal/elf.py,hal/spans.py
coverage: $(VENV)/stamp
	$(BIN)/coverage run --branch --source=abi,signing,hal -m pytest -q -p no:cacheprovider tests/abi tests/signing tests/hal
	$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered --include='$(CORE)'

# Mutants of the safety core that the tests must kill; the floor is in tests/mutation.py.
mutate: $(VENV)/stamp
	$(BIN)/python -m tests.mutation

bench: $(VEHICLE)/stamp
	$(BIN)/fenced-lab bench $(ARGS)

# Four cameras at 20 Hz: does the daemon stay as it was? Minutes by ARGS="--minutes 10".
soak: $(VEHICLE)/stamp
	$(BIN)/python -m lab.bench.soak $(ARGS)

# Any bytes at any point of a session; seconds for each target by ARGS="--seconds 60".
fuzz: $(VENV)/stamp
	$(BIN)/python -m tests.fuzz $(ARGS)

vehicle: $(VEHICLE)/stamp

# The unsigned tree for /opt/fenced; another architecture by ARGS="--arch aarch64". Signing, .deb: docs/operations.md.
image: $(VENV)/stamp
	rm -rf build/image/tree
	$(BIN)/fenced-lab image build build/image/tree $(ARGS)

# The lane bundle and the image for aarch64, run in an emulated Debian: as root, with Debian's debootstrap and
# qemu-user-static. The first time some minutes, then one. What it printed: docs/hardware.md.
arm64: $(VEHICLE)/stamp
	$(BIN)/python -m lab.image.arm64 $(ARGS)

$(VENV)/stamp: lab/requirements.txt lab/pyproject.toml pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r lab/requirements.txt
	$(PIP) install --no-deps --no-build-isolation -e . -e lab
	touch $@

$(VEHICLE)/packages: requirements.txt $(VENV)/stamp
	$(PYTHON) -m venv $(VEHICLE)
	$(VEHICLE)/bin/python -m pip --disable-pip-version-check -q install --require-hashes -r requirements.txt
	touch $@

$(VEHICLE)/stamp: $(VEHICLE)/packages $(VEHICLE_SOURCES)
	rm -rf build/lib build/bdist.* build/wheel
	$(PIP) wheel --no-deps --no-build-isolation -w build/wheel .
	$(VEHICLE)/bin/python -m pip --disable-pip-version-check -q install --no-deps --force-reinstall build/wheel/fenced-*.whl
	touch $@

# Ray, for `fenced-lab replay --ray` and its tests: 80 MB that nothing else needs.
ray: $(VENV)/stamp
	$(PIP) install --require-hashes -r lab/requirements-ray.txt

# New pins, with hashes, from the ranges in the two pyproject files. Needs `pip install uv` once.
LOCK := uv pip compile --universal --generate-hashes --python-version 3.11 --no-header --quiet
lock:
	$(LOCK) pyproject.toml -o requirements.txt
	$(LOCK) lab/pyproject.toml --extra dev --extra bench --no-emit-package fenced -o lab/requirements.txt
	echo 'ray>=2.40' | $(LOCK) - -c lab/requirements.txt -o lab/requirements-ray.txt

clean:
	rm -rf $(VENV) build dist out *.egg-info lab/*.egg-info .mypy_cache .ruff_cache .pytest_cache mutants
