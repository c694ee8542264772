"""Models in blob: names, aliases, the documents of their versions (docs/model-format.md), and their
registry.

A version is immutable, created once by a conditional write. The registry depends only on
`ModelStore`, so that agent and client share it. A run never becomes two versions, because numbers
have no gaps and are never reused. A writer whose listing missed the version of its run starts below
that number, and finds the version when it tries the next numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

from runner.protocol.codec import (
    FORMAT,
    NOT_STORED,
    JsonDocument,
    now_text,
    parse_json,
    read,
    wire,
)
from runner.protocol.commands import read_parameters
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import Goal, choose_metric, default_goal, read_goal
from runner.protocol.paths import is_selected_output

if TYPE_CHECKING:
    from typing import Self  # the agent runs on Python 3.10

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
ALIAS_PATTERN = r"^[a-z][a-z0-9_-]{0,62}$"
COMPUTED_ALIASES = ("latest", "best")  # computed from the versions
_SUFFIX = ".json"

ModelDocument = dict[str, Any]
MapFunction = Callable[[Callable[[Any], Any], Iterable[Any]], "list[Any]"]

_ALIAS_TRIES = 50
_COPY_TRIES = 4  # a concurrent removal may delete the copy
COPY_BLOCK_BYTES = 64 * 1024 * 1024
DIGEST_READ_BYTES = 8 * 1024 * 1024
SUMMARY_METADATA = "summary"  # the metadata of a version's blob, which listings contain


class ModelError(RunnerError):
    """The model registry rejects a name, a request or a document."""


class ModelBlobs:
    """Blob names of one model in the `models` container."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.aliases = f"{name}/aliases.json"
        self.versions = f"{name}/versions/"
        self.files = f"{name}/files/"

    def version(self, number: int) -> str:
        """Return the blob whose creation claims a version."""
        return f"{self.versions}{number}{_SUFFIX}"

    def file(self, sha256: str) -> str:
        """Return the blob of a file, which versions with the same content share."""
        return f"{self.files}{sha256}"

    def number(self, blob: str) -> int | None:
        """Return the number of the version in a blob below `versions`, or None."""
        text = blob.removeprefix(self.versions).removesuffix(_SUFFIX)
        return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else None


def model_record_blob(run_id: str, name: str) -> str:
    """Return the blob in the container `runs` that records the version of a run."""
    return f"{run_id}/models/{name}{_SUFFIX}"


def _read_aliases(raw: object) -> tuple[str, ...]:
    return tuple(map(str, cast("list[object]", raw))) if isinstance(raw, list) else ()


@dataclass(frozen=True, slots=True)
class ModelRequest(JsonDocument):
    """The request to register a run as a version of a model, from a recipe or a user.

    It is validated by `check`, not when it is read, so that the run can start.

    Attributes:
        path: a file, glob or folder of the outputs; None selects all of them.
        register: False for a reproduction, which keeps the request but is not registered.
        ranked_by: the metric that compares the version with others, and its goal, if a user chose
            one; else those of the run. It is not in run.json.
    """

    name: str = ""
    aliases: tuple[str, ...] = field(default=(), metadata=wire(read=_read_aliases))
    path: str | None = None
    description: str = ""
    register: bool = field(
        default=True, metadata=wire(read=lambda value: value is not False, omit="default")
    )
    ranked_by: tuple[str, Goal] | None = field(default=None, metadata=NOT_STORED)

    @classmethod
    def from_json(cls, raw: object, /, **given: Any) -> Self:
        """Read `model` of run.json."""
        return read(cls, cast("ModelDocument", raw) if isinstance(raw, dict) else {}, **given)

    def check(self) -> ModelRequest:
        """Return the request. Raise ModelError for an invalid name or alias."""
        if not self.name:
            raise ModelError(
                "R-MODEL-REQUEST", "run.json names no model", fix="submit the run again"
            )
        check_name(self.name)
        for alias in self.aliases:
            check_alias(alias)
        return self


