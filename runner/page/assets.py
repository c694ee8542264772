"""The files that a browser loads: own ones, and two scripts of npm that are never committed.

`packages/package-lock.json` pins the scripts by hash. A wheel contains them; a clone installs them
in RUNNER_HOME with npm when `runner ui` first needs them. Every page works without them, but does
not update itself.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core.file_lock import file_lock
from runner.core.home import HomePaths
from runner.core.progress import OnProgress, Progress
from runner.protocol.errors import RunnerError

STATIC = Path(__file__).parent / "static"
PACKAGES = Path(__file__).parent / "packages"
# Where npm has each file, by the name that it has in a wheel. htmx comes before its extension.
SCRIPTS = {
    "htmx.js": "htmx.org/dist/htmx.min.js",
    "htmx-sse.js": "htmx.org/dist/ext/hx-sse.min.js",
    "uplot.js": "uplot/dist/uPlot.iife.min.js",
    "uplot.css": "uplot/dist/uPlot.min.css",
}
LICENCES = {"htmx.LICENSE": "htmx.org/LICENSE", "uplot.LICENSE": "uplot/LICENSE"}
BUILT = STATIC / "vendor"  # in a wheel; tools/page_scripts.py makes its files
LOCK = "package-lock.json"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that a browser loads, as it is sent and compressed."""

    media_type: str
    content: bytes
    compressed: bytes

    @property
    def version(self) -> str:
        """A hash of the content, which is part of its address."""
        return hashlib.sha256(self.content).hexdigest()[:12]


class Assets:
    """What a page loads: one style sheet and one script, each of several files, and an icon."""

    def __init__(self, node_modules: Path | None = None) -> None:
        self._node_modules = node_modules
        self.has_scripts = all(self._vendor(name) for name in SCRIPTS)
        self._files = {
            "icon.svg": _asset("image/svg+xml", [STATIC / "icon.svg"]),
            "page.css": _asset("text/css", self._with_vendor("css")),
            "page.js": _asset("text/javascript", self._with_vendor("js")),
        }

    def find(self, name: str) -> Asset | None:
        """Return a file by its name below `/static/`, or None."""
        return self._files.get(name)

    def address(self, name: str) -> str:
        """Return the address of a file, which changes with its content."""
        return f"/static/{name}?v={self._files[name].version}"

    def _with_vendor(self, kind: str) -> list[Path]:
        vendor = [self._vendor(name) for name in SCRIPTS if name.endswith(f".{kind}")]
        own = sorted((STATIC / kind).glob(f"*.{kind}"))
        return [*(path for path in vendor if path and self.has_scripts), *own]

    def _vendor(self, name: str) -> Path | None:
        places = [BUILT / name]
        if self._node_modules is not None:
            places.append(self._node_modules / SCRIPTS[name])
        return next((path for path in places if path.is_file()), None)


def _asset(media_type: str, paths: Sequence[Path]) -> Asset:
    # A script may end without a line end, or with a comment.
    content = b"\n".join(path.read_bytes() for path in paths)
    return Asset(media_type, content, gzip.compress(content, 9, mtime=0))


def ensure_assets(paths: HomePaths, on_progress: OnProgress) -> Assets:
    """Return the files of the page. Install the scripts of npm in RUNNER_HOME for a clone.

    Without a network, the page does without them: `on_progress` says so.
    """
    if all((BUILT / name).is_file() for name in SCRIPTS):
        return Assets()
    try:
        return Assets(install_scripts(paths, on_progress))
    except RunnerError as err:
        on_progress(Progress("page", "failed", f"{err.what}: {err.why}; pages stay still"))
        return Assets()


def install_scripts(paths: HomePaths, on_progress: OnProgress) -> Path:
    """Return the folder `node_modules` of the scripts; install it in RUNNER_HOME if it is missing.

    Raises:
        RunnerError: R-PAGE-SCRIPTS, or Node.js cannot be installed.
    """
    from runner.flows.local.azurite import (  # noqa: PLC0415  only a clone needs npm
        ensure_nodejs,
        npm_ci,
        npm_variables,
    )

    lock = (PACKAGES / LOCK).read_bytes()
    target = paths.home / "page" / hashlib.sha256(lock).hexdigest()[:12]
    modules = target / "node_modules"
    needed = [modules / inside for inside in (*SCRIPTS.values(), *LICENCES.values())]
    if all(path.is_file() for path in needed):
        return modules
    with file_lock(target.parent / ".lock", what="installing scripts", timeout_s=300):
        if not all(path.is_file() for path in needed):  # another process may have installed them
            runtime = ensure_nodejs(paths, on_progress)
            on_progress(Progress("page", "start", "installing the scripts of the page (once)"))
            first = needed[0].relative_to(target)
            npm_ci(PACKAGES, first, target, runtime, npm_variables(paths), _failed)
            on_progress(Progress("page", "end", "scripts of the page"))
    return modules


def _failed(why: str) -> RunnerError:
    return RunnerError(
        "R-PAGE-SCRIPTS",
        "cannot install the scripts of the page",
        why=why,
        fix="check network and proxy (npm config), then run the command again",
    )
