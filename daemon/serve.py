"""`fenced serve`: the guard first, then everything else; returns the exit status.

Exit statuses: 0 stopped in order, 1 a fault, 2 a wrong configuration, 3 refused (the process is not clean, a bundle or
root was refused, the sockets are taken). The refusal's code stands on stderr.
"""

# ruff: noqa: PLC0415 (nothing may be imported before the guard is installed)

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import TYPE_CHECKING

from daemon import guard

if TYPE_CHECKING:
    from daemon.config import Config
    from daemon.journal import MessageId
    from daemon.log import Log
    from daemon.service import Service


class StartCode(Enum):
    """Why there is no daemon, beside the codes of trust, device and `[realtime]`."""

    DIRTY_PROCESS = "dirty-process"  # it holds or could import what is the lab's, or is not as its wheel
    BAD_CONFIGURATION = "bad-configuration"
    SOCKETS_TAKEN = "sockets-taken"  # another daemon serves
    AUDIT_BROKEN = "audit-broken"  # the end of the audit log is none
    SYSTEM_ERROR = "system-error"  # a folder or file that it needs


def _tell(code: StartCode, why: object) -> None:
    print(f"fenced: {code.value}: {why}", file=sys.stderr)


def serve(config_path: str) -> int:
    """Serves until SIGTERM or SIGINT. The process is the daemon's own: it is guarded, and sealed once models serve."""
    fill_standard_descriptors()
    guard.install()
    signals = _Signals()
    from daemon import record

    try:
        guard.assert_clean()
        record.assert_as_installed()
    except guard.DirtyProcess as dirty:
        _tell(StartCode.DIRTY_PROCESS, dirty)
        return 3
    return _serve_clean(config_path, signals)


class _Signals:
    """SIGTERM and SIGINT from the first moment: one that comes before there is a service stops it as it begins.

    SIGHUP reloads; before there is a service there is nothing to reload.
    """

    def __init__(self) -> None:
        import signal

        self._service: Service | None = None
        self._asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGHUP, self._reload)

    def begin(self, service: Service) -> None:
        """From here signals reach the service."""
        self._service = service
        if self._asked:
            service.request_stop()

    def _ask(self, *_: object) -> None:
        self._asked = True
        if self._service is not None:
            self._service.request_stop()

    def _reload(self, *_: object) -> None:
        if self._service is not None:
            self._service.request_reload()


def fill_standard_descriptors() -> None:
    """Opens what is closed of 0, 1 and 2: the audit log must not become descriptor 2, where log lines are written."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _serve_clean(config_path: str, signals: _Signals) -> int:
    from daemon.audit import AuditBroken
    from daemon.config import ConfigError, load
    from daemon.privacy import close_process
    from daemon.realtime import RealtimeRefused
    from daemon.sockets import SocketsTaken
    from daemon.system_fault import described
    from hal.error import HalError
    from signing.refusal import Refused

    try:
        close_process()
        return _run(load(config_path), signals)
    except ConfigError as error:
        _tell(StartCode.BAD_CONFIGURATION, error)
        return 2
    except SocketsTaken as error:
        _tell(StartCode.SOCKETS_TAKEN, error)
    except (Refused, RealtimeRefused) as error:
        print(f"fenced: {error}", file=sys.stderr)
    except AuditBroken as error:
        _tell(StartCode.AUDIT_BROKEN, error)
    except OSError as error:
        _tell(StartCode.SYSTEM_ERROR, described(error))
        return 1
    except (HalError, ValueError) as error:
        print(f"fenced: {error}", file=sys.stderr)
        return 1
    return 3


def _run(config: Config, signals: _Signals) -> int:
    import gc

    from daemon import health, huge_pages, realtime
    from daemon.journal import MessageId, journal_of
    from daemon.log import Log
    from daemon.reload import readable_folders
    from daemon.service import Service

    log = Log(prefix_levels="JOURNAL_STREAM" in os.environ, journal=journal_of(os.environ))

    def ready() -> None:
        gc.collect()
        gc.freeze()  # what is loaded now stays; the collector need not look at it again
        huge_pages.gather()
        os.chdir(config.state_directory)
        # PoCL's unpacked binaries, which are removed at exit: see hal.opencl_environment
        unpacked = (os.environ["POCL_CACHE_DIR"],) if config.driver == "opencl" else ()
        guard.seal(
            readable=(*config.bundle_directories, *readable_folders(config)),
            writable=(config.state_directory, config.socket_directory, *unpacked),
        )

    realtime.apply(config.realtime)
    service = Service(config, log, health.from_environment(), environment=os.environ, on_ready=ready)
    guard.on_violation(lambda act, detail: _report(service, log, act, detail, MessageId.FORBIDDEN_ACT))
    if config.image_manifest_path:
        _require_image(config.image_manifest_path, service)
    signals.begin(service)
    return service.run()


def _require_image(manifest_path: str, service: Service) -> None:
    """Raises Refused, audited, where the tree that runs is not the one that the role `release` has signed."""
    from daemon.image import verify_own_tree
    from signing.refusal import Refused

    try:
        image = verify_own_tree(manifest_path, service.trust.current.root)
    except Refused as refused:
        service.audit.note("image.refused", refused.as_dict())
        raise
    service.audit.note("image.verified", {"version": image.version, "arch": image.arch, "list": image.list_sha256})


_REPORTED_ACTS = 1000  # more are only counted: an audit log must not be filled by what it reports


def _report(service: Service, log: Log, act: guard.Act, detail: str, kind: MessageId) -> None:
    todo = "treat it as an attack or a defect: keep the audit log and report it"
    log.error(f"forbidden act ({act.value}): {detail}", kind, todo=todo, ACT=act.value)
    if sum(guard.counts().values()) <= _REPORTED_ACTS:
        service.audit.note("guard.refused", {"act": act.value, "detail": detail[:1024]})
