"""The Pulumi CLI is installed from an archive with the recorded hash, and from nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Generator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest

from runner.protocol.errors import RunnerError
from runner_infra.engine import automation, cli_archive
from tests.loopback import QuietServer
from tools.pulumi_hashes import read_hashes

_NAME = "pulumi-v3.4.5-linux-x64.tar.gz"
_PROGRAM = b"#!/bin/sh\necho v3.4.5\n"
_FILES: Mapping[str, bytes] = {"pulumi/pulumi": _PROGRAM, "pulumi/pulumi-language-python": b"host"}


def _pack(files: Mapping[str, bytes], *links: tuple[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o6777
            tar.addfile(member, io.BytesIO(content))
        for name, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return packed.getvalue()


class Site:
    """A web server with the archive at `_NAME`; `redirect` is where it sends the client."""

    def __init__(self) -> None:
        site = self
        self.content = _pack(_FILES)
        self.cut = 0
        self.redirect = ""
        self.asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                if site.redirect and self.path == f"/{_NAME}":
                    self.send_response(302)
                    self.send_header("Location", site.redirect)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(site.content)))
                self.end_headers()
                self.wfile.write(site.content[: len(site.content) - site.cut])

            def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
                pass

        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        Thread(target=self.server.serve_forever, daemon=True).start()

    def pin(self, folder: Path, content: bytes | None = None) -> None:
        """Record the hash of the content, by default that of the archive."""
        sha256 = hashlib.sha256(content or self.content).hexdigest()
        pinned = {"version": "3.4.5", "sha256": {"linux-x64": sha256}}
        (folder / "pinned.json").write_text(json.dumps(pinned), "utf-8")
        cli_archive._pinned.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Site]:
    found = Site()
    monkeypatch.setattr(cli_archive, "_SITE", f"http://127.0.0.1:{found.port}")
    monkeypatch.setattr(cli_archive, "HASHES", tmp_path / "pinned.json")
    monkeypatch.setattr(cli_archive, "_platform", lambda: "linux-x64")
    found.pin(tmp_path)
    yield found
    cli_archive._pinned.cache_clear()
    found.server.shutdown()
    found.server.server_close()


def _refused(tmp_path: Path) -> str:
    """Return why the installation was refused. Nothing is left of it."""
    home = tmp_path / "home"
    with pytest.raises(RunnerError) as caught:
        automation.install_cli(home / "pulumi-cli")
    assert caught.value.code == "R-PULUMI-INSTALL"
    assert [p.name for p in home.iterdir() if p.name != ".pulumi-cli.lock"] == []
    return caught.value.why


def test_the_recorded_archive_is_installed(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "home/pulumi-cli"
    root.mkdir(parents=True)
    (root / "incomplete").touch()
    cli = automation.install_cli(root)
    assert str(cli.version) == "3.4.5"
    assert sorted(p.relative_to(root).as_posix() for p in root.rglob("*")) == [
        "bin",
        "bin/pulumi",
        "bin/pulumi-language-python",
    ]
    assert (root / "bin/pulumi").stat().st_mode & 0o7777 == 0o755
    assert site.asked == [f"/{_NAME}"]
    assert automation.find_cli(root) is not None


def test_an_archive_of_another_host_is_installed_if_its_hash_is_right(
    site: Site, tmp_path: Path
) -> None:
    site.redirect = f"http://localhost:{site.port}/elsewhere"
    automation.install_cli(tmp_path / "home/pulumi-cli")
    assert site.asked == [f"/{_NAME}", "/elsewhere"]


@pytest.mark.attack
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same-host", "redirected"])
def test_a_replaced_archive_is_refused(site: Site, tmp_path: Path, elsewhere: bool) -> None:
    seen = tmp_path / "executed"
    site.content = _pack({"pulumi/pulumi": f"#!/bin/sh\ntouch {seen}\necho v3.4.5\n".encode()})
    if elsewhere:
        site.redirect = f"http://localhost:{site.port}/elsewhere"
    assert "somebody replaced it" in _refused(tmp_path)
    assert not seen.exists()


def test_a_truncated_archive_is_refused(site: Site, tmp_path: Path) -> None:
    site.cut = 10
    assert "incomplete" in _refused(tmp_path)


@pytest.mark.attack
@pytest.mark.parametrize(
    "files",
    [
        {"../../victim": b"x"},
        {"pulumi/../../../victim": b"x"},
        {"/tmp/victim": b"x"},
        {"pulumi/..": b"x"},
        {"other/pulumi": b"x"},
        {},
    ],
    ids=["parent", "below-pulumi", "absolute", "the-folder", "another-folder", "link"],
)
def test_members_outside_the_folder_are_refused(
    site: Site, tmp_path: Path, files: dict[str, bytes]
) -> None:
    links = [("pulumi/out", str(tmp_path))] if not files else []
    site.content = _pack({**_FILES, **files}, *links)
    site.pin(tmp_path)
    assert "unexpected member" in _refused(tmp_path)
    assert not list(tmp_path.rglob("victim"))


@pytest.mark.attack
@pytest.mark.parametrize("address", ["ftp://127.0.0.1/x", "https://127.0.0.1:1/x", "file:///x"])
def test_a_redirect_to_another_scheme_is_not_followed(
    site: Site, tmp_path: Path, address: str
) -> None:
    site.redirect = address
    assert "302" in _refused(tmp_path)


def test_a_file_that_is_no_archive_is_refused(site: Site, tmp_path: Path) -> None:
    site.content = b"<html>sign in to the network</html>"
    assert "somebody replaced it" in _refused(tmp_path)
    site.pin(tmp_path)
    assert "gzip" in _refused(tmp_path)


def test_without_a_network_the_error_says_so(site: Site, tmp_path: Path) -> None:
    site.server.shutdown()
    site.server.server_close()
    assert "refused" in _refused(tmp_path)


def test_a_platform_without_a_hash_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_archive, "_platform", lambda: "windows-x64")
    (tmp_path / "home").mkdir()
    assert _refused(tmp_path) == "no hash of Pulumi 3.4.5 for windows-x64 is recorded"
    assert site.asked == []


@pytest.mark.parametrize(
    ("machine", "name"), [("x86_64", "linux-x64"), ("aarch64", "linux-arm64"), ("ppc", "linux-ppc")]
)
def test_names_of_platforms(monkeypatch: pytest.MonkeyPatch, machine: str, name: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sys.platform", "linux")
    assert cli_archive._platform() == name


def _checksums(write: Callable[[str, str], str]) -> str:
    names = ("linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64", "windows-x64")
    return "\n".join(write(name, format(index, "064x")) for index, name in enumerate(names))


@pytest.mark.parametrize(
    "write",
    [
        lambda name, sha256: f"{sha256}  pulumi-v3.4.5-{name}.tar.gz",
        lambda name, sha256: f'url "x/pulumi-v3.4.5-{name}.tar.gz"\n      sha256 "{sha256}"',
    ],
    ids=["checksums", "formula"],
)
def test_hashes_are_read_from_a_release(write: Callable[[str, str], str]) -> None:
    found = read_hashes("3.4.5", _checksums(write))
    assert found["darwin-x64"] == format(2, "064x")
    assert sorted(found) == ["darwin-arm64", "darwin-x64", "linux-arm64", "linux-x64"]
    with pytest.raises(ValueError, match="no hash of Pulumi 3\\.4\\.6 for darwin-arm64"):
        read_hashes("3.4.6", _checksums(write))


def test_the_recorded_version_fits_the_sdk() -> None:
    """The SDK accepts a CLI that is older than itself."""
    from pulumi.automation._minimum_version import _MINIMUM_VERSION

    pinned = json.loads(Path(cli_archive.__file__).with_name("pulumi_cli.json").read_text("utf-8"))
    assert _MINIMUM_VERSION.compare(pinned["version"]) <= 0
    assert set(pinned["sha256"]) == {"darwin-arm64", "darwin-x64", "linux-arm64", "linux-x64"}
