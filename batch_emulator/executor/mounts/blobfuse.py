"""Containers mounted by blobfuse2, where it is installed and FUSE may be used.

Options of the command line outrank its configuration file, and the last one counts: what the
emulator decides (where it caches and logs) comes behind the `blobfuseOptions` of the pool. The
key is in a file of mode 0600 only, and that file tells the next start what a crash left mounted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

FUSE = Path("/dev/fuse")
_MOUNTINFO = Path("/proc/self/mountinfo")
_PREFIX = "blobfuse2-"
_MOUNT_WITHIN_S = 60.0
_UNMOUNT_WITHIN_S = 30.0
_SAID_BYTES = 500
Json = dict[str, Any]


class BlobfuseError(Exception):
    """blobfuse2 does not mount; the message is what it said, without secrets."""


def program() -> str | None:
    """The path of blobfuse2 when it can be used."""
    usable = os.access(FUSE, os.R_OK | os.W_OK)
    return shutil.which("blobfuse2") if usable else None


@dataclass(frozen=True, slots=True)
class FuseContainer:
    """What is mounted; `endpoint` is the blob service of the account."""

    account: str
    name: str
    endpoint: str
    key: str
    sas: str

    def config(self, cache: Path) -> Json:
        """What blobfuse2 reads: YAML, of which JSON is a part."""
        secret = {"mode": "key", "account-key": self.key} if self.key else {}
        return {
            "components": ["libfuse", "file_cache", "attr_cache", "azstorage"],
            "file_cache": {"path": str(cache)},
            "azstorage": {
                "type": "block",
                "account-name": self.account,
                "container": self.name,
                "endpoint": self.endpoint,
                "use-http": self.endpoint.startswith("http:"),
                **(secret or {"mode": "sas", "sas": self.sas}),
            },
        }


class Blobfuse:
    """One container on one node. Its files lie in `beside`, outside of what tasks are shown."""

    def __init__(
        self,
        command: str,
        container: FuseContainer,
        point: Path,
        beside: Path,
        key: str,
        options: str,
    ) -> None:
        self._command = command
        self._container = container
        self._point = point
        self._options = options
        self._config = beside / f"{_PREFIX}{key}.yaml"
        self._cache = beside / f"{_PREFIX}{key}.cache"
        self._log = beside / f"{_PREFIX}{key}.log"

    async def mount(self) -> None:
        """Returns when the files are there. Raises BlobfuseError and OSError."""
        arguments = self._arguments()
        self._prepare()
        with self._log.open("ab") as said:  # a pipe would stay open as long as the daemon lives
            process = await asyncio.create_subprocess_exec(
                self._command,
                *arguments,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        try:
            code = await asyncio.wait_for(process.wait(), _MOUNT_WITHIN_S)
        except BaseException as err:  # cancelled too: half a mount must not stay
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await self.unmount()
            if isinstance(err, TimeoutError):
                raise BlobfuseError(f"no answer within {_MOUNT_WITHIN_S:g} s") from err
            raise
        if code != 0:
            self._config.unlink()
            raise BlobfuseError(self._said() or f"exit code {code}")

    def _arguments(self) -> list[str]:
        try:
            options = shlex.split(self._options)
        except ValueError as err:
            raise BlobfuseError(f"blobfuseOptions cannot be read: {err}") from err
        if "--" in options:
            raise BlobfuseError("blobfuseOptions: '--' is no option")
        return [
            "mount",
            str(self._point),
            *options,
            f"--config-file={self._config}",
            f"--tmp-path={self._cache}",
            "--log-type=base",
            f"--log-file-path={self._log}",
        ]

    def _prepare(self) -> None:
        shutil.rmtree(self._cache, ignore_errors=True)  # it refuses one that is not empty
        self._cache.mkdir(mode=0o700)
        for path in (self._config, self._log):
            path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(self._config, flags, 0o600), "w") as file:
            file.write(f"# {json.dumps(str(self._point))}\n")
            json.dump(self._container.config(self._cache), file)

    def _said(self) -> str:
        text = self._log.read_text(errors="replace")[-_SAID_BYTES:]
        for secret in (self._container.key, self._container.sas):
            if secret:
                text = text.replace(secret, "***")
        return " ".join(text.split())

    async def unmount(self) -> None:
        """Returns when nothing is mounted any more, or that was found impossible."""
        await asyncio.shield(asyncio.to_thread(_unmount, self._command, self._config))


def unmount_leftovers(nodes: Path) -> None:
    """Take away what a crash left mounted on the nodes below a folder. Blocks."""
    for config in nodes.glob(f"*/*/{_PREFIX}*.yaml"):
        _unmount(shutil.which("blobfuse2"), config)


def _unmount(command: str | None, config: Path) -> None:
    """By blobfuse2, else by whoever can; the configuration goes when it is done."""
    try:
        point = Path(json.loads(config.read_text().partition("\n")[0].removeprefix("# ")))
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError) as err:
        log.warning("%s cannot be read: %s", config, err)
        return
    tries = [["fusermount3", "-u", "-z", str(point)], ["umount", "-l", str(point)]]
    if command is not None:
        tries.insert(0, [command, "unmount", str(point)])
    for one in tries:
        if _run(one) and not is_mounted(point):
            break
    if is_mounted(point):
        log.error("%s cannot be unmounted; its node's folder stays", point)
        return
    shutil.rmtree(config.with_suffix(".cache"), ignore_errors=True)
    config.unlink(missing_ok=True)


def _run(command: list[str]) -> bool:
    try:
        done = subprocess.run(
            command, timeout=_UNMOUNT_WITHIN_S, capture_output=True, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        log.warning("%s: %s", command[0], err)
        return False
    if done.returncode != 0:
        log.warning("%s says: %s", command[0], done.stderr.strip()[-_SAID_BYTES:])
    return done.returncode == 0


def is_mounted(point: Path) -> bool:
    """Whether something is mounted there, also something that answers no more."""
    return point in set(_mount_points())


def mounted_below(folder: Path) -> list[Path]:
    """What is mounted at or below a folder: deleting the folder would delete that."""
    real = Path(os.path.realpath(folder))
    return [point for point in _mount_points() if point.is_relative_to(real)]


def _mount_points() -> Iterator[Path]:
    try:
        text = _MOUNTINFO.read_bytes()
    except OSError:  # no Linux: no blobfuse2 either
        return
    for line in text.splitlines():
        escaped = line.split(b" ")[4]
        yield Path(os.fsdecode(escaped.decode("unicode_escape").encode("latin-1")))
