"""File systems under AZ_BATCH_NODE_MOUNTS_DIR: shares and exports are folders of the data dir.

A mount is a link to such a folder [S], so every node and the REST view see the same files at
once; containers are mirrored (`blob_mounts`). Errors and the `<type>-<path>.log` beside the
mount follow the service's page on virtual file mounts.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import stat
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from batch_emulator.domain.validation.pool_rules import MOUNT_KINDS
from batch_emulator.executor.blob_mounts import BlobMounts, ContainerError
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_setup import Booted, NodeError, Step
from batch_emulator.files_share.shares import (
    MountError,
    NoSuchShareError,
    Shares,
    WrongAccountError,
    WrongKeyError,
)
from batch_emulator.files_share.tree import BadNameError, parse_path
from batch_emulator.folders import Owner, is_below, open_folder, opened_folder, write_below

log = logging.getLogger(__name__)
BLOB = "azureBlobFileSystemConfiguration"
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?")
_FILES_HOST = re.compile(r"(?P<account>[a-z0-9]{3,24})\.file\..+", re.IGNORECASE)
_NO_SHARES = "no storage account is served: start the emulator with --storage-account"


class MountFailedError(Exception):
    """A failed mount; the message is that of mount(8)."""


@dataclass(frozen=True, slots=True)
class MountEntry:
    """An entry of `mountConfiguration`: its kind, its settings and its path."""

    kind: str
    settings: Mapping[str, Any]
    path: str

    @property
    def log_name(self) -> str:
        """Return the name of its log in the mounts folder."""
        return f"{MOUNT_KINDS[self.kind]}-{self.path.replace('/', '-')}.log"


def mounts_of(spec: Mapping[str, Any]) -> list[MountEntry]:
    """Return the mounts of a pool in order; they were validated when the pool was added."""
    found: list[MountEntry] = []
    given: list[dict[str, Any]] = spec.get("mountConfiguration") or []
    for one in given:
        for kind in MOUNT_KINDS:
            if one.get(kind):
                path = PurePosixPath(one[kind]["relativeMountPath"]).as_posix()
                found.append(MountEntry(kind, one[kind], path))
    return found


class NodeMounts:
    """Finds the folder of a mount and links it into a node."""

    def __init__(
        self, folder: Path, shares: Shares | None, blobs: BlobMounts, owner: Owner | None = None
    ) -> None:
        self.blobs = blobs
        self._folder = folder  # contains the exports of NFS and CIFS
        self._owner = owner
        self._shares = shares
        self._folders: Mapping[str, Callable[[Mapping[str, Any]], Path]] = {
            "azureFileShareConfiguration": self._file_share,
            "nfsMountConfiguration": self._nfs,
            "cifsMountConfiguration": self._cifs,
        }

    def step(self) -> Step:
        """Return the step of a node's setup that mounts."""
        return Step("mounts", lambda spec: bool(mounts_of(spec)), self.mount_all)

    async def mount_all(self, node: Booted) -> None:
        """Mount everything until one mount fails. Raises NodeError."""
        release = self.blobs.forget(node.layout.root)  # from the previous boot
        if release is not None:
            await release()
        taken: list[str] = []
        for mount in mounts_of(node.spec):
            try:
                _refuse_overlap(mount.path, taken)
                await self._mount(mount, node.layout)
            except (MountFailedError, ContainerError, OSError, ValueError) as err:
                why = err.strerror if isinstance(err, OSError) else None
                why = why or str(err)
                _write_log(node.layout, mount, why)
                raise mount_error(mount.path, why) from err
            taken.append(mount.path)

    async def _mount(self, mount: MountEntry, layout: NodeLayout) -> None:
        if mount.kind != BLOB:
            self._link(mount, layout)  # a few system calls: no thread is needed
            return
        point = layout.fsmounts / mount.path
        if not point.is_dir() or point.is_symlink():  # its files survive a reboot
            with free_mount_point(layout, mount.path):
                pass
            os.close(open_folder(point, layout.root.parent, make=True))
        await self.blobs.mount(layout, mount.path, mount.settings)
        _write_log(layout, mount, "mounted")

    def resume(self, node: Booted) -> None:
        """Continue with the containers of a node from before a restart of the emulator."""
        for mount in mounts_of(node.spec):
            if mount.kind == BLOB and (node.layout.fsmounts / mount.path).is_dir():
                self.blobs.resume(node.layout, mount.path, mount.settings)

    def _link(self, mount: MountEntry, layout: NodeLayout) -> None:
        target = self._folders[mount.kind](mount.settings)
        with free_mount_point(layout, mount.path) as (name, folder):
            os.symlink(target, name, target_is_directory=True, dir_fd=folder)
        _write_log(layout, mount, "mounted")

    def _file_share(self, settings: Mapping[str, Any]) -> Path:
        account = str(settings["accountName"])
        parts = _path_of(str(settings["azureFileUrl"]), account)
        return self._share(account, str(settings["accountKey"]), parts)

    def _share(self, account: str, key: str, parts: tuple[str, ...]) -> Path:
        if self._shares is None:
            raise MountFailedError(_NO_SHARES)
        if not parts:
            raise MountFailedError("mount error(22): Invalid argument: the URL names no share")
        try:
            folder = self._shares.folder(account, parts[0], key)
        except MountError as err:
            raise MountFailedError(_mount_message(err)) from err
        return _below(folder, parts[1:])

    def _nfs(self, settings: Mapping[str, Any]) -> Path:
        """Return the folder `nfs/host/path` for `host:/path`, created if it is missing [S]."""
        host, colon, path = str(settings["source"]).partition(":")
        if not colon or not path.startswith("/"):
            raise MountFailedError("mount.nfs: the source is not of the form host:/path")
        return self._export("nfs", host, tuple(part for part in path.split("/") if part))

    def _cifs(self, settings: Mapping[str, Any]) -> Path:
        """Return a share of the account, or folder `cifs/host/share`, for `//host/share` [S]."""
        source = str(settings["source"]).replace("\\", "/")
        host, _, path = source.removeprefix("//").partition("/")
        parts = tuple(part for part in path.split("/") if part)
        if not source.startswith("//") or not parts:
            raise MountFailedError("mount error: the source is not of the form //host/share")
        ours = _FILES_HOST.fullmatch(host)
        if ours is not None:
            return self._share(ours["account"], str(settings["password"]), parts)
        return self._export("cifs", host, parts)

    def _export(self, kind: str, host: str, parts: tuple[str, ...]) -> Path:
        if not _HOST.fullmatch(host) or ".." in parts:
            raise MountFailedError(f"mount error: cannot resolve '{host[:64]}'")
        folder = self._folder / kind / host.lower()
        target = folder.joinpath(*parts)
        if not is_below(target, folder):
            raise MountFailedError("mount error(13): Permission denied")
        if not target.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            with opened_folder(folder, self._folder, make=True) as opened:
                if self._owner is not None:  # what is made below belongs to the user, too
                    os.fchown(opened, self._owner.uid, self._owner.gid)
            real, top = (Path(os.path.realpath(path)) for path in (target, self._folder))
            os.close(open_folder(real, top, make=True))
        return target


