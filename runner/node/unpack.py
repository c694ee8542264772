"""Unpacks the code archive, and nothing outside its folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from runner.node.failures import StageFailedError

STEP = "code"


def unpack_code(archive: Path, target: Path, sha256: str) -> None:
    """Unpack `archive` into the new folder `target`.

    Refuses absolute names, `..`, links that leave the folder and special files, before anything is
    written. Raises StageFailedError.
    """
    _check_hash(archive, sha256)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = [member for member in tar.getmembers() if PurePosixPath(member.name).parts]
            for member in members:
                _check_member(member)
            for member in members:
                _extract(tar, member, target)
    except (tarfile.TarError, EOFError) as err:
        raise _refused(f"{archive.name} is not a whole tar.gz: {err}") from err


def _check_hash(archive: Path, sha256: str) -> None:
    if not archive.is_file():
        raise _refused(f"{archive.name} is not in the task's folder: its resource file is missing")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise _refused(f"{archive.name} is not what was submitted: sha256 is {found}, not {sha256}")


def _check_member(member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise _refused(f"the code archive names a file outside its folder: {member.name!r}")
    if member.islnk() or member.issym():
        # A hard link's name counts from the archive's root, a symbolic link's from its own folder.
        start = name.parent if member.issym() else PurePosixPath()
        if _leaves_folder(start, PurePosixPath(member.linkname)):
            raise _refused(f"{member.name!r} is a link out of the code's folder")
    elif not (member.isfile() or member.isdir()):
        raise _refused(f"{member.name!r} is neither a file, a folder nor a link")


def _leaves_folder(start: PurePosixPath, link: PurePosixPath) -> bool:
    if link.is_absolute():
        return True
    depth = len(start.parts)
    for part in link.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    # Nothing may be written through a link that an earlier member made.
    parent = (target / member.name).parent
    if not Path(os.path.realpath(parent)).is_relative_to(os.path.realpath(target)):
        raise _refused(f"{member.name!r} would be written through a link out of the code's folder")
    member.uid = member.gid = os.getuid()
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    tar.extract(member, target, set_attrs=not member.issym())


def _refused(message: str) -> StageFailedError:
    return StageFailedError(STEP, "CodeInvalid", message)
