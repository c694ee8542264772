"""Checkpoints in blob storage: their manifests, and the rules for concurrent attempts.

`<run>/checkpoints/<k>/manifest.json` completes checkpoint k. It is created last, with
If-None-Match, and names files below `<run>/checkpoints/files/<attempt>/<sha256>`. Two
attempts can run at the same time when a node only seemed to be lost, so these rules hold:

- The checkpoint with the greatest (attempt, k) is the newest: a stale attempt never shadows the
  work of the attempt that took over.
- An attempt refers only to files below its own number. It deletes its own files and, once it has
  committed a checkpoint, files of earlier attempts; never files of a later attempt.
- Creating the manifest claims number k. If k is taken, the attempt tries the next number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from typing import Any, cast

from runner.protocol.encoding import parse_json

FORMAT = 1
MANIFEST = "manifest.json"
_RANK_FOLDER = "rank-"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MODE = re.compile(r"[0-7]{3}")  # no setuid, setgid or sticky bit, even from a forged manifest
_TIMES_NS = range(-(1 << 63), 1 << 63)
# Errors of parsing an untrusted document: infinity overflows, deep nesting exhausts the stack.
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class BadManifestError(Exception):
    """A checkpoint cannot be restored from its manifest; the message is the reason."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint.

    `blob` is its name in the container. `mode` has the permissions, or None in older manifests.
    """

    path: str
    size_bytes: int
    sha256: str
    blob: str
    mtime_ns: int = 0
    mode: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the manifest, with permissions as an octal number for chmod."""
        mode = {} if self.mode is None else {"mode": f"{self.mode:03o}"}
        return {**asdict(self), **mode}


@dataclass(frozen=True)
class CheckpointManifest:
    """The files of one checkpoint.

    Attributes:
        step: the last step of any metric before the checkpoint; None without metrics.
        folders: paths of empty folders.
        links: targets of symbolic links, by path.
        ranks: the number of ranks, each with its own folder `rank-<n>`, in a sharded checkpoint;
            otherwise 0.
    """

    number: int
    attempt: int
    time: str
    files: tuple[CheckpointFile, ...]
    links: Mapping[str, str]
    folders: tuple[str, ...]
    step: int | None = None
    ranks: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Return the sort key. The newest checkpoint of a run has the greatest key."""
        return (self.attempt, self.number)

    @property
    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def name(self) -> str:
        """Return the name of the checkpoint for messages."""
        step = f" (step {self.step})" if self.step is not None else ""
        return f"checkpoint {self.number} of attempt {self.attempt}{step}"

    def to_json(self) -> bytes:
        """Return the document."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "checkpoint": self.number,
            "attempt": self.attempt,
            "time": self.time,
            "step": self.step,
            "files": [file.to_json() for file in self.files],
            "links": [{"path": path, "target": to} for path, to in sorted(self.links.items())],
            "folders": list(self.folders),
            **({"ranks": self.ranks} if self.ranks else {}),
        }
        return json.dumps(document, indent=1).encode()


def merge_shards(shards: Mapping[int, CheckpointManifest]) -> CheckpointManifest:
    """Merge the manifests of all ranks into one, with the number, step and time of rank 0."""
    below = {rank: f"{_RANK_FOLDER}{rank}/" for rank in sorted(shards)}
    return replace(
        shards[0],
        files=tuple(
            replace(file, path=prefix + file.path)
            for rank, prefix in below.items()
            for file in shards[rank].files
        ),
        links={p + path: to for r, p in below.items() for path, to in shards[r].links.items()},
        folders=tuple(p + path for r, p in below.items() for path in shards[r].folders),
        ranks=len(shards),
    )


def select_shards(checkpoint: CheckpointManifest, rank: int, nodes: int) -> CheckpointManifest:
    """Return the part of a checkpoint that a rank restores.

    A rank restores its own shard. If the number of nodes has changed, each rank restores the shards
    of all ranks into one folder. Files with the same path but different content then stay in their
    folders `rank-<n>`.
    """
    if not checkpoint.ranks:
        return checkpoint
    if checkpoint.ranks == nodes:
        prefix = f"{_RANK_FOLDER}{rank}/"
        chosen = [file for file in checkpoint.files if file.path.startswith(prefix)]
        return replace(
            checkpoint,
            files=tuple(replace(f, path=f.path.removeprefix(prefix)) for f in chosen),
            links=_below(checkpoint.links, prefix),
            folders=tuple(_below(dict.fromkeys(checkpoint.folders, ""), prefix)),
        )
    hashes: dict[str, set[str]] = {}
    for file in checkpoint.files:
        hashes.setdefault(_without_rank(file.path), set()).add(file.sha256)
    files: dict[str, CheckpointFile] = {}
    for file in checkpoint.files:
        plain = _without_rank(file.path)
        path = plain if len(hashes[plain]) == 1 else file.path
        files[path] = replace(file, path=path)
    return replace(checkpoint, files=tuple(files.values()), links={}, folders=())


