"""TensorBoard, which refuses requests of other web pages: it has no password, and shows all runs.

Started as a process of its own, with the options of TensorBoard.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from runner.flows.extras import load_extra

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def reason_to_refuse(environ: Mapping[str, Any]) -> str | None:
    """Return why a request is refused, or None for one of TensorBoard's own page, or of a link.

    After DNS rebinding, Host is the name of the other page's host. A page that shows TensorBoard in
    a frame, or sends it a request, has another origin.
    """
    host = str(environ.get("HTTP_HOST", ""))
    if not _is_loopback(host):
        return "Host is not a loopback address"
    if environ.get("HTTP_ORIGIN", f"http://{host}") != f"http://{host}":
        return "requests of other web pages are refused"
    is_link = environ.get("HTTP_SEC_FETCH_DEST") == "document"
    if environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("none", "same-origin") and not is_link:
        return "requests of other web pages are refused"
    return None


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def guard(application: Application) -> Application:
    """Return an application that answers 403 to requests of other web pages."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        reason = reason_to_refuse(environ)
        if reason is None:
            return application(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [reason.encode()]

    return guarded


def main() -> None:
    """Run TensorBoard with the arguments of this process."""
    app = load_extra("tensorboard", "absl.app")
    program = load_extra("tensorboard", "tensorboard.program")

    def serve(application: Application, flags: Any) -> Any:
        return program.WerkzeugServer(guard(application), flags)

    load_extra("tensorboard", "tensorboard.main_lib").global_init()
    plugins = load_extra("tensorboard", "tensorboard.default").get_plugins()
    tensorboard = program.TensorBoard(plugins=plugins, server_class=serve)
    app.run(tensorboard.main, flags_parser=tensorboard.configure)


if __name__ == "__main__":
    main()
