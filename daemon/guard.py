"""The wall inside the process: a PEP 578 audit hook and an import guard, installed before anything else is imported.

From `install()` on, no process is started, no socket but AF_UNIX is used, nothing is unpickled into a class, and
the lab's packages cannot be imported. From `seal()` on (the models are active by then) no new module, no source or
byte code, no file outside the allowed set, and no shared object but a sealed memfd whose bytes are verified code.
A forbidden act raises, is counted, and is reported to the audit log. An audit hook cannot be removed again.

It guards against Python that does what it should not; native code that is hostile already is the sandbox's matter.
Not looked at: what `site` ran before us (`.pth` files), beyond the modules it left; the interpreter's own files;
byte code that stands in a writable `__pycache__` (the image is read-only).
"""

import _socket
import os
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from fcntl import fcntl
from functools import partial
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any, NoReturn

from daemon import eventless

LAB_PACKAGES = ("lab", "onnx", "onnxruntime", "torch", "ziglang")
# Must not even be importable where the daemon runs.
BLOCKED_MODULES = (
    *LAB_PACKAGES, "tinygrad.nn.datasets", "tinygrad.nn.torch", "tinygrad.nn.onnx",
    "multiprocessing", "tarfile", "zipfile", "importlib.metadata", "pkg_resources", "urllib.request", "http.server",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_AF_UNIX, _AF_UNSET = 1, -1
_FAMILY: Any = vars(_socket.socket)["family"]
_F_GET_SEALS, _ALL_CONTENT_SEALS = 1034, 0x2 | 0x4 | 0x8  # linux/fcntl.h: F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE
_CODE_LIMIT_BYTES = 256 << 20


class Act(Enum):
    """Kinds of forbidden acts, as counted and as named in the audit log."""

    IMPORT = "import"
    OPEN = "open"
    PROCESS = "process"
    NETWORK = "network"
    UNPICKLE = "unpickle"
    COMPILE = "compile"
    NATIVE_CODE = "native-code"
    HOOK = "hook"


class ForbiddenAct(RuntimeError):
    """The process tried something a vehicle process must never do. Nothing of it has happened."""

    def __init__(self, act: Act, detail: str) -> None:
        super().__init__(
            f"forbidden act ({act.value}): {detail}; the vehicle daemon never does this, look at its audit log"
        )
        self.act = act
        self.detail = detail


class ForbiddenImport(ForbiddenAct, ImportError):
    """A forbidden import; also an ImportError, so that optional imports fall back."""


class DirtyProcess(RuntimeError):
    """The process holds, or could import, what belongs to the lab."""


class _State:
    """What the hook knows. One a process, as the hook itself is."""

    def __init__(self) -> None:
        self.installed = False
        self.sealed = False
        self.counts: dict[Act, int] = dict.fromkeys(Act, 0)
        self.reporter: Callable[[Act, str], None] | None = None
        self.code_windows: dict[int, str] = {}  # thread id -> SHA-256 (hex) of the code blob it may map
        self.library_windows: dict[int, str] = {}  # thread id -> the system library it may map before the seal
        self.readable: tuple[str, ...] = ()
        self.writable: tuple[str, ...] = ()
        self.plain_names = False  # the working folder is writable, so that a name without a folder is too


_Rule = Callable[[tuple[Any, ...]], "tuple[Act, str] | None"]
_state = _State()


def counts() -> dict[str, int]:
    """How often each forbidden act was tried, by `Act` value."""
    return {act.value: number for act, number in _state.counts.items()}


def is_sealed() -> bool:
    """Whether `seal()` was called."""
    return _state.sealed


def on_violation(reporter: Callable[[Act, str], None]) -> None:
    """Calls `reporter(act, detail)` for each forbidden act, on the thread that tried it, before it raises."""
    _state.reporter = reporter


def _forbid(act: Act, detail: str) -> NoReturn:
    _state.counts[act] += 1
    error = ForbiddenImport if act is Act.IMPORT else ForbiddenAct
    try:
        if _state.reporter is not None:
            _state.reporter(act, detail)
    finally:
        raise error(act, detail)  # whatever became of the report, the act does not happen


def _is_blocked(name: str) -> bool:
    return any(name == blocked or name.startswith(blocked + ".") for blocked in BLOCKED_MODULES)


def _import_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    name = arguments[0]
    name = str.__str__(name) if isinstance(name, str) else str(name)  # what it is, not what a subclass says that it is
    if _state.sealed or _is_blocked(name):
        return Act.IMPORT, f"module {name!r}"
    return None


def _process_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    return Act.PROCESS, f"start of a process: {str(arguments[:1])[:120]}"


def _unpickle_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    return Act.UNPICKLE, f"pickle asks for {str(arguments)[:120]}"


def _new_socket_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    family = int(arguments[1])
    return None if family in (_AF_UNIX, _AF_UNSET) else (Act.NETWORK, f"a socket of address family {family}")


def _address_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    family = int(_FAMILY.__get__(arguments[0]))  # the kernel's answer, not that of a subclass
    return None if family == _AF_UNIX else (Act.NETWORK, f"address {str(arguments[1])[:80]} in family {family}")


def _resolver_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    return Act.NETWORK, f"name resolution of {str(arguments[:1])[:80]}"


def _compile_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    first = arguments[0] if arguments else None
    name = first.co_name if isinstance(first, CodeType) else str(arguments[1:2])[:80]
    return Act.COMPILE, f"code is made or run at run time: {name}"


def _hook_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    return Act.HOOK, "another audit hook after the seal"


def _watch_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    return Act.HOOK, "a trace function, or a debugger's script, after the seal"


def _dlopen_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    name = arguments[0]
    if name is None and not _state.sealed:
        return None  # `import ctypes` opens the process itself
    path = os.fsdecode(name) if _is_plain(name) else ""
    library = _state.library_windows.get(get_ident())
    if library is not None and not _state.sealed:
        return None if _is_system_library(path, library) else (Act.NATIVE_CODE, f"dlopen of {name!r}: not lib{library}")
    expected = _state.code_windows.get(get_ident())
    prefix = "/proc/self/fd/"
    if expected is None or not path.startswith(prefix) or not path[len(prefix) :].isdigit():
        return Act.NATIVE_CODE, f"dlopen of {name!r} outside the loading of a verified bundle"
    complaint = _unverified(int(path[len(prefix) :]), expected)
    return None if complaint is None else (Act.NATIVE_CODE, f"dlopen of {name!r}: {complaint}")


def _is_system_library(path: str, library: str) -> bool:
    """Whether `path` is the system's lib<library>.so: root's, as is its folder, and not for others to write."""
    stem, _, version = os.path.basename(path).partition(".so")
    if not path.startswith("/") or stem != f"lib{library}" or version.strip(".0123456789"):
        return False
    try:
        held = [os.stat(path), os.stat(os.path.dirname(path))]
    except OSError:
        return False
    return all(one.st_uid == 0 and not one.st_mode & 0o022 for one in held)


def _unverified(descriptor: int, expected_sha256: str) -> str | None:
    """Why the descriptor is not the verified code: None, or a complaint."""
    try:
        if fcntl(descriptor, _F_GET_SEALS) & _ALL_CONTENT_SEALS != _ALL_CONTENT_SEALS:
            return "the memory is not sealed against writing"
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > _CODE_LIMIT_BYTES:
            return f"{size_bytes} bytes are more than code may have"
        digest = sha256(os.pread(descriptor, size_bytes, 0)).hexdigest()
    except OSError as error:
        return f"not a sealed memory file ({error.strerror})"
    return None if digest == expected_sha256 else f"its SHA-256 {digest} is not that of the verified code"


def _dlsym_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    if get_ident() in _state.code_windows:
        return None
    return Act.NATIVE_CODE, f"look-up of the native symbol {str(arguments[1:2])[:80]}"


def _open_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    path, flags = arguments[0], int(arguments[2] or 0)
    if isinstance(path, int):
        return None  # wraps a descriptor the process holds already
    return _path_complaint(path, writing=bool(flags & _WRITING))


def _is_plain(path: Any) -> bool:
    """Whether no subclass answers for the path: the kernel reads its characters, whatever its methods say."""
    return type(path) in (str, bytes)


def _path_complaint(path: Any, *, writing: bool) -> tuple[Act, str] | None:
    if not _is_plain(path):
        return Act.OPEN, f"a path of type {type(path).__name__}"
    name = os.fsdecode(path)
    for allowed in _state.writable if writing else (*_state.readable, *_state.writable):
        if name == allowed or (name.startswith(allowed + "/") and ".." not in name.split("/")):
            return None
    if _state.plain_names and "/" not in name and name not in ("", ".", ".."):
        return None  # in the working folder, or in a folder that was opened under these same rules
    if not writing and (_is_own_memory(name) or _is_descriptor_info(name)):
        return None
    return Act.OPEN, f"{'write to' if writing else 'read of'} {name[:200]!r}"


def _is_own_memory(name: str) -> bool:
    """A memfd of this process, opened again read-only (how a result ring is handed out)."""
    prefix = "/proc/self/fd/"
    if not (name.startswith(prefix) and name[len(prefix) :].isdigit()):
        return False
    try:
        return os.readlink(name).startswith("/memfd:")
    except OSError:
        return False


def _is_descriptor_info(name: str) -> bool:
    """What the kernel says of a descriptor that this process holds (how a dma-buf is told from other files)."""
    prefix = "/proc/self/fdinfo/"
    return name.startswith(prefix) and name[len(prefix) :].isdigit()


def _change_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    return _path_complaint(arguments[0], writing=True) if not isinstance(arguments[0], int) else None


def _list_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    return _path_complaint(arguments[0] or ".", writing=False) if not isinstance(arguments[0], int) else None


def _chdir_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    return Act.OPEN, f"change of the working folder to {str(arguments[0])[:200]!r}"


def _two_path_rule(arguments: tuple[Any, ...]) -> tuple[Act, str] | None:
    return _path_complaint(arguments[0], writing=True) or _path_complaint(arguments[1], writing=True)


_RULES: dict[str, _Rule] = {
    "import": _import_rule,
    "pickle.find_class": _unpickle_rule,
    "socket.__new__": _new_socket_rule,
    "ctypes.dlopen": _dlopen_rule,
    **dict.fromkeys(("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"), _address_rule),
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo",
                     "socket.getservbyname", "socket.getservbyport"), _resolver_rule),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
                     "os.forkpty", "pty.spawn"), _process_rule),
}  # fmt: skip
_SEALED_RULES: dict[str, _Rule] = {
    "open": _open_rule,
    "sys.addaudithook": _hook_rule,
    **dict.fromkeys(("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback",
                     "cpython.remote_debugger_script"), _watch_rule),
    **dict.fromkeys(("compile", "exec", "code.__new__", "function.__new__", "marshal.loads", "marshal.load"),
                    _compile_rule),
    **dict.fromkeys(("ctypes.dlsym", "ctypes.dlsym/handle"), _dlsym_rule),
    **dict.fromkeys(("os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.truncate", "os.setxattr",
                     "os.removexattr", "os.utime"), _change_rule),
    **dict.fromkeys(("os.listdir", "os.scandir"), _list_rule),
    "os.chdir": _chdir_rule,
    **dict.fromkeys(("os.rename", "os.link", "os.symlink"), _two_path_rule),
}  # fmt: skip