def _without_rank(path: str) -> str:
    return path.partition("/")[2]


def _below(paths: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {p.removeprefix(prefix): to for p, to in paths.items() if p.startswith(prefix)}


class CheckpointBlobs:
    """Blob names of the checkpoints of one run."""

    def __init__(self, run_id: str) -> None:
        self.root = f"{run_id}/checkpoints/"
        self.all_files = f"{self.root}files/"

    def manifest(self, number: int) -> str:
        """Return the blob whose creation completes checkpoint `number`."""
        return f"{self.root}{number}/{MANIFEST}"

    def files(self, attempt: int) -> str:
        """Return the prefix of the files that one attempt uploaded."""
        return f"{self.all_files}{attempt}/"

    def parse_number(self, name: str) -> int | None:
        """Return the number of the checkpoint if the blob is a manifest, else None."""
        first, _, rest = name.removeprefix(self.root).partition("/")
        return int(first) if rest == MANIFEST and first.isdecimal() else None

    def parse_attempt(self, name: str) -> int | None:
        """Return the attempt that uploaded a file, or None for another blob."""
        if not name.startswith(self.all_files):
            return None
        first = name.removeprefix(self.all_files).partition("/")[0]
        return int(first) if first.isdecimal() else None


def parse_checkpoint(body: bytes, blobs: CheckpointBlobs, number: int) -> CheckpointManifest:
    """Read manifest `number`.

    Raises:
        BadManifestError: the manifest has a newer format, is damaged, or a path leaves the folder.
    """
    try:
        raw: Any = parse_json(body)
        found = int(raw["format"])
        if found > FORMAT:
            raise BadManifestError(f"its format is {found}; this agent reads up to {FORMAT}")
        checkpoint = CheckpointManifest(
            number=int(raw["checkpoint"]),
            attempt=int(raw["attempt"]),
            time=str(raw["time"]),
            files=tuple(_file(entry, blobs) for entry in raw["files"]),
            links={_inside(link["path"]): str(link["target"]) for link in raw.get("links") or ()},
            folders=tuple(_inside(path) for path in raw.get("folders") or ()),
            step=cast("int | None", raw.get("step")),
            ranks=int(raw.get("ranks") or 0),
        )
    except _DAMAGED as err:
        raise BadManifestError(f"its manifest is damaged: {type(err).__name__}: {err}") from err
    if checkpoint.number != number:
        raise BadManifestError(f"its manifest belongs to checkpoint {checkpoint.number}")
    _check_paths(checkpoint)
    return checkpoint


def _file(entry: dict[str, Any], blobs: CheckpointBlobs) -> CheckpointFile:
    file = CheckpointFile(
        path=_inside(entry["path"]),
        size_bytes=int(entry["size_bytes"]),
        sha256=str(entry["sha256"]),
        blob=str(entry["blob"]),
        mtime_ns=int(entry.get("mtime_ns") or 0),
        mode=_mode(entry.get("mode")),
    )
    if not _SHA256.fullmatch(file.sha256) or file.mtime_ns not in _TIMES_NS:
        raise BadManifestError(f"its entry for {file.path!r} is damaged")
    if blobs.parse_attempt(file.blob) is None:
        raise BadManifestError(f"{file.blob} does not belong to a checkpoint of this run")
    return file


def _mode(text: Any) -> int | None:
    if text is None:
        return None
    if not isinstance(text, str) or not _MODE.fullmatch(text):
        raise BadManifestError(f"invalid file permissions {text!r}")
    return int(text, 8)


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise BadManifestError(f"{path!r} leaves the folder")
    return path


def _check_paths(checkpoint: CheckpointManifest) -> None:
    """Check that paths are unique, that only folders have children, and that links stay inside."""
    names = [*(file.path for file in checkpoint.files), *checkpoint.links]
    leaves = {PurePosixPath(name) for name in names}
    if len(leaves) < len(names):
        raise BadManifestError("it lists a file twice")
    folders = {PurePosixPath(path) for path in checkpoint.folders}
    for path in leaves | folders:
        if path in folders & leaves or not leaves.isdisjoint(path.parents):
            raise BadManifestError(f"{str(path)!r} is below a link or a file")
    for path, target in checkpoint.links.items():
        depth = len(PurePosixPath(path).parts) - 1
        for part in PurePosixPath(target).parts:
            depth += -1 if part == ".." else 1
            if depth < 0 or part == "/":
                raise BadManifestError(f"the link {path!r} leaves the folder")
