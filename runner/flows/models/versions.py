"""The model registry: names, versions and aliases, and the resolution of references."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import cast

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import in_parallel
from runner.azure.storage.model_container import ModelContainer
from runner.core.units import format_count
from runner.protocol.commands import read_parameters
from runner.protocol.errors import RunnerError
from runner.protocol.models import (
    NAME_PATTERN,
    ModelDocument,
    ModelError,
    ModelRegistry,
    check_alias,
    check_name,
    is_deleted_version,
)


@dataclass(frozen=True, slots=True, repr=False)
class ModelVersion:
    """One version with all its aliases, including `latest` and `best`.

    In lists, `document` is the summary in the blob's metadata; `find_version` reads all of it.
    """

    name: str
    version: int
    document: ModelDocument | None
    aliases: tuple[str, ...] = ()
    problem: str = ""

    @property
    def deleted(self) -> bool:
        """True if only its tombstone exists."""
        return self.document is not None and is_deleted_version(self.document)

    @property
    def live(self) -> bool:
        """True if it can be used."""
        return self.document is not None and not self.deleted

    @property
    def files(self) -> list[ModelDocument]:
        """The files in the document; KeyError if it is a summary."""
        return [] if self.document is None else list(self.document["files"])

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        summed = (self.document or {}).get("size_bytes")
        return (
            int(summed)
            if summed is not None
            else sum(int(file["size_bytes"]) for file in self.files)
        )

    @property
    def file_count(self) -> int:
        """The number of files."""
        counted = (self.document or {}).get("file_count")
        return len(self.files) if counted is None else int(counted)

    @property
    def created(self) -> datetime | None:
        """The time of its registration."""
        text = (self.document or {}).get("created")
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)

    @property
    def primary_metric(self) -> str | None:
        """The metric that ranks it, of its sweep or recipe, or chosen when it was registered."""
        return (self.document or {}).get("primary_metric")

    def metric(self, name: str | None) -> float | None:
        """Return a metric of its run, or None."""
        try:
            metrics: ModelDocument = (self.document or {}).get("metrics") or {}
            return float(metrics[name or ""])
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def __repr__(self) -> str:
        document = self.document or {}
        aliases = f" ({', '.join(self.aliases)})" if self.aliases else ""
        score = self.metric(self.primary_metric)
        scored = "" if score is None else f", {self.primary_metric} {score:.4g}"
        state = "deleted" if self.deleted else f"of run {document.get('run_id')}"
        return f"<ModelVersion {self}{aliases}: {self.problem or state}{scored}>"


@dataclass(frozen=True, slots=True, repr=False)
class Model:
    """One name and all its versions, ascending."""

    name: str
    versions: tuple[ModelVersion, ...]

    def __repr__(self) -> str:
        top = f"latest {self.latest}, best {self.best}"
        return f"<Model {self.name}: {format_count(len(self.live), 'version')}, {top}>"

    @property
    def live(self) -> list[ModelVersion]:
        """The versions that can be used."""
        return [version for version in self.versions if version.live]

    @property
    def latest(self) -> ModelVersion | None:
        """The highest version that can be used."""
        return max(self.live, key=lambda version: version.version, default=None)

    @property
    def best(self) -> ModelVersion | None:
        """The best version by the primary metric of the latest; of equal ones, the earliest."""
        latest = self.latest
        if latest is None:
            return None
        name, goal = latest.primary_metric, (latest.document or {}).get("goal")
        scored = [(v.metric(name), v) for v in self.live]
        found = [(score, v) for score, v in scored if score is not None and math.isfinite(score)]
        pick = min if goal == "min" else max
        return pick(found, key=lambda pair: pair[0])[1] if found else None


def open_model_registry(connection: Connection, name: str) -> ModelRegistry:
    """Return the registry of one model. Raise RunnerError for an invalid name."""
    check_name(name)
    return ModelRegistry(ModelContainer(connection), name, in_parallel)


def split_reference(reference: str) -> tuple[str, str | None]:
    """Split `NAME`, `NAME@3`, `NAME@latest` or `NAME@alias` into name and version or alias."""
    name, at, wanted = reference.strip().partition("@")
    wanted = wanted.removeprefix("@")
    check_name(name)
    if not at:
        return name, None
    if re.fullmatch(r"v?[1-9][0-9]{0,8}", wanted):
        return name, wanted.removeprefix("v")
    if re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", wanted):
        return name, wanted
    raise RunnerError(
        "R-MODEL-REFERENCE",
        f"invalid model version {reference!r}",
        why="expected a number from 1, latest, best or an alias after @",
        fix=f"runner models ls {name}",
    )


def model_names(connection: Connection) -> list[str]:
    """Return all names, including those of removed models."""
    found = ModelContainer(connection).names()
    return [name for name in found if re.fullmatch(NAME_PATTERN, name)]


def list_models(connection: Connection) -> list[Model]:
    """Return all models with all their versions, by name.

    A model that cannot be read has one version 0, which has the `problem`.
    """

    def load(name: str) -> Model:
        try:
            return load_model(connection, name)
        except RunnerError as err:
            if err.code not in ("R-MODEL-BROKEN", "R-MODEL-FORMAT"):
                raise
            return Model(name, (ModelVersion(name, 0, None, problem=err.summary),))

    return in_parallel(load, model_names(connection))


def load_model(connection: Connection, name: str) -> Model:
    """Return a model, without versions if it does not exist; damaged versions have `problem`."""
    registry = open_model_registry(connection, name)
    found = registry.summaries()
    aliases = registry.aliases()
    plain = Model(name, tuple(_version(name, n, entry) for n, entry in sorted(found.items())))
    own = {"latest": plain.latest, "best": plain.best}
    named = aliases | {alias: v.version for alias, v in own.items() if v is not None}
    return Model(name, tuple(_with_aliases(version, named) for version in plain.versions))


def _version(name: str, number: int, entry: ModelDocument | ModelError) -> ModelVersion:
    if isinstance(entry, ModelError):
        return ModelVersion(name, number, None, problem=entry.summary)
    return ModelVersion(name, number, entry)


def _with_aliases(version: ModelVersion, named: dict[str, int]) -> ModelVersion:
    own = [alias for alias in ("latest", "best") if named.get(alias) == version.version]
    others = sorted(a for a, n in named.items() if n == version.version and a not in own)
    return replace(version, aliases=(*own, *others))


def existing_model(connection: Connection, name: str) -> Model:
    """Return an existing model. Raise RunnerError with the most similar name if there is none."""
    model = load_model(connection, name)
    if model.versions:
        return model
    names = [other for other in model_names(connection) if other != name]
    near = difflib.get_close_matches(name, names, n=1)
    raise RunnerError(
        "R-MODEL-UNKNOWN",
        f"model {name!r} not found",
        why=f"models: {', '.join(names[:10])}" if names else "no models are registered",
        fix=f"did you mean {near[0]}?" if near else "runner models register RUN NAME",
    )


def find_version(connection: Connection, reference: str, *, deleted: bool = False) -> ModelVersion:
    """Return the version of a reference, by default the latest; `deleted` allows removed ones."""
    name, wanted = split_reference(reference)
    model = existing_model(connection, name)
    version = _pick(model, wanted or "latest")
    if version.problem:
        raise _unreadable(version)
    if version.deleted and not deleted:
        raise _removed(version, model)
    document = open_model_registry(connection, name).load(version.version)
    whole = replace(version, document=_with_all_params(document or version.document))
    if whole.deleted and not deleted:  # removed in the meantime
        raise _removed(whole, model)
    return whole


def _with_all_params(document: ModelDocument | None) -> ModelDocument | None:
    """Return the document with all parameters of its run, those in the command included."""
    lineage = (document or {}).get("lineage")
    if document is None or not isinstance(lineage, dict):
        return document
    known = cast("ModelDocument", lineage)
    return {**document, "lineage": {**known, "params": read_parameters(known)}}


def _pick(model: Model, wanted: str) -> ModelVersion:
    if wanted in ("latest", "best"):
        top = model.versions[-1]
        if wanted == "latest" and top.problem:
            raise _unreadable(top)
        found = model.latest if wanted == "latest" else model.best
        if found is None:
            raise _nothing_left(model, wanted)
        return next(v for v in model.versions if v.version == found.version)
    number = int(wanted) if wanted.isdigit() else _alias(model, wanted)
    for version in model.versions:
        if version.version == number:
            return version
    newest = model.latest or model.versions[-1]
    raise RunnerError(
        "R-MODEL-VERSION",
        f"{model.name}@{number} not found",
        why=f"the newest is {newest}",
        fix=f"runner models ls {model.name}",
    )


def _alias(model: Model, alias: str) -> int:
    by_alias = {name: v.version for v in model.versions for name in v.aliases}
    if alias in by_alias:
        return by_alias[alias]
    known = sorted({*by_alias, "latest", "best"})
    near = difflib.get_close_matches(alias, known, n=1)
    raise RunnerError(
        "R-MODEL-ALIAS-UNKNOWN",
        f"{model.name} has no alias {alias!r}",
        why=f"it has: {', '.join(known)}",
        fix=f"{model.name}@{near[0]}"
        if near
        else f"runner models alias {model.name}@latest {alias}",
    )


def _unreadable(version: ModelVersion) -> RunnerError:
    return RunnerError(
        "R-MODEL-UNREADABLE",
        f"{version} cannot be read",
        why=version.problem,
        fix=f"run `pip install --upgrade azure-batch-runner`, or choose another version with "
        f"`runner models ls {version.name}`",
    )


def _removed(version: ModelVersion, model: Model) -> RunnerError:
    latest = model.latest
    return RunnerError(
        "R-MODEL-DELETED",
        f"{version} was deleted",
        why=f"at {(version.document or {}).get('deleted')}",
        fix=f"use {latest}" if latest else f"train {version.name} again",
    )


def _nothing_left(model: Model, wanted: str) -> RunnerError:
    if wanted == "best" and model.latest:
        metric = model.latest.primary_metric
        why = f"no version has a finite {metric}" if metric else f"no metric ranks {model.latest}"
        return RunnerError(
            "R-MODEL-BEST",
            f"{model.name} has no best version",
            why=why,
            fix=f"use a version; `runner models ls {model.name}` lists them",
        )
    return RunnerError(
        "R-MODEL-DELETED",
        f"all versions of {model.name} were deleted",
        why=f"the last was {model.name}@{model.versions[-1].version}",
        fix=f"runner models ls {model.name} --all",
    )


def set_alias(
    connection: Connection, reference: str, alias: str
) -> tuple[ModelVersion, int | None]:
    """Point an alias at a version. Return the version and the number it pointed at before."""
    alias = alias.removeprefix("@")
    check_alias(alias)
    version = find_version(connection, reference)
    before = open_model_registry(connection, version.name).set_alias(alias, version.version)
    return version, before


def drop_alias(connection: Connection, reference: str, alias: str) -> int:
    """Remove an alias, which must point at the version of the reference. Return the number."""
    alias = alias.removeprefix("@")
    name, wanted = split_reference(reference)
    model = existing_model(connection, name)
    number = _pick(model, wanted).version if wanted else None
    registry = open_model_registry(connection, model.name)
    set_ones = registry.aliases()
    if number is not None and set_ones.get(alias, number) != number:
        raise RunnerError(
            "R-MODEL-ALIAS-MOVED",
            f"{name}@{alias} is {name}@{set_ones[alias]}, not {name}@{number}",
            why="the alias was moved, and was not removed",
            fix=f"runner models alias {name} {alias} --unalias",
        )
    if alias in set_ones:
        registry.set_alias(alias, None)
        return set_ones[alias]
    raise RunnerError(
        "R-MODEL-ALIAS-UNKNOWN",
        f"{model.name} has no alias {alias!r} to remove",
        why=f"aliases: {', '.join(sorted(set_ones)) or 'none'}",
        fix=f"runner models ls {model.name}",
    )
