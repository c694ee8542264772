"""Models in blob: names, aliases, and the documents of their versions (docs/model-format.md)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from runner.protocol.codec import FORMAT, JsonDocument, read, wire
from runner.protocol.encoding import parse_json
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.paths import is_selected_output

if TYPE_CHECKING:
    from typing import Self  # the agent runs on Python 3.10

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
ALIAS_PATTERN = r"^[a-z][a-z0-9_-]{0,62}$"
COMPUTED_ALIASES = ("latest", "best")  # computed from the versions
_SUFFIX = ".json"

ModelDocument = dict[str, Any]


class ModelError(RunnerError):
    """The model registry rejects a name, a request or a document."""

    def __init__(
        self,
        code: str,
        what: str,
        why: str = "",
        fix: str = "",
        exit_code: ExitCode | None = None,
    ) -> None:
        super().__init__(code, what, why=why, fix=fix, exit_code=exit_code)


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
    """

    name: str = ""
    aliases: tuple[str, ...] = field(default=(), metadata=wire(read=_read_aliases))
    path: str | None = None
    description: str = ""
    register: bool = field(
        default=True, metadata=wire(read=lambda value: value is not False, omit="default")
    )

    @classmethod
    def from_json(cls, raw: object, /, **given: Any) -> Self:
        """Read `model` of run.json."""
        return read(cls, cast("ModelDocument", raw) if isinstance(raw, dict) else {}, **given)

    def check(self) -> ModelRequest:
        """Return the request. Raise ModelError for an invalid name or alias."""
        if not self.name:
            raise ModelError(
                "R-MODEL-REQUEST", "run.json names no model", "", "submit the run again"
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
        "a name has 1 to 63 characters of a-z, 0-9, - and _, and begins with a letter or digit",
        f"use {plain}" if plain else "use another name, such as mnist",
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
        "R-MODEL-ALIAS", f"invalid alias {alias!r}", why, "use another alias, such as production"
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
    metrics: Mapping[str, Any] = run.get("metrics") or {}
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
        "primary_metric": metrics.get("primary"),
        "goal": "min" if metrics.get("goal") == "min" else "max",
        "aliases": list(request.aliases),
        "lineage": _lineage(run, result),
    }


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
            "a model consists of files that the script writes to $RUNNER_OUTPUT_DIR",
            "save the model to $RUNNER_OUTPUT_DIR in the script, and train again",
        )
    return ModelError(
        "R-MODEL-FILES",
        f"no output of run {run_id} matches {request.path!r}",
        f"it exported {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}",
        f"runner models register {run_id} {request.name} --path '{names[0]}'",
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
            "a newer version of runner wrote it",
            "run `pip install --upgrade azure-batch-runner`",
        )
    return raw


def _damaged(blob: str, err: Exception) -> ModelError:
    return damaged_model_document(blob, f"{type(err).__name__}: {err}")


def damaged_model_document(blob: str, why: str) -> ModelError:
    """Return the error for a damaged document."""
    return ModelError(
        "R-MODEL-BROKEN",
        f"{blob} cannot be read",
        why,
        "the blob is damaged: restore an earlier version of it, or register under another name",
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