def check_name(name: str) -> str:
    """Return the name of a model. Raise ModelError if it is not allowed."""
    if re.fullmatch(NAME_PATTERN, name):
        return name
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:63]
    raise ModelError(
        "R-MODEL-NAME",
        f"invalid model name {name!r}",
        why="a name has 1 to 63 characters of a-z, 0-9, - and _, and begins with a letter or digit",
        fix=f"use {plain}" if plain else "use another name, such as mnist",
    )


def check_alias(alias: str) -> str:
    """Return the alias. Raise ModelError if it is not allowed or computed."""
    if alias in COMPUTED_ALIASES:
        why = f"@{alias} is reserved: it is computed from the versions"
    elif re.fullmatch(ALIAS_PATTERN, alias):
        return alias
    else:
        why = "an alias has 1 to 63 characters of a-z, 0-9, - and _, and begins with a letter"
    raise ModelError(
        "R-MODEL-ALIAS",
        f"invalid alias {alias!r}",
        why=why,
        fix="use another alias, such as production",
    )


def draft_version(
    request: ModelRequest, run: Mapping[str, Any], result: Mapping[str, Any]
) -> ModelDocument:
    """Return the document of a version without a number. Raise ModelError if it has no files."""
    outputs: list[ModelDocument] = result.get("outputs") or []
    files = [file for file in outputs if is_selected_output(str(file["path"]), request.path)]
    if not files:
        raise _no_files(request, run["run_id"], outputs)
    blobs = ModelBlobs(request.name)
    metric, goal = request.ranked_by or _ranking_metric(run, result.get("metrics") or {})
    return {
        "format": FORMAT,
        "name": request.name,
        "version": None,
        "created": None,
        "description": request.description,
        "run_id": run["run_id"],
        "attempt": result.get("attempt"),
        "files": [
            {
                "path": str(file["path"]),
                "size_bytes": int(file["size_bytes"]),
                "sha256": str(file["sha256"]),
                "blob": blobs.file(str(file["sha256"])),
            }
            for file in sorted(files, key=lambda file: str(file["path"]))
        ],
        "metrics": dict(result.get("metrics") or {}),
        "primary_metric": metric,
        "goal": goal,
        "aliases": list(request.aliases),
        "lineage": _lineage(run, result),
    }


def _ranking_metric(run: Mapping[str, Any], measured: Iterable[str]) -> tuple[str | None, Goal]:
    """Return the metric that ranks a run, and its goal.

    It is that of its sweep or its recipe, the first one that was measured. If neither names one,
    it is the first value that is clearly a metric.
    """
    trial: Mapping[str, Any] = run.get("trial") or {}
    metrics: Mapping[str, Any] = run.get("metrics") or {}
    pairs = (
        (trial.get("metric"), trial.get("goal")),
        (metrics.get("primary"), metrics.get("goal")),
    )
    named: list[tuple[str, Goal]] = [(str(name), read_goal(goal)) for name, goal in pairs if name]
    names = tuple(measured)
    if named:
        return next((pair for pair in named if pair[0] in names), named[0])
    found = choose_metric(names, read_parameters(run))
    return found, default_goal(found or "")


def _lineage(run: Mapping[str, Any], result: Mapping[str, Any]) -> ModelDocument:
    taken = ("experiment", "recipe", "code", "agent", "command", "params", "env", "requirements")
    more = ("python", "image", "inputs", "origin", "resume_from", "price")
    kept = {key: run.get(key) for key in taken} | {
        key: run[key] for key in more if run.get(key) is not None
    }
    return {**kept, "data": _data(run.get("data")), "submitted": run.get("created")} | {
        "started": result.get("started"),
        "ended": result.get("ended"),
    }


