"""Repeat a run with the same packages, and compare the models: `runner reproduce`."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer
from runner.core.planning.repeat import Repetition, choose_same_pool
from runner.core.planning.reproduction import (
    Drift,
    content_difference,
    environment_drift,
    plan_drift,
    spec_drift,
)
from runner.core.progress import OnProgress
from runner.flows.runs.documents import load_result, runs_container
from runner.flows.submit.agent_archive import build_agent
from runner.flows.submit.consent import NOTHING, Consent
from runner.flows.submit.lookups import resolve_input
from runner.flows.submit.pipeline import RepeatRequest
from runner.flows.submit.repeat import check_parts, require_complete_spec, submit_again
from runner.protocol.codec import parse_json
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths
from runner.protocol.results import OutputFile, RunResult
from runner.protocol.run_spec import RunSpec

FileVerdict = Literal["same", "same content", "differs", "missing", "new"]
_LARGEST_BYTES = 4 << 30  # maximum size of a file that is downloaded for a comparison
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
# Files that describe a model; they differ in dates, durations and paths.
_TEXTS = frozenset(
    (*(".json", ".jsonl", ".txt", ".log", ".csv", ".tsv", ".md", ".html", ".xml", ".yaml"),
     *(".yml", ".svg", ".png", ".jpg", ".pdf"))
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileComparison:
    """An output of two runs; files of the model (`model`) decide the result of the comparison."""

    path: str
    verdict: FileVerdict
    model: bool
    detail: str = ""

    @property
    def same(self) -> bool:
        """True if the files have the same content."""
        return self.verdict in ("same", "same content")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two runs; `metrics` has differing last values as (original, repeated)."""

    original: str
    repeated: str
    files: tuple[FileComparison, ...]
    metrics: Mapping[str, tuple[float | None, float | None]]
    drift: tuple[Drift, ...]

    @property
    def same_model(self) -> bool:
        """True if all files of the model are the same; False if there are none."""
        models = [file for file in self.files if file.model]
        return bool(models) and all(file.same for file in models)


def find_drift(connection: Connection, spec: RunSpec, pool: str | None) -> tuple[Drift, ...]:
    """Return the known differences to the original run before the submission.

    Raises:
        RunnerError: code, data or result of the run is missing, so it cannot be reproduced.
    """
    _succeeded(runs_container(connection), spec)
    with require_complete_spec(spec):
        check_parts(connection, spec)
    place = choose_same_pool(pool, spec, connection.outputs)
    drift = plan_drift(spec, place, hashlib.sha256(build_agent()).hexdigest())
    drift += _input_drift(connection, spec)
    if spec.requirements_file and load_environment(connection, spec) is None:
        drift.append(Drift("packages", "versions not recorded", "resolved anew"))
    return tuple(drift)


def _input_drift(connection: Connection, spec: RunSpec) -> list[Drift]:
    """Return external inputs that have changed, or whose content was not recorded."""
    drift: list[Drift] = []
    for name, was in spec.inputs.items():
        if was.get("kind") == "blob":
            if _listing(connection, name, was) != was.get("manifest"):
                drift.append(
                    Drift(f"input {name}", "as listed before", "changed: the run will fail")
                )
        elif was.get("kind") == "share" or (was.get("kind") == "url" and not was.get("sha256")):
            drift.append(Drift(f"input {name}", "content not recorded", "the present content"))
    return drift


def _listing(connection: Connection, name: str, was: Mapping[str, Any]) -> str | None:
    """Return the hash of the present blobs of a `blob` input, or None if there are none."""
    try:
        now = resolve_input(connection, name, {"kind": "blob", "blob": was["blob"]})
    except RunnerError as err:
        if err.code != "R-INPUT":
            raise
        return None
    return str(now["manifest"])


def reproduce_run(
    connection: Connection,
    spec: RunSpec,
    pool: str | None,
    on_progress: OnProgress,
    consent: Consent = NOTHING,
) -> RunSpec:
    """Submit the run again with the same code, data, parameters and package versions."""
    environment = load_environment(connection, spec)
    constraints = None
    if environment is not None:
        constraints = _pins(environment.get("packages") or {})
    asked = Repetition("reproduce", constraints=constraints)
    request = RepeatRequest(spec, asked, pool, consent=consent)
    return submit_again(connection, request, on_progress)


