"""The specification of a run: `run.json`, which the client writes and the agent executes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from runner.protocol.encoding import parse_json

FORMAT = 1
# What a document of any kind may raise; an infinite number overflows, a deep list recurs.
_UNEXPECTED = (
    re.error,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


class RunSpecError(Exception):
    """run.json cannot be run by this agent; the message says why."""


@dataclass(frozen=True)
class CheckpointRule:
    """How often checkpoints are committed, how many are kept, and how large the folder may be."""

    interval_s: float = 60.0
    keep: int = 3
    max_bytes: int = 10 << 30


@dataclass(frozen=True)
class ResumeFrom:
    """Where a run without checkpoints of its own begins; `checkpoint` None is the newest."""

    run_id: str
    checkpoint: int | None


@dataclass(frozen=True)
class RunSpec:
    """One run. `data_prefix` is None when the run has no data set."""

    run_id: str
    code_sha256: str
    command: tuple[str, ...]
    params: Mapping[str, Any]
    env: Mapping[str, str]
    requirements_file: str | None
    constraints: tuple[str, ...]  # `name==version` of every package; empty leaves them open
    python: str | None
    data_prefix: str | None
    data_files: tuple[DataFile, ...]
    outputs: tuple[str, ...]
    named_outputs: Mapping[str, str]
    metric_patterns: Mapping[str, str]
    timeout_s: float | None
    retries: int
    inputs: Mapping[str, Mapping[str, Any]]
    checkpoints: CheckpointRule | None = None
    resume_from: ResumeFrom | None = None
    secrets: frozenset[str] = frozenset()
    image: str | None = None
    nodes: int = 1


def parse_run_spec(body: bytes) -> RunSpec:
    """Read run.json; unknown fields are ignored. Raises RunSpecError."""
    try:
        raw: dict[str, Any] = parse_json(body)
        found = int(raw["format"])
        if found > FORMAT:
            raise RunSpecError(f"run.json has format {found}; this agent knows up to {FORMAT}")
        spec = _to_spec(raw)
        for pattern in spec.metric_patterns.values():
            re.compile(pattern)
    except _UNEXPECTED as err:
        raise RunSpecError(f"run.json is not as expected: {type(err).__name__}: {err}") from err
    if not spec.command:
        raise RunSpecError("run.json has no command")
    return spec


def _to_spec(raw: dict[str, Any]) -> RunSpec:
    data: dict[str, Any] = raw.get("data") or {}
    requirements: dict[str, Any] = raw.get("requirements") or {}
    metrics: dict[str, Any] = raw.get("metrics") or {}
    env: dict[str, Any] = raw.get("env") or {}
    image: dict[str, Any] = raw.get("image") or {}
    resources: dict[str, Any] = raw.get("resources") or {}
    return RunSpec(
        run_id=str(raw["run_id"]),
        code_sha256=str(raw["code"]["sha256"]),
        command=tuple(str(word) for word in raw["command"]),
        params=dict(raw.get("params") or {}),
        env={str(key): str(value) for key, value in env.items()},
        requirements_file=requirements.get("file"),
        constraints=tuple(requirements.get("constraints") or ()),
        python=raw.get("python"),
        data_prefix=data.get("prefix"),
        data_files=tuple(parse_data_files(data.get("files") or [])),
        outputs=tuple(raw.get("outputs") or ()),
        named_outputs=_variables(raw.get("named_outputs") or {}),
        metric_patterns=dict(metrics.get("patterns") or {}),
        timeout_s=raw.get("timeout_s"),
        retries=int(raw.get("retries") or 0),
        inputs=dict(raw.get("inputs") or {}),
        checkpoints=_rule(raw.get("checkpoints", {})),
        resume_from=_resume_from(raw.get("resume_from")),
        secrets=frozenset(raw.get("secrets") or ()),
        image=image.get("name"),
        nodes=int(resources.get("nodes") or 1),
    )


def _variables(raw: dict[str, Any]) -> dict[str, str]:
    """Folders of the outputs by variable; none leads out of them or takes another's name."""
    for variable, path in raw.items():
        parts = PurePosixPath(str(path)).parts
        if not variable.startswith("RUNNER_OUTPUT_") or variable == "RUNNER_OUTPUT_DIR":
            raise ValueError(f"{variable} is no variable of an output")
        if not parts or parts[0] == "/" or ".." in parts:
            raise ValueError(f"{path!r} leaves the outputs")
    return {variable: str(path) for variable, path in raw.items()}


def _rule(raw: dict[str, Any] | None) -> CheckpointRule | None:
    """A run of before there were checkpoints has them; null switches them off."""
    if raw is None:
        return None
    usual = CheckpointRule()
    return CheckpointRule(
        interval_s=max(float(raw.get("interval_s", usual.interval_s)), 0.1),
        keep=max(int(raw.get("keep", usual.keep)), 1),
        max_bytes=int(raw.get("max_bytes", usual.max_bytes)),
    )


def _resume_from(raw: dict[str, Any] | None) -> ResumeFrom | None:
    if raw is None:
        return None
    run_id, number = str(raw["run_id"]), raw.get("checkpoint")
    if not run_id or "/" in run_id or run_id in (".", ".."):
        raise ValueError(f"{run_id!r} is no run id")
    return ResumeFrom(run_id, None if number is None else int(number))


@dataclass(frozen=True)
class DataFile:
    """One file of the data set; what is None is not known, and not checked.

    `etag` is of the version that is meant, `md5` is in base64 as storage has it.
    """

    name: str
    size_bytes: int | None
    sha256: str | None
    etag: str | None = None
    md5: str | None = None


def parse_data_files(raw: Sequence[dict[str, Any]]) -> list[DataFile]:
    """The files as run.json lists them."""
    return [
        DataFile(str(f["name"]), int(f["size_bytes"]), f.get("sha256"), f.get("etag"), f.get("md5"))
        for f in raw
    ]