def mount_error(path: str, why: str) -> NodeError:
    """Return the error of a node whose mount failed, as the documentation of mounts shows it."""
    return NodeError(
        "MountConfigurationError",
        "An error was encountered while configuring specified mount(s)",
        (("Message", f"Mount failure: {why}"), ("MountConfigurationPath", path)),
    )


@contextmanager
def free_mount_point(layout: NodeLayout, path: str) -> Generator[tuple[str, int]]:
    """Yield a name that does not exist and the descriptor of its folder.

    Raises MountFailedError and OSError.
    """
    point = layout.fsmounts / path
    if not is_below(point.parent, layout.fsmounts):
        raise MountFailedError("the mount point is behind a link")
    with opened_folder(point.parent, layout.root.parent, make=True) as folder:
        with suppress(FileNotFoundError):
            found = os.stat(point.name, dir_fd=folder, follow_symlinks=False)
            try:
                if stat.S_ISLNK(found.st_mode):  # from the previous boot
                    os.unlink(point.name, dir_fd=folder)
                else:
                    os.rmdir(point.name, dir_fd=folder)
            except OSError as err:
                raise MountFailedError("the mount point is not empty") from err
        yield point.name, folder


def _refuse_overlap(path: str, taken: list[str]) -> None:
    for other in taken:
        if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
            raise MountFailedError(f"the mount point is taken by '{other}'")


def _path_of(url: str, account: str) -> tuple[str, ...]:
    """Return share and folders of a URL; if the host is an address, the account precedes them."""
    split = urlsplit(url)
    parts = tuple(unquote(part) for part in split.path.split("/") if part)
    if _is_local(split.hostname or "") and parts and parts[0].lower() == account.lower():
        return parts[1:]
    return parts


def _is_local(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return host == "localhost"


def _below(folder: Path, parts: tuple[str, ...]) -> Path:
    try:
        target = folder.joinpath(*parse_path("/".join(parts)))
    except BadNameError as err:
        raise MountFailedError("mount error(2): No such file or directory") from err
    if not target.is_dir() or not is_below(target, folder):
        raise MountFailedError("mount error(2): No such file or directory")
    return target


def _mount_message(err: MountError) -> str:
    """Return the message of mount.cifs."""
    match err:
        case WrongKeyError():
            return "mount error(13): Permission denied"
        case NoSuchShareError():
            return "mount error(2): No such file or directory"
        case WrongAccountError():
            return f"mount error: could not resolve address: {err}"
        case _:
            return f"mount error: {err}"


def _write_log(layout: NodeLayout, mount: MountEntry, text: str) -> None:
    path = layout.fsmounts / mount.log_name
    try:
        write_below(path, layout.root.parent, f"{text}\n".encode())
    except OSError as err:
        log.warning("%s is not written: %s", path, err)
