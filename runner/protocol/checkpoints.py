"""Checkpoints in blob storage: their manifests, and the rules for concurrent attempts.

`<run>/checkpoints/<k>/manifest.json` completes checkpoint k. It is created last, with
If-None-Match, and names files below `<run>/checkpoints/files/<attempt>/<sha256>`. Two
attempts can run at the same time when a node only seemed to be lost, so these rules hold:

- The checkpoint with the greatest (attempt, k) is the newest: a stale attempt never shadows the
  work of the attempt that took over.
- An attempt refers only to files below its own number. It deletes its own files and, once it has
  committed a checkpoint, files of earlier attempts; never files of a later attempt.
- Creating the manifest claims number k. If k is taken, the attempt tries the next number.

Which checkpoint an attempt starts from depends on attempts that could not load theirs. An attempt
that fails while its script loads a checkpoint records a `ResumeFailure` in its end.json. All
decisions follow from these records, so they survive the loss of any node:

- The next attempt starts from the newest checkpoint that no attempt failed to load. If there is
  none, it tries the newest one again.
- After the same failure twice, the next attempt starts from the beginning. From then on, earlier
  checkpoints are not restored any more.
- These checkpoints are kept: no later attempt deletes them.
- A run has at most MAX_RESUME_FAILURES such attempts in addition to its retries.

docs/decisions/0023-checkpoints-that-cannot-be-loaded.md has the reasons.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from runner.protocol.codec import (
    DAMAGED,
    FORMAT,
    NOT_STORED,
    JsonDocument,
    or_none,
    parse_json,
    wire,
    write,
)
from runner.protocol.paths import RunPaths

MANIFEST = "manifest.json"
_RANK_FOLDER = "rank-"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MODE = re.compile(r"[0-7]{3}")  # no setuid, setgid or sticky bit, even from a forged manifest
_TIMES_NS = range(-(1 << 63), 1 << 63)
MAX_RESUME_FAILURES = 6
_SAME = 2


class BadManifestError(Exception):
    """A checkpoint cannot be restored from its manifest; the message is the reason."""


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise BadManifestError(f"{path!r} leaves the folder")
    return path


def _read_mode(text: Any) -> int | None:
    if text is None:
        return None
    if not isinstance(text, str) or not _MODE.fullmatch(text):
        raise BadManifestError(f"invalid file permissions {text!r}")
    return int(text, 8)


def _read_links(raw: Sequence[Mapping[str, Any]] | None) -> dict[str, str]:
    return {_inside(link["path"]): str(link["target"]) for link in raw or ()}


def _links_json(links: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"path": path, "target": to} for path, to in sorted(links.items())]


@dataclass(frozen=True, slots=True)
class CheckpointFile(JsonDocument):
    """One file of a checkpoint.

    `blob` is its name in the container. `mode` has the permissions, in the manifest as an octal
    number for chmod, or None in older manifests.
    """

    path: str = field(metadata=wire(read=_inside))
    size_bytes: int
    sha256: str
    blob: str
    mtime_ns: int = 0
    mode: int | None = field(
        default=None, metadata=wire(read=_read_mode, write=or_none(lambda mode: f"{mode:03o}"))
    )


@dataclass(frozen=True)
class CheckpointManifest(JsonDocument):
    """The files of one checkpoint.

    Attributes:
        step: the last step of any metric before the checkpoint; None without metrics.
        links: targets of symbolic links, by path.
        folders: paths of empty folders.
        ranks: the number of ranks, each with its own folder `rank-<n>`, in a sharded checkpoint;
            otherwise 0.
    """

    number: int = field(metadata=wire("checkpoint"))
    attempt: int
    time: str
    step: int | None = field(default=None, kw_only=True)
    files: tuple[CheckpointFile, ...]
    links: Mapping[str, str] = field(metadata=wire(read=_read_links, write=_links_json, missing={}))
    folders: tuple[str, ...] = field(
        metadata=wire(read=lambda raw: tuple(map(_inside, raw or ())), missing=())
    )
    ranks: int = field(default=0, metadata=wire(omit="default"))

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

    def to_bytes(self) -> bytes:
        """Return the content of the blob."""
        return json.dumps({"format": FORMAT, **write(self)}, indent=1).encode()


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
        checkpoint = CheckpointManifest.from_json(raw)
    except DAMAGED as err:
        raise BadManifestError(f"its manifest is damaged: {type(err).__name__}: {err}") from err
    if checkpoint.number != number:
        raise BadManifestError(f"its manifest belongs to checkpoint {checkpoint.number}")
    for file in checkpoint.files:
        if not _SHA256.fullmatch(file.sha256) or file.mtime_ns not in _TIMES_NS:
            raise BadManifestError(f"its entry for {file.path!r} is damaged")
        if blobs.parse_attempt(file.blob) is None:
            raise BadManifestError(f"{file.blob} does not belong to a checkpoint of this run")
    _check_paths(checkpoint)
    return checkpoint


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


@dataclass(frozen=True, slots=True)
class ResumeFailure(JsonDocument):
    """An attempt that failed while it loaded a checkpoint.

    Attributes:
        attempt: Number of the attempt that failed; 0 if not recorded yet.
        run_id: The run of the checkpoint, which may be another one.
        checkpoint: Number of the checkpoint.
        of_attempt: The attempt that saved it.
        kind: What two failures have in common if they are the same.
        message: The error of the script in one line.
    """

    attempt: int = field(metadata=NOT_STORED)
    run_id: str
    checkpoint: int
    of_attempt: int
    kind: str
    message: str = field(metadata=wire(missing=""))

    def describe(self, run_id: str) -> str:
        """Return the checkpoint in a message about run `run_id`."""
        of = "" if self.run_id == run_id else f" of {self.run_id}"
        return f"checkpoint {self.checkpoint}{of}"


@dataclass(frozen=True)
class ResumeHistory:
    """The failures of a run to load a checkpoint, oldest first."""

    run_id: str
    failures: tuple[ResumeFailure, ...] = ()

    @property
    def fresh_after(self) -> int:
        """The attempt after which the run started from the beginning; 0 if it did not."""
        return self._same_failures()[0]

    @property
    def is_fresh(self) -> bool:
        """True if the next attempt starts from the beginning unless there are newer checkpoints."""
        return self.fresh_after > 0

    @property
    def is_exhausted(self) -> bool:
        """True if the run has no further attempt in addition to its retries."""
        return len(self.failures) >= MAX_RESUME_FAILURES

    def _same_failures(self) -> tuple[int, tuple[ResumeFailure, ...]]:
        """Return `fresh_after`, and the failures that led to it."""
        counts: Counter[str] = Counter()
        group: list[ResumeFailure] = []
        found: tuple[int, tuple[ResumeFailure, ...]] = (0, ())
        for failure in self.failures:
            counts[failure.kind] += 1
            group.append(failure)
            if counts[failure.kind] >= _SAME:
                found = failure.attempt, tuple(group)
                counts.clear()
                group = []
        return found

    def has_failed(self, run_id: str, checkpoint: CheckpointManifest) -> bool:
        """Return True if an attempt failed to load the checkpoint."""
        return self._count(run_id, checkpoint.number) > 0

    def _count(self, run_id: str, number: int) -> int:
        return sum((each.run_id, each.checkpoint) == (run_id, number) for each in self.failures)

    def is_abandoned(self, run_id: str, checkpoint: CheckpointManifest) -> bool:
        """Return True if the run started from the beginning instead of from the checkpoint."""
        if not self.is_fresh:
            return False
        return run_id != self.run_id or checkpoint.attempt <= self.fresh_after

    def is_kept(self, checkpoint: CheckpointManifest) -> bool:
        """Return True if no later attempt of the run may delete its checkpoint."""
        return self.has_failed(self.run_id, checkpoint) or self.is_abandoned(
            self.run_id, checkpoint
        )

    def order(
        self, found: Iterable[tuple[str, CheckpointManifest]]
    ) -> tuple[tuple[str, CheckpointManifest], ...]:
        """Return the checkpoints that may be restored, in the order in which to try them.

        Args:
            found: Checkpoints with their runs.
        """

        def key(one: tuple[str, CheckpointManifest]) -> tuple[int, bool, int, int]:
            run_id, checkpoint = one
            attempt, number = checkpoint.order
            return self._count(run_id, number), run_id != self.run_id, -attempt, -number

        return tuple(sorted((one for one in found if not self.is_abandoned(*one)), key=key))

    def describe(self) -> str:
        """Return which checkpoints could not be loaded, with the last error; empty for none.

        After a start from the beginning, these are the checkpoints that led to it.
        """
        fresh_after, group = self._same_failures()
        later = tuple(each for each in self.failures if each.attempt > fresh_after)
        shown = later or group
        if not shown:
            return ""
        names = list(dict.fromkeys(each.describe(self.run_id) for each in shown))
        listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
        return f"{listed} could not be loaded: {shown[-1].message}"


def load_resume_history(
    read: Callable[[str], bytes | None], run_id: str, attempts: Iterable[int]
) -> ResumeHistory:
    """Return the failures that attempts of a run recorded; damaged records count as none."""
    paths = RunPaths(run_id)
    found: list[ResumeFailure] = []
    for number in attempts:
        with suppress(*DAMAGED):
            end = parse_json(read(paths.attempt_end(number)) or b"{}")
            found.append(ResumeFailure.from_json(end["resume_failed"], attempt=number))
    return ResumeHistory(run_id, tuple(found))


def newest_loadable(
    history: ResumeHistory, checkpoints: Sequence[CheckpointManifest]
) -> CheckpointManifest | None:
    """Return the newest checkpoint of the run that no attempt failed to load, or None."""
    allowed = history.order((history.run_id, each) for each in checkpoints)
    return next((each for _, each in allowed if not history.has_failed(history.run_id, each)), None)
