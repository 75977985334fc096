"""Connects this process to a Ray cluster, or says in one sentence why that is not possible."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.interrupts import suppress_own

PROBE_S = 5.0  # for an address to answer
CLUSTER, CLIENT_PORT = "ray", 10001
# Ray's servers speak gRPC: they answer this with a frame of the same type, settings.
HTTP2_SETTINGS = b"\x04"
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + HTTP2_SETTINGS + b"\0\0\0\0\0"


def address_of(on: str) -> str:
    """The address in `ray` or `ray://host:port`, as `ray.init` takes it; raises HotloopError."""
    name, given, address = on.partition("://")
    if name != CLUSTER or (given and not address):
        raise HotloopError(f"--on is {on!r}; write ray for the cluster of this computer, or ray://HOST:PORT.")
    if not address:
        return "auto"
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise HotloopError(f"--on is {on!r}; write the address with its port, as in ray://10.0.0.1:6379.")
    if int(port) == CLIENT_PORT:
        raise HotloopError(
            f"--on is {on!r}, the port of Ray Client; run this on a node of the cluster, with --on ray."
        )
    return address


@contextlib.contextmanager
def connected(ray: Any, on: str) -> Iterator[None]:
    """Be a driver of the cluster that `on` names, unless this process is one already; raises HotloopError."""
    address = address_of(on)
    if ray.is_initialized():
        yield
        return
    if address != "auto":
        _probe(address, on)
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except Exception as error:  # ConnectionError, RuntimeError, ValueError: it depends on the version
        where = "no Ray cluster runs on this computer" if address == "auto" else "no Ray cluster there"
        raise HotloopError(
            f"--on {on}: {where} ({first_line(error)}); join one with `ray start` on this computer."
        ) from None
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own there
    try:
        yield
    finally:
        ray.shutdown()


def _probe(address: str, on: str) -> None:
    host, _, port = address.rpartition(":")
    answer = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_S) as link:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            link.settimeout(PROBE_S)
            link.sendall(HTTP2_HELLO)
            with suppress_own(OSError):
                answer = link.recv(9)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise HotloopError(f"--on {on}: nothing listens there ({why}); check the address.") from None
    if answer[3:4] != HTTP2_SETTINGS:  # `ray.init` would try again for many minutes
        raise HotloopError(f"--on {on}: what listens there is no Ray cluster; check the address.")


def node_actor(name: str, target: str) -> type:
    """A class for `ray.remote` that makes the object `target` ("module:Class") on a node and asks it.

    Sent by value, so that a node without hotloop can say so: each answer is (problem, answer). Its arguments
    are the folder of our package here, our version, and those of the object. `name` is shown in reports.
    """

    class NodeActor:
        def __init__(self, home: str, version: str, *args: Any):
            import importlib
            import sys

            self.problem = "has no hotloop"
            self.made: Any = None
            try:
                try:
                    package = importlib.import_module("hotloop._util")
                except ImportError:
                    sys.path.append(home)
                    package = importlib.import_module("hotloop._util")
                self.problem = "cannot run our code"
                found = getattr(package, "HOTLOOP_VERSION", "of unknown version")
                if found != version:
                    self.problem = f"has hotloop {found}, and this is {version}"
                else:
                    module, _, of = target.partition(":")
                    self.made = getattr(importlib.import_module(module), of)(*args)
            except ImportError as error:
                self.problem = f"{self.problem} ({error})"

        def ask(self, question: str, *args: Any) -> Any:
            return (self.problem, None) if self.made is None else ("", getattr(self.made, question)(*args))

    NodeActor.__name__ = NodeActor.__qualname__ = name
    NodeActor.ask.__qualname__ = f"{name}.ask"
    return NodeActor


def last_line(error: BaseException) -> str:
    """Of an error that was raised elsewhere: what was raised, below its traceback."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")[:300]


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