def _data(data: Mapping[str, Any] | None) -> ModelDocument | None:
    """Return the data set of a version. The last part of its prefix is the manifest's hash."""
    if not data:
        return None
    prefix = str(data.get("prefix") or "")
    return {
        "name": data.get("name"),
        "source": data.get("source"),
        "prefix": prefix,
        "manifest_sha256": prefix.rstrip("/").rpartition("/")[2] or None,
        "files": len(data.get("files") or ()),
    }


def _no_files(request: ModelRequest, run_id: str, outputs: Iterable[ModelDocument]) -> ModelError:
    names = [str(output["path"]) for output in outputs]
    if not names:
        return ModelError(
            "R-MODEL-FILES",
            f"run {run_id} has no outputs",
            why="a model consists of files that the script writes to $RUNNER_OUTPUT_DIR",
            fix="save the model to $RUNNER_OUTPUT_DIR in the script, and train again",
        )
    return ModelError(
        "R-MODEL-FILES",
        f"no output of run {run_id} matches {request.path!r}",
        why=f"it exported {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}",
        fix=f"runner models register {run_id} {request.name} --path '{names[0]}'",
    )


def parse_version(body: bytes, blob: str) -> ModelDocument:
    """Read the document of a version. Raise ModelError if it is newer or damaged."""
    raw = _checked(body, blob)
    try:
        for file in raw["files"]:
            if not re.fullmatch(r"[0-9a-f]{64}", file["sha256"]) or int(file["size_bytes"]) < 0:
                raise ValueError(f"a file {file['sha256']!r}")
            if not isinstance(file["path"], str) or not isinstance(file["blob"], str):
                raise TypeError("a file without path")
        if not isinstance(raw["version"], int) or not isinstance(raw["run_id"], str):
            raise TypeError("no version, or no run")
        _check_shown(raw)
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise _damaged(blob, err) from err
    return raw


def parse_aliases(body: bytes | None, blob: str) -> ModelDocument:
    """Read `aliases.json`: `{alias: {"version": n or None, "applied": n}}`."""
    if body is None:
        return {}
    raw = _checked(body, blob)
    try:
        entries = {str(alias): dict(entry) for alias, entry in dict(raw["aliases"]).items()}
        for entry in entries.values():
            for number in (entry.get("version"), entry.get("applied")):
                if not isinstance(number, int | None):
                    raise TypeError(f"a version {number!r}")
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise _damaged(blob, err) from err
    return entries


def _check_shown(raw: Mapping[str, Any]) -> None:
    """Check the fields that tables and charts use. Raise ValueError or TypeError."""
    if (created := raw.get("created")) is not None:
        datetime.fromisoformat(created)
    if not isinstance(raw.get("primary_metric"), str | None):
        raise TypeError("`primary_metric` is not a name")
    if not isinstance(raw.get("metrics"), dict | None):
        raise TypeError("`metrics` is not a mapping")


def _checked(body: bytes, blob: str) -> ModelDocument:
    try:
        raw = parse_json(body)
        version = int(raw["format"])
    except (ValueError, OverflowError, KeyError, TypeError) as err:
        raise _damaged(blob, err) from err
    if version > FORMAT:
        raise ModelError(
            "R-MODEL-FORMAT",
            f"{blob} has format {version}; this runner reads up to {FORMAT}",
            why="a newer version of runner wrote it",
            fix="run `pip install --upgrade azure-batch-runner`",
        )
    return raw


def _damaged(blob: str, err: Exception) -> ModelError:
    return damaged_model_document(blob, f"{type(err).__name__}: {err}")


def damaged_model_document(blob: str, why: str) -> ModelError:
    """Return the error for a damaged document."""
    return ModelError(
        "R-MODEL-BROKEN",
        f"{blob} cannot be read",
        why=why,
        fix="the blob is damaged: restore an earlier version of it, or register under another name",
    )


