"""The listening socket. Light to import: it is bound before the server's libraries are."""

import errno
import socket
from pathlib import Path

from pelton.config import EngineConfig

BACKLOG = 2048


def bind(config: EngineConfig) -> socket.socket:
    """A listening socket: from here on connections queue, even before anything serves them.

    Raises:
        ValueError: the address is taken or not ours; names the setting and the fix.
    """
    if config.uds is not None:
        return _bind_unix(config.uds)
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"port {config.port} is in use; choose another with --port, or stop what holds it"
            ) from None
        raise ValueError(
            f"cannot listen on host {config.host}, port {config.port}: {error.strerror or error}"
        ) from None
    listener.setblocking(False)
    return listener


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).is_socket() and not _accepts(path):
            Path(path).unlink()  # left behind by a server that was killed
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"uds {path} is in use; choose another path with --uds, or stop what holds it") from None
        raise ValueError(f"cannot listen on uds {path}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
