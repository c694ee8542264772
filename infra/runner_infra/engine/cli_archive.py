"""Install Pulumi's CLI from an archive whose hash is compared before it is unpacked.

Pulumi's own installer, `PulumiCommand.install`, executes a script that it downloads and compares
nothing. The hashes are beside this file; `tools/pulumi_hashes.py` writes them.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import json
import platform
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

from runner.core.file_lock import file_lock
from runner.core.home import check_room
from runner.protocol.errors import RunnerError

HASHES = Path(__file__).with_name("pulumi_cli.json")
_SITE = "https://get.pulumi.com/releases/sdk"
_TIMEOUT_S = 60.0
_LOCK_TIMEOUT_S = 900.0
_CHUNK_BYTES = 1 << 20
_MAX_BYTES = 1 << 30  # our choice: several times the size of an archive
_NEEDED_BYTES = 1 << 30  # archive and programs
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


@functools.cache
def _pinned() -> dict[str, Any]:
    return json.loads(HASHES.read_text("utf-8"))


def cli_version() -> str:
    """Return the version of the CLI that `install_archive` installs."""
    return _pinned()["version"]


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows redirects to any host, because the hash decides, but never from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request to the new address, or None if it is not allowed."""
        if not newurl.startswith(f"{req.type}:"):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def install_archive(root: Path) -> None:
    """Install the CLI, so that `root/bin/pulumi` exists. An error leaves `root` as it was.

    Raises:
        RunnerError: R-PULUMI-INSTALL, or the disk has too little space.
    """
    version, name = cli_version(), _platform()
    expected = _pinned()["sha256"].get(name)
    if expected is None:
        raise _failed(f"no hash of Pulumi {version} for {name} is recorded")
    check_room(root.parent, _NEEDED_BYTES, f"the Pulumi CLI {version}")
    lock = root.with_name(f".{root.name}.lock")
    with file_lock(lock, what="installing the Pulumi CLI", timeout_s=_LOCK_TIMEOUT_S):
        try:
            # Beside the target, so that the folder can be moved there.
            with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as part:
                archive, unpacked = Path(part, "archive"), Path(part, "unpacked")
                _download(f"{_SITE}/pulumi-v{version}-{name}.tar.gz", archive, expected)
                _unpack(archive, unpacked)
                if root.exists():  # an incomplete installation, or one for another machine
                    root.rename(Path(part, "old"))
                unpacked.rename(root)
        except (OSError, http.client.HTTPException, tarfile.TarError, EOFError) as err:
            raise _failed(str(err) or type(err).__name__) from err


def _platform() -> str:
    """Return the name of this platform in the names of Pulumi's archives."""
    machine = platform.machine().lower()
    system = "windows" if sys.platform == "win32" else sys.platform
    return f"{system}-{_MACHINES.get(machine, machine)}"


def _download(address: str, target: Path, expected: str) -> None:
    """Write a file whose SHA-256 is the expected one."""
    digest, done = hashlib.sha256(), 0
    opener = urllib.request.build_opener(_SameScheme)
    try:
        reply = opener.open(address, timeout=_TIMEOUT_S)
    except urllib.error.URLError as err:  # its text has no address
        raise _failed(f"{address}: {getattr(err, 'code', None) or err.reason}") from err
    with reply, target.open("xb") as file:
        while chunk := reply.read(_CHUNK_BYTES):
            done += file.write(chunk)
            digest.update(chunk)
            if done > _MAX_BYTES:
                raise _failed(f"{address} is larger than {_MAX_BYTES >> 20:,} MB")
    if digest.hexdigest() != expected:
        raise _failed(
            f"{address} has the SHA-256 {digest.hexdigest()}, not {expected}: it is incomplete, "
            "or somebody replaced it"
        )


def _unpack(archive: Path, target: Path) -> None:
    """Write the programs of the archive, the files of its folder `pulumi`, to `bin` of `target`."""
    folder = target / "bin"
    folder.mkdir(parents=True)
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            parent, _, name = member.name.removeprefix("./").partition("/")
            if member.isdir() and not name:
                continue
            if parent != "pulumi" or not member.isfile() or name in ("", ".", "..") or "/" in name:
                raise _failed(f"its archive has the unexpected member {member.name!r}")
            source = tar.extractfile(member)
            assert source is not None  # noqa: S101 - it is a file
            program = folder / name
            with source, program.open("xb") as file:
                shutil.copyfileobj(source, file)
            program.chmod(0o755 if member.mode & 0o100 else 0o644)


def _failed(why: str) -> RunnerError:
    return RunnerError(
        "R-PULUMI-INSTALL",
        f"could not install the Pulumi CLI {cli_version()}",
        why=why,
        fix="install it manually (https://www.pulumi.com/docs/install), then try again",
    )
