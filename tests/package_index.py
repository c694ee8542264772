"""Packages without a download: wheels, sources with a build backend of their own, and servers."""

from __future__ import annotations

import base64
import http.server
import os
import subprocess
import threading
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.loopback import QuietServer

# PEP 517 and PEP 660 in the package itself, so that a build needs nothing else.
_BACKEND = """\
import os, zipfile

NAME, VERSION, REQUIRES = {name!r}, {version!r}, {requires!r}


def _wheel(folder, files):
    lines = [f"Requires-Dist: {{each}}" for each in REQUIRES]
    info = f"{{NAME}}-{{VERSION}}.dist-info"
    head = ["Metadata-Version: 2.1", f"Name: {{NAME}}", f"Version: {{VERSION}}"]
    metadata = "\\n".join([*head, *lines])
    kind = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files = {{**files, f"{{info}}/METADATA": metadata + "\\n", f"{{info}}/WHEEL": kind}}
    record = "".join(f"{{each}},,\\n" for each in [*files, f"{{info}}/RECORD"])
    name = f"{{NAME}}-{{VERSION}}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for path, text in {{**files, f"{{info}}/RECORD": record}}.items():
            archive.writestr(path, text)
    return name


def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open(f"{{NAME}}.py") as file:
        return _wheel(folder, {{f"{{NAME}}.py": file.read()}})


def build_editable(folder, config_settings=None, metadata_directory=None):
    return _wheel(folder, {{f"__editable_{{NAME}}.pth": os.getcwd() + "\\n"}})
"""
_PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def write_package(
    folder: Path, name: str, text: str, *, version: str = "1.0", requires: tuple[str, ...] = ()
) -> Path:
    """Write a package with one module, which builds without any other package."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = _BACKEND.format(name=name, version=version, requires=list(requires))
    (folder / "backend.py").write_text(backend, encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "{version}"\n{_PROJECT}'
        if not requires
        else f'[project]\nname = "{name}"\nversion = "{version}"\n'
        f"dependencies = {[*requires]}\n{_PROJECT}",
        encoding="utf-8",
    )
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def write_wheel(folder: Path, name: str, version: str, text: str) -> Path:
    """Write a wheel with one module to `folder`, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for each, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(each, content)
    return path


def make_repository(source: Path, bare: Path) -> str:
    """Commit a folder to `main` of a bare repository that HTTP can serve. Return the commit."""
    if not (source / ".git").exists():
        git(source, "init", "-q", "-b", "main")
    git(source, "add", "-A")
    git(source, "-c", "user.email=a@b", "-c", "user.name=x", "commit", "-qm", "change")
    if not bare.exists():
        git(source, "clone", "-q", "--bare", ".", str(bare))
    git(source, "push", "-qf", str(bare), "HEAD:main")
    git(bare, "update-server-info")
    return git(source, "rev-parse", "HEAD")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if "GIT_" not in name}
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class _Handler(http.server.SimpleHTTPRequestHandler):
    wanted: str | None = None

    def do_GET(self) -> None:
        if self.wanted is None or self.headers.get("Authorization") == self.wanted:
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="packages"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base
        """Print nothing."""


@contextmanager
def served(folder: Path, user: str | None = None) -> Generator[str]:
    """Serve a folder on this machine, to everybody or to `user:password`. Yield `host:port`.

    `simple/NAME/*.whl` in it is an index of packages (PEP 503).
    """
    encoded = base64.b64encode(user.encode()).decode() if user else None
    handler = type("Handler", (_Handler,), {"wanted": encoded and f"Basic {encoded}"})
    server = QuietServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def write_index(folder: Path, wheels: Mapping[tuple[str, str], str]) -> Path:
    """Write an index with the wheels, given as text of the module by name and version."""
    for (name, version), text in wheels.items():
        write_wheel(folder / "simple" / name.replace("_", "-"), name, version, text)
    return folder