class _ImportGuard:
    """First on `sys.meta_path`: sees the imports that raise no `import` event (`importlib.import_module`)."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        complaint = _import_rule((name,))
        if complaint is not None:
            _forbid(*complaint)
        return None


def install() -> None:
    """Installs hook and import guard; idempotent. What is loaded already stays: see `assert_clean`."""
    if _state.installed:
        return
    _state.installed = True
    rules, forbid = _RULES, _forbid

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        rule = rules.get(event)
        if rule is None:
            return
        complaint = rule(arguments)
        if complaint is not None:
            forbid(*complaint)

    eventless.take_processes_and_code(partial(forbid, Act.PROCESS), partial(forbid, Act.NATIVE_CODE))
    sys.meta_path.insert(0, _ImportGuard)
    sys.addaudithook(hook)


def seal(*, readable: tuple[str, ...], writable: tuple[str, ...]) -> None:
    """Closes the process: from here only the given absolute files and folders may be opened, and no code comes in.

    `readable` are opened for reading only, `writable` for both; a plain name is allowed where the working folder is
    writable (files are replaced relative to their folder's descriptor). Raises ValueError for a relative path.
    """
    if not _state.installed:
        raise RuntimeError("guard.seal() before guard.install()")
    for path in (*readable, *writable):
        if not path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"guard.seal: {path!r} is not an absolute, plain path")
    _state.readable = tuple(os.path.normpath(path) for path in readable)
    _state.writable = tuple(os.path.normpath(path) for path in writable)
    _state.plain_names = os.getcwd() in _state.writable
    _state.sealed = True
    _RULES.update(_SEALED_RULES)
    eventless.take_modules_and_files(partial(_forbid, Act.IMPORT), partial(_forbid, Act.OPEN))


@contextmanager
def loading(code_sha256: str) -> Iterator[None]:
    """While it lasts, this thread may map native code: a sealed memfd whose SHA-256 is `code_sha256`, nothing else."""
    if not _state.installed:
        yield
        return
    thread = get_ident()
    _state.code_windows[thread] = code_sha256
    try:
        yield
    finally:
        del _state.code_windows[thread]


@contextmanager
def opening(library: str | None) -> Iterator[None]:
    """While it lasts, and never after the seal, this thread may map the system's lib<library>.so: a device's driver.

    What that library maps in turn (a vendor's driver) no audit hook sees; the sandbox bounds it. None: nothing.
    """
    if library is None or not _state.installed:
        yield
        return
    thread = get_ident()
    _state.library_windows[thread] = library
    try:
        yield
    finally:
        del _state.library_windows[thread]


def assert_clean() -> None:
    """Raises DirtyProcess when a package of the lab is loaded or could be imported."""
    remedy = "start the daemon from an environment that holds only the vehicle wheels"
    loaded = sorted(name for name in LAB_PACKAGES if name in sys.modules)
    if loaded:
        raise DirtyProcess(f"already loaded: {', '.join(loaded)}; {remedy}")
    importable = sorted(name for name in LAB_PACKAGES if PathFinder.find_spec(name) is not None)
    if importable:
        raise DirtyProcess(f"importable: {', '.join(importable)} (sys.path is {sys.path}); {remedy}")
