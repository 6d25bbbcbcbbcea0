"""The wall inside the process: each forbidden act is tried inside a real, sealed daemon-like process."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support import vehicle

_PRELUDE = """
import sys
from daemon import guard
guard.install()
import json, os, socket, ctypes, pickle, hashlib, fcntl, mmap, types, importlib, importlib.machinery
import numpy, capnp
from daemon import audit
"""

_SEALED = (
    _PRELUDE
    + """
folder = sys.argv[1]
os.chdir(folder)
log = audit.AuditLog(folder + "/audit.jsonl")
guard.on_violation(lambda act, detail: log.append("guard.refused", {"act": act.value, "detail": detail}))
network = socket.socket(fileno=int(sys.argv[2]))
code_before_seal = compile("1+1", "<text>", "eval")
guard.seal(readable=("/etc/hostname",), writable=(folder,))

def attempt():
    ACT

try:
    attempt()
except guard.ForbiddenAct as error:
    print(json.dumps({"act": error.act.value, "counts": guard.counts()}))
else:
    print(json.dumps(guard.counts()))
"""
)

_LYING = "{'startswith': lambda *_: True, '__eq__': lambda *_: True, '__hash__': str.__hash__}"
FORBIDDEN = {
    "a new module": ("import sqlite3", "import"),
    "a new module by importlib": ("importlib.import_module('wave')", "import"),
    "a new built-in module by its loader": (
        "importlib.machinery.BuiltinImporter.load_module('xxsubtype')",
        "import",
    ),
    "a frozen module by its loader": ("importlib.machinery.FrozenImporter.load_module('__hello__')", "import"),
    "a file outside": ("open('/etc/passwd')", "open"),
    "a file outside by os.open": ("os.open('/etc/passwd', os.O_RDONLY)", "open"),
    "a write to a readable file": ("open('/etc/hostname', 'a')", "open"),
    "a way out by dots": ("open(folder + '/../../etc/passwd')", "open"),
    "a write to what the kernel says": ("open('/proc/self/fdinfo/0', 'r+b')", "open"),
    "a way out of what the kernel says": ("open('/proc/self/fdinfo/../environ', 'rb')", "open"),
    "a path that lies about itself": (f"open(type('S', (str,), {_LYING})('/etc/passwd'))", "open"),
    "bytes of a path that lie": (
        "os.open(type('B', (bytes,), {'decode': lambda *_: folder})(b'/etc/passwd'), os.O_RDONLY)",
        "open",
    ),
    "a file's times": ("os.utime('/etc/hostname')", "open"),
    "a pipe outside": ("os.mkfifo('/tmp/fenced-guard-pipe')", "open"),
    "a file made without opening it": ("os.mknod('/tmp/fenced-guard-file')", "open"),
    "another root": ("os.chroot('/')", "open"),
    "a working folder by descriptor": ("os.fchdir(0)", "open"),
    "a listing": ("os.listdir('/')", "open"),
    "a removal": ("os.remove('/etc/hostname')", "open"),
    "a rename out of the folder": ("os.rename(folder + '/audit.jsonl', '/tmp/audit.jsonl')", "open"),
    "another working folder": ("os.chdir('/')", "open"),
    "subprocess": ("__import__('subprocess').run(['true'])", "process"),
    "os.system": ("os.system('true')", "process"),
    "os.execv": ("os.execv('/bin/true', ['true'])", "process"),
    "os.posix_spawn": ("os.posix_spawn('/bin/true', ['true'], {})", "process"),
    "os.fork": ("os.fork()", "process"),
    "fork_exec without an audit event": ("__import__('_posixsubprocess').fork_exec()", "process"),
    "a connection": ("network.connect(('127.0.0.1', 9))", "network"),
    "a connection of a socket that lies about itself": (
        "type('S', (socket.socket,), {'family': 1})(fileno=os.dup(network.fileno())).connect(('127.0.0.1', 9))",
        "network",
    ),
    "an internet socket": ("socket.socket(socket.AF_INET, socket.SOCK_STREAM)", "network"),
    "a name look-up": ("socket.getaddrinfo(b'localhost', 80)", "network"),
    "a pickle with a class": ("pickle.loads(b'cposix\\nsystem\\n(S\"true\"\\ntR.')", "unpickle"),
    "compile": ("compile('1', '<text>', 'eval')", "compile"),
    "eval of a text": ("eval('1+1')", "compile"),
    "exec of code": ("exec(code_before_seal)", "compile"),
    "a function from code": ("types.FunctionType(code_before_seal, {})", "compile"),
    "unmarshalled code": ("__import__('marshal').loads(b'N')", "compile"),
    "dlopen of a library": ("ctypes.CDLL('libc.so.6')", "native-code"),
    "dlopen of the process": ("ctypes.CDLL(None)", "native-code"),
    "a symbol of the process": ("ctypes.pythonapi.system", "native-code"),
    "memory mapped as code": ("mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)", "native-code"),
    "a memory file mapped as code": (
        "mmap.mmap(os.memfd_create('code'), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)",
        "native-code",
    ),
    "a trace function": ("sys.settrace(lambda *_: None)", "hook"),
    "a profile function": ("sys.setprofile(lambda *_: None)", "hook"),
}


def run(site: Path, script: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        vehicle.command("-c", script, *arguments),
        env=vehicle.environment(site),
        capture_output=True,
        text=True,
        check=False,
        pass_fds=pass_fds,
        timeout=60,
    )


def run_sealed(site: Path, folder: Path, statement: str) -> subprocess.CompletedProcess[str]:
    """Runs `statement` in a sealed process that may write `folder` and holds an inherited internet socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as inherited:
        descriptor = inherited.fileno()
        return run(site, _SEALED.replace("ACT", statement), str(folder), str(descriptor), pass_fds=(descriptor,))


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_act_is_refused_counted_and_audited(vehicle_site: Path, tmp_path: Path, name: str) -> None:
    statement, act = FORBIDDEN[name]
    done = run_sealed(vehicle_site, tmp_path, statement)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["act"] == act
    assert report["counts"][act] == 1
    entry = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert entry["event"] == "guard.refused"
    assert entry["act"] == act


