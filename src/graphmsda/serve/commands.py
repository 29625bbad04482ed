"""The command ``graphmsda serve``."""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import signal
import socket
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmsda.errors import UserError

if TYPE_CHECKING:
    import uvicorn


def add_parser(commands: Any) -> None:
    """Add ``serve`` to the commands."""
    from graphmsda.serve.limits import Limits

    serve = commands.add_parser("serve", help="answer over HTTP, with a page to drop images on")
    serve.add_argument("run", type=Path, help="run directory")
    serve.add_argument("--port", type=int, default=8000, metavar="N", help="0: any free one (default: 8000)")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="NAME",
        help="address to listen at (default: 127.0.0.1, this machine only)",
    )
    serve.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    serve.add_argument(
        "--examples", action="store_true",
        help="show the training image nearest to each prototype; reads the run's data, and whoever asks can see them",
    )  # fmt: skip
    limits = serve.add_argument_group("limits")
    kinds = typing.get_type_hints(Limits)
    for field in dataclasses.fields(Limits):
        limits.add_argument(
            f"--{field.name.replace('_', '-')}", type=kinds[field.name], default=field.default, metavar="N",
            help=f"{field.metadata['text']} (default: {field.default:g})",
        )  # fmt: skip
    serve.set_defaults(command=command_serve)


def command_serve(given: argparse.Namespace) -> None:
    """Serve until told to stop."""
    from graphmsda.run import Run
    from graphmsda.serve.limits import Limits

    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise UserError(f"serve: the package {error.name} is missing; pip install 'graphmsda[serve]'") from None
    from graphmsda.serve.app import create_app

    limits = Limits(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Limits)})
    listener = listen(given.host, given.port)
    with listener:
        run = Run.load(given.run, device=given.device)
        examples = {}
        if given.examples:
            from graphmsda.serve.examples import find_examples

            try:
                examples = find_examples(run)
            except UserError as error:
                raise UserError(f"--examples: {error}") from None
        app = create_app(run, limits, examples)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=max(1, round(limits.timeout))
        )
        listener.listen(2048)  # from here on whoever comes is heard, if a little later
        name = f"[{given.host}]" if ":" in given.host else given.host
        print(f"serving {run.about['method']} -> {run.domains[-1]} ({len(run.classes)} classes) at "
              f"http://{name}:{listener.getsockname()[1]}; Ctrl-C stops", flush=True)  # fmt: skip
        if not is_loopback(listener.getsockname()[0]):
            print(f"graphmsda: --host {given.host}: whoever reaches this machine can ask; there is no password and no "
                  "encryption", file=sys.stderr)  # fmt: skip
        run_until_told(uvicorn.Server(config), listener)
    print("stopped", flush=True)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket at an address, before the model is loaded: a mistake in the address is told at once."""
    where = f"--host {host} --port {port}"
    if not 0 <= port < 2**16:  # the system would take the remainder
        raise UserError(f"--port {port}: out of range; give a number from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # the latter of names that cannot be any
        reason = getattr(error, "strerror", None) or "not the name of any machine"
        raise UserError(f"{where}: there is no such address ({reason}); give another") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{where}: cannot listen there ({reason}); choose another --port or --host") from None
    return listener


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def run_until_told(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until Ctrl-C or a polite kill; requests in flight are answered first, then this returns.

    The server raises the signal once more when it is done, for whoever had handled it before; that is nobody.
    """

    def note(number: int, frame: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