def _pins(packages: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the versions as constraints, and leave out anything else.

    The node of a run writes them, and as a constraint uv also takes the address of a package.
    """
    pins = (f"{name}=={version}" for name, version in packages.items())
    return tuple(pin for pin in pins if _PIN.fullmatch(pin))


def load_environment(connection: Connection, spec: RunSpec) -> dict[str, Any] | None:
    """Return the environment of the attempt with the result, or None if not recorded."""
    container = runs_container(connection)
    result = load_result(container, spec.run_id)
    number = result.attempt if result and result.attempt else 1
    content = container.read(RunPaths(spec.run_id).attempt_environment(number))
    try:
        raw: object = parse_json(content or b"null")
    except ValueError:
        return None
    if not isinstance(raw, dict):
        return None
    environment = cast("dict[str, Any]", raw)
    if not isinstance(environment.get("packages", {}), dict):  # a script of the run may write it
        return {**environment, "packages": {}}
    return environment


def compare_runs(connection: Connection, original: RunSpec, repeated: RunSpec) -> Comparison:
    """Compare outputs, metrics and environments. Raise RunnerError unless both runs succeeded."""
    container = runs_container(connection)
    was, now = _succeeded(container, original), _succeeded(container, repeated)
    files = _Files(container, original, was, repeated, now)
    names = dict.fromkeys([*was.metrics, *now.metrics])
    pairs = {name: (was.metrics.get(name), now.metrics.get(name)) for name in names}
    environments = [load_environment(connection, each) or {} for each in (original, repeated)]
    return Comparison(
        original.run_id,
        repeated.run_id,
        files.compare(),
        {name: pair for name, pair in pairs.items() if repr(pair[0]) != repr(pair[1])},
        (*spec_drift(original, repeated), *environment_drift(*environments)),
    )


class _Files:
    """Compares the outputs of two runs by hash, and the content of those that differ."""

    def __init__(
        self,
        container: BlobContainer,
        original: RunSpec,
        was: RunResult,
        repeated: RunSpec,
        now: RunResult,
    ) -> None:
        self._container = container
        self._prefixes = (
            RunPaths(original.run_id).root + was.output,
            RunPaths(repeated.run_id).root + now.output,
        )
        self._before = {file.path: file for file in was.outputs}
        self._after = {file.path: file for file in now.outputs}
        self._model = _model_files(original, [*self._before, *self._after])

    def compare(self) -> tuple[FileComparison, ...]:
        """Return the comparison of all outputs of either run, in order."""
        return tuple(self._compare_file(path) for path in {**self._before, **self._after})

    def _compare_file(self, path: str) -> FileComparison:
        before, after = self._before.get(path), self._after.get(path)
        model = path in self._model
        if before is None or after is None:
            return FileComparison(path, "missing" if after is None else "new", model)
        if before.sha256 == after.sha256:
            return FileComparison(path, "same", model)
        detail = self._look_into(before, after)
        return FileComparison(path, "differs" if detail else "same content", model, detail or "")

    def _look_into(self, before: OutputFile, after: OutputFile) -> str | None:
        if max(before.size_bytes, after.size_bytes) > _LARGEST_BYTES:
            return "bytes"
        with tempfile.TemporaryDirectory(prefix="runner-compare-") as folder:
            pair = [
                Path(folder, side, f"file{PurePosixPath(before.path).suffix}")
                for side in ("was", "now")
            ]
            for prefix, target in zip(self._prefixes, pair, strict=True):
                self._container.download(
                    prefix + before.path, target, lambda _: None, lambda _: None
                )
            return content_difference(*pair)


def _model_files(spec: RunSpec, paths: list[str]) -> frozenset[str]:
    """Return the files of the model: those of the recipe's model, else binary files, else all."""
    pattern = spec.model.path if spec.model else None
    if pattern:
        named = {path for path in paths if fnmatchcase(path, pattern) or path.startswith(pattern)}
        if named:
            return frozenset(named)
    binary = {path for path in paths if PurePosixPath(path).suffix.lower() not in _TEXTS}
    return frozenset(binary or paths)


def _succeeded(container: BlobContainer, spec: RunSpec) -> RunResult:
    result = load_result(container, spec.run_id)
    if result is not None and result.status == "succeeded":
        return result
    retry = "" if result is None else f", or `runner retry {spec.run_id}` to repeat it"
    raise RunnerError(
        "R-REPRODUCE-OUTCOME",
        f"{spec.run_id} has no result to compare with",
        why="it has not ended" if result is None else f"it ended as {result.status}",
        fix=f"run `runner show {spec.run_id}`{retry}",
    )