ALLOWED = {
    "a readable file": "open('/etc/hostname').read()",
    "a file in the folder": "open(folder + '/new', 'w').close(); os.rename(folder + '/new', folder + '/newer')",
    "a plain name in an open folder": "os.open('x', os.O_CREAT | os.O_WRONLY, dir_fd=os.open(folder, os.O_RDONLY))",
    "an AF_UNIX socket": "[end.send(b'x') for end in [socket.socketpair()][0]]",
    "a loaded module": "import json",
    "its own memory, read-only": (
        "fd = os.memfd_create('ring'); os.close(os.open(f'/proc/self/fd/{fd}', os.O_RDONLY))"
    ),
    "what the kernel says of a descriptor": "open('/proc/self/fdinfo/0', 'rb').read()",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_serving_daemon_does_is_allowed(vehicle_site: Path, tmp_path: Path, name: str) -> None:
    done = run_sealed(vehicle_site, tmp_path, ALLOWED[name])
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout).values()) == {0}


def test_another_audit_hook_is_not_added_after_the_seal(vehicle_site: Path, tmp_path: Path) -> None:
    statement = "sys.addaudithook(lambda *event: print('seen', event)); open(folder + '/x', 'w')"
    done = run_sealed(vehicle_site, tmp_path, statement)
    assert "seen" not in done.stdout  # CPython swallows the refusal, but the hook is not there
    assert json.loads(done.stdout)["hook"] == 1


_CODE = (
    _PRELUDE
    + """
guard.seal(readable=(), writable=())
code = b"not an ELF file"
fd = os.memfd_create("code", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.write(fd, code)
if "unsealed" not in sys.argv:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
digest = hashlib.sha256(b"another blob" if "other" in sys.argv else code).hexdigest()
try:
    if "outside" in sys.argv:
        ctypes.CDLL(f"/proc/self/fd/{fd}")
    with guard.loading(digest):
        ctypes.CDLL(f"/proc/self/fd/{fd}")
except guard.ForbiddenAct as error:
    print("forbidden", error.detail)
except OSError as error:
    print("linker", error)
"""
)


def test_sealed_verified_code_reaches_the_dynamic_linker(vehicle_site: Path) -> None:
    assert run(vehicle_site, _CODE).stdout.startswith("linker")


@pytest.mark.parametrize(
    ("case", "complaint"),
    [("unsealed", "not sealed"), ("other", "not that of the verified code"), ("outside", "outside the loading")],
)
def test_other_code_does_not_reach_the_dynamic_linker(vehicle_site: Path, case: str, complaint: str) -> None:
    done = run(vehicle_site, _CODE, case)
    assert done.stdout.startswith("forbidden"), done.stderr
    assert complaint in done.stdout


BEFORE_THE_SEAL = {
    "import onnx": "import",
    "import tinygrad.nn.torch": "import",
    "importlib.import_module('lab.compile')": "import",
    "os.system('true')": "process",
    "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)": "network",
    "pickle.loads(b'cposix\\nsystem\\n(S\"true\"\\ntR.')": "unpickle",
}


@pytest.mark.parametrize("statement", BEFORE_THE_SEAL)
def test_some_acts_are_forbidden_before_the_seal_too(vehicle_site: Path, statement: str) -> None:
    script = f"{_PRELUDE}\ntry:\n    {statement}\nexcept guard.ForbiddenAct as error:\n    print(error.act.value)"
    assert run(vehicle_site, script).stdout.strip() == BEFORE_THE_SEAL[statement]


def test_a_failing_report_still_forbids(vehicle_site: Path) -> None:
    script = f"{_PRELUDE}\nguard.on_violation(lambda act, detail: 1 / 0)\nos.system('echo happened')"
    done = run(vehicle_site, script)
    assert "ForbiddenAct" in done.stderr
    assert "happened" not in done.stdout


def test_a_package_of_the_lab_on_the_path_makes_the_process_dirty(vehicle_site: Path, tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    script = f"import sys\nsys.path.append({str(tmp_path)!r})\nfrom daemon import guard\nguard.assert_clean()"
    done = run(vehicle_site, script)
    assert "DirtyProcess: importable: lab" in done.stderr


def test_a_loaded_package_of_the_lab_makes_the_process_dirty(vehicle_site: Path) -> None:
    script = "import sys, types\nsys.modules['torch'] = types\nfrom daemon import guard\nguard.assert_clean()"
    assert "DirtyProcess: already loaded: torch" in run(vehicle_site, script).stderr


def test_a_vehicle_environment_is_clean_and_as_installed(vehicle_site: Path) -> None:
    script = (
        "from daemon import guard, record\nguard.install()\nguard.assert_clean()\nprint(record.assert_as_installed())"
    )
    done = run(vehicle_site, script)
    assert int(done.stdout) > 10, done.stderr