def version_summary(document: Mapping[str, Any]) -> str:
    """Return the part of a version that listings show, for the metadata of its blob."""
    primary = str(document.get("primary_metric") or "")
    metrics: Mapping[str, Any] = document.get("metrics") or {}
    short = {
        "format": document["format"],
        "run_id": document["run_id"],
        "created": document.get("created"),
        "primary_metric": primary or None,
        "goal": document.get("goal"),
        "metrics": {primary: metrics[primary]} if primary in metrics else {},
        "size_bytes": sum(int(file["size_bytes"]) for file in document["files"]),
        "file_count": len(document["files"]),
    }
    if document.get("deleted"):
        short["deleted"] = document["deleted"]
    return json.dumps(short)


def parse_version_summary(text: str) -> ModelDocument | None:
    """Read the summary of a version. Return None if it is newer or damaged."""
    try:
        raw: ModelDocument = parse_json(text)
        known = int(raw["format"]) <= FORMAT and isinstance(raw["run_id"], str)
        _check_shown(raw)
        sizes = (raw["size_bytes"], raw["file_count"])
        return raw if known and all(isinstance(size, int) for size in sizes) else None
    except (ValueError, OverflowError, KeyError, TypeError):
        return None


def content_id(document: Mapping[str, Any]) -> str:
    """Return an ID that is equal if, and only if, paths and contents of the files are equal."""
    pairs = sorted((str(file["path"]), str(file["sha256"])) for file in document["files"])
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def model_document_bytes(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a document."""
    return json.dumps(document, indent=2).encode()


@dataclass(frozen=True)
class StoredModelBlob:
    """One listed blob."""

    name: str
    size_bytes: int
    etag: str
    summary: str = ""


class ModelStore(Protocol):
    """The operations of the `models` container that the registry needs.

    A write that is repeated after its response was lost may return False.
    """

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return content and ETag, or None if the blob does not exist."""
        ...

    def create(self, name: str, body: bytes, summary: str = "") -> bool:
        """Write a blob unless it exists. Return True if this call certainly wrote it."""
        ...

    def replace(self, name: str, body: bytes, etag: str, summary: str = "") -> bool:
        """Replace the version with this ETag. Return True if this call certainly did."""
        ...

    def list(self, prefix: str) -> list[StoredModelBlob]:
        """Return all blobs below a prefix, with their summaries."""
        ...

    def copy(self, source: str, name: str, size_bytes: int, *, replace: bool) -> bool:
        """Copy a blob of the `runs` container. Return False if the source does not exist."""
        ...

    def digest(self, name: str) -> tuple[int, str] | None:
        """Read a blob and return its size and SHA-256, or None if it does not exist."""
        ...

    def touch(self, name: str) -> bool:
        """Give the blob a new ETag. Return False if it does not exist."""
        ...


@dataclass(frozen=True)
class CommittedVersion:
    """The version of a run. `new` is True if this call created it."""

    document: ModelDocument
    new: bool

    @property
    def version(self) -> int:
        """The number of the version."""
        return int(self.document["version"])

    @property
    def deleted(self) -> bool:
        """True if the version was removed."""
        return is_deleted_version(self.document)


def is_deleted_version(document: Mapping[str, Any]) -> bool:
    """Return True if only the tombstone of a version remains."""
    return bool(document.get("deleted"))


def map_serially(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Return `function` of every item in order."""
    return [function(item) for item in items]


class ModelRegistry:
    """The versions and aliases of one model.

    Args:
        store: the operations on blobs.
        name: the name of the model.
        each: maps a function over items, possibly in parallel.
    """

    def __init__(self, store: ModelStore, name: str, each: MapFunction = map_serially) -> None:
        self._store = store
        self._blobs = ModelBlobs(name)
        self._each = each

    def numbers(self) -> list[int]:
        """Return all version numbers, including tombstones, ascending."""
        found = self._store.list(self._blobs.versions)
        return sorted(n for blob in found if (n := self._blobs.number(blob.name)) is not None)

    def load(self, number: int) -> ModelDocument | None:
        """Return the document of a version, or None if the number is not in use."""
        blob = self._blobs.version(number)
        found = self._store.read(blob)
        return None if found is None else parse_version(found[0], blob)

    def summaries(self) -> dict[int, ModelDocument | ModelError]:
        """Return the summary of each version, from one listing.

        For a version without a summary, the result has its document, or the error on reading it.
        """
        found: dict[int, ModelDocument | ModelError] = {}
        unknown: list[int] = []
        for blob in self._store.list(self._blobs.versions):
            number = self._blobs.number(blob.name)
            if number is None:
                continue
            short = parse_version_summary(blob.summary)
            if short is None:
                unknown.append(number)
            else:
                found[number] = short
        found |= dict(self._each(lambda n: (n, self._try_load(n)), unknown))
        return dict(sorted(found.items()))

    def load_each(self) -> dict[int, ModelDocument | ModelError]:
        """Return the documents of all versions, or the error for one that cannot be read."""
        return dict(self._each(lambda n: (n, self._try_load(n)), self.numbers()))

    def _try_load(self, number: int) -> ModelDocument | ModelError:
        try:
            found = self.load(number)
        except ModelError as err:
            return err
        return found or damaged_model_document(self._blobs.version(number), "it vanished")

    def register(
        self,
        draft: ModelDocument,
        source: Callable[[str], str],
        *,
        anew: bool = False,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> CommittedVersion:
        """Create the version of a run, or find it and complete its files and aliases.

        Args:
            draft: the document without a number.
            source: returns the blob in the container `runs` for the path of an output.
            anew: create a new version if the earlier one was removed, and verify the files of an
                existing version.
            on_bytes: receives the number of copied bytes.

        Raises:
            ModelError: the version cannot be created, or has other files.
        """
        known = self.summaries()
        numbers = [n for n, short in known.items() if _is_of_run(_readable(short), draft, anew)]
        existing = self.load(numbers[-1]) if numbers else None
        if existing is not None and _is_of_run(existing, draft, anew):
            found = CommittedVersion(existing, new=False)
        else:
            self._each(lambda file: self._ensure_file(file, source, on_bytes), _contents(draft))
            found = self._commit(draft, max(known, default=0) + 1, anew)
        if found.deleted:
            return found
        _check_same(found.document, draft)
        # A concurrent removal of another version, which did not list this one, may delete a file
        # that both share. It deletes by ETag, so a touched file remains. A missing file is copied
        # again. A damaged file is copied again only with `anew`, because finding it requires
        # reading the whole model.
        verify = anew and not found.new
        for file in _contents(found.document):
            if not self._store.touch(file["blob"]) or verify:
                self._ensure_file(file, source, on_bytes)
        if found.document.get("aliases"):
            self.apply_aliases(found.version, found.document["aliases"])
        return found

    def _commit(self, draft: ModelDocument, number: int, anew: bool) -> CommittedVersion:
        """Create the version under the first free number from `number`, or find that of the run."""
        while True:
            document = {**draft, "version": number, "created": now_text()}
            if self._store.create(
                self._blobs.version(number),
                model_document_bytes(document),
                version_summary(document),
            ):
                return CommittedVersion(document, new=True)
            existing = self.load(number)
            if existing is None:
                continue  # storage lost it in a crash, so the number is free
            if _is_of_run(existing, draft, anew):
                return CommittedVersion(existing, new=existing["created"] == document["created"])
            number += 1

    def _ensure_file(
        self, file: ModelDocument, source: Callable[[str], str], on_bytes: Callable[[int], None]
    ) -> None:
        """Copy the file unless it is stored, and verify it by reading it back."""
        blob, wanted = file["blob"], (int(file["size_bytes"]), file["sha256"])
        found = self._store.digest(blob)
        for _ in range(_COPY_TRIES):
            if found == wanted:
                on_bytes(wanted[0])
                return
            if not self._store.copy(
                source(file["path"]), blob, wanted[0], replace=found is not None
            ):
                break
            found = self._store.digest(blob)
        if found == wanted:
            on_bytes(wanted[0])
            return
        raise ModelError(
            "R-MODEL-CHANGED",
            f"{file['path']} differs from the file that the run exported",
            why="it was changed or deleted in storage after the run",
            fix="train again",
        )

    def aliases(self) -> dict[str, int]:
        """Return the version of each alias that is set."""
        entries = self._aliases()[0]
        return {alias: int(e["version"]) for alias, e in entries.items() if e.get("version")}

    def set_alias(self, alias: str, number: int | None) -> int | None:
        """Point an alias at a version, or at none. Return the version it pointed at before."""
        before: list[int | None] = []

        def change(entries: ModelDocument) -> None:
            entry = _entry(entries, alias)
            before[:] = [entry.get("version")]
            applied = max(int(entry.get("applied") or 0), number or 0)
            entries[alias] = {"version": number, "applied": applied}

        self._change_aliases(change)
        return before[0]

    def drop_aliases(self, numbers: Iterable[int]) -> None:
        """Remove the aliases of these versions."""
        gone = set(numbers)

        def change(entries: ModelDocument) -> None:
            for entry in entries.values():
                if entry.get("version") in gone:
                    entry["version"] = None

        self._change_aliases(change)

    def apply_aliases(self, number: int, aliases: Iterable[str]) -> None:
        """Point the requested aliases at a version, unless this was done before.

        So a repeated registration does not revert later changes by users.
        """

        def change(entries: ModelDocument) -> None:
            for alias in aliases:
                entry = _entry(entries, alias)
                if number > int(entry.get("applied") or 0):
                    entries[alias] = {"version": number, "applied": number}

        self._change_aliases(change)

    def _change_aliases(self, change: Callable[[ModelDocument], None]) -> None:
        for _ in range(_ALIAS_TRIES):
            entries, etag = self._aliases()
            before = model_document_bytes(entries)
            change(entries)
            if model_document_bytes(entries) == before:
                return
            body = model_document_bytes({"format": FORMAT, "aliases": entries})
            blob = self._blobs.aliases
            if etag is None:
                written = self._store.create(blob, body)
            else:
                written = self._store.replace(blob, body, etag)
            if written:
                return
        raise ModelError(
            "R-MODEL-BUSY",
            f"the aliases of {self._blobs.name} are being changed by others",
            why=f"{_ALIAS_TRIES} attempts to write them failed",
            fix="try again",
        )

    def _aliases(self) -> tuple[ModelDocument, str | None]:
        found = self._store.read(self._blobs.aliases)
        body, etag = found or (None, None)
        return parse_aliases(body, self._blobs.aliases), etag


def _is_of_run(document: ModelDocument, draft: ModelDocument, anew: bool) -> bool:
    return document["run_id"] == draft["run_id"] and not (anew and is_deleted_version(document))


def _readable(entry: ModelDocument | ModelError) -> ModelDocument:
    if isinstance(entry, ModelError):
        raise entry
    return entry


def _check_same(document: ModelDocument, draft: ModelDocument) -> None:
    if content_id(document) == content_id(draft):
        return
    name, version, run_id = document["name"], document["version"], document["run_id"]
    raise ModelError(
        "R-MODEL-OTHER-FILES",
        f"run {run_id} is already registered as {name}@{version}, with other files",
        why=f"the version contains {', '.join(file['path'] for file in document['files'][:5])}",
        fix=f"register under another name, or run `runner models rm {name}@{version}` first",
    )


def _entry(entries: ModelDocument, alias: str) -> ModelDocument:
    return dict(entries.get(alias) or {})


def _contents(document: ModelDocument) -> list[ModelDocument]:
    """Return one file for each different content."""
    return list({file["blob"]: file for file in document["files"]}.values())


# Put Block From URL accepts 4,000 MiB, but smaller blocks repeat less after a lost connection.
