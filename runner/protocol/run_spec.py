"""The run specification, `run.json`: the client writes it, and client and agent read it.

`RecipeSpec` is the part that `train.yaml` decides, `RunSpec` the whole document. `from_json`
accepts missing keys, because an entry of the index has only a few. `parse_run` checks the keys that
the client needs, and `parse_run_spec` those that the agent needs. Docs: docs/run-format.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Any, Literal, cast, get_args

from runner.protocol.commands import PARAMS_AS, ParamsAs, read_parameters
from runner.protocol.encoding import parse_json
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.metrics import ExpectedRange, Goal
from runner.protocol.models import ModelRequest
from runner.protocol.paths import check_batch_id, code_blob, is_run_id
from runner.protocol.task import NOTEBOOK_MODULE

FORMAT = 1  # of run.json, result.json and groups/<id>.json
JsonObject = Mapping[str, Any]
Capacity = Literal["spot", "dedicated", "spot-then-dedicated"]
# The programs that start the command on the nodes; docs/guides/distributed.md has a table.
Launcher = Literal["python", "torchrun", "mpi", "horovod", "tensorflow", "jax", "chainermn", "cntk"]
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)
# These start all processes with `mpirun` on rank 0.
MPI_LAUNCHERS: frozenset[str] = frozenset({"mpi", "horovod", "chainermn", "cntk"})
# These start one process for each GPU.
PROCESS_LAUNCHERS: frozenset[str] = MPI_LAUNCHERS | {"torchrun"}
# The errors that reading an invalid document may raise.
DAMAGED = (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError)
WORKSPACE = "dev"  # name of the recipe of `runner dev`
_UNKNOWN_TIME = datetime.fromtimestamp(0, timezone.utc)  # noqa: UP017 - the agent runs on 3.10
_KEYS = (
    "format", "run_id", "experiment", "created", "recipe", "code", "agent", "command", "params",
    "env", "requirements", "python", "data", "inputs", "secrets", "secret_refs", "outputs",
    "named_outputs", "metrics", "model", "checkpoints", "timeout_s", "retries", "resources",
    "priority", "after", "group", "batch", "image", "price", "origin",
)  # fmt: skip
_CLIENT_NEEDS = (
    "run_id", "experiment", "created", "params", "recipe.name", "batch.pool", "batch.spot",
    "batch.job_id", "batch.task_id",
)  # fmt: skip


class RunSpecError(Exception):
    """The agent cannot execute a `run.json`; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Minimum resources of a node; None and () accept any. `memory_bytes` is per node."""

    gpus: int | None = None
    memory_bytes: int | None = None
    vm_sizes: tuple[str, ...] = ()
    nodes: int = 1
    capacity: Capacity | None = None

    def to_json(self) -> dict[str, Any]:
        """Return `resources` of run.json."""
        return asdict(self) | {"vm_sizes": list(self.vm_sizes)}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Resources:
        """Read `resources` of run.json."""
        if not raw:
            return NO_RESOURCES
        return cls(
            gpus=raw.get("gpus"),
            memory_bytes=raw.get("memory_bytes"),
            vm_sizes=tuple(raw.get("vm_sizes") or ()),
            nodes=int(raw.get("nodes") or 1),
            capacity=raw.get("capacity"),
        )


NO_RESOURCES = Resources()


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """How often checkpoints are committed, how many are kept, and their maximum size.

    With `automatic`, hooks save checkpoints in scripts that save none. With `sharded`, every rank
    saves its part of the state.
    """

    interval_s: float = 60
    keep: int = 3
    max_bytes: int = 10 << 30
    automatic: bool = True
    sharded: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return `checkpoints` of run.json."""
        found = asdict(self)
        return found if self.sharded else {k: v for k, v in found.items() if k != "sharded"}

    @classmethod
    def from_json(cls, raw: JsonObject) -> CheckpointRule:
        """Read `checkpoints` of run.json; a missing key has its default."""
        default = _USUAL_CHECKPOINTS
        if not raw:
            return default
        return cls(
            interval_s=max(float(raw.get("interval_s", default.interval_s)), 0.1),
            keep=max(int(raw.get("keep", default.keep)), 1),
            max_bytes=int(raw.get("max_bytes", default.max_bytes)),
            automatic=bool(raw.get("automatic", default.automatic)),
            sharded=bool(raw.get("sharded", default.sharded)),
        )


_USUAL_CHECKPOINTS = CheckpointRule()


@dataclass(frozen=True, slots=True)
class KeepRule:
    """The rule for files that a script writes outside of `$RUNNER_OUTPUT_DIR`: which are kept.

    Attributes:
        max_bytes: Maximum total size; the largest files are left out first.
        paths: Globs relative to the script's folder; matching files are kept at any size.
    """

    max_bytes: int = 10 << 30
    paths: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return `keep` of run.json."""
        return {"max_bytes": self.max_bytes, "paths": list(self.paths)}

    @classmethod
    def from_json(cls, raw: JsonObject) -> KeepRule:
        """Read `keep` of run.json; a missing key has its default."""
        return cls(int(raw.get("max_bytes", cls().max_bytes)), tuple(raw.get("paths") or ()))


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A secret variable of the script, with its source: a client variable or a key vault."""

    variable: str
    env: str | None = None
    keyvault: str | None = None

    def to_json(self) -> dict[str, str]:
        """Return the reference as in train.yaml and run.json."""
        return {"env": self.env} if self.env else {"keyvault": self.keyvault or ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSpec:
    """The part of a run that `train.yaml` decides, as `run.json` stores it.

    Attributes:
        requirements_file: Path in the code archive.
        packages: Additional packages, unless the requirements list them.
        live_outputs: Files below `$RUNNER_OUTPUT_DIR` that are stored while the script runs.
        secrets: References to secrets. In older documents, they have no source.
        named_outputs: Folders below the outputs, by their variable.
        metric_patterns: Regular expressions over standard output, by metric.
        expect: Expected ranges of metrics; a run outside of a range warns or fails.
        checkpoints: None switches them off.
        keep: None keeps `$RUNNER_OUTPUT_DIR` only.
        image: Reference of the container image that the script runs in.
        prepare: Shell commands that run before the script, once per node and job if possible.
        max_cost_micros: Cap of the costs of the run's job in micro-dollars.
        processes_per_node: For launchers that start several processes. None means one per GPU.
        hang_timeout_s: Time without any progress after which the attempt fails; None is unlimited.
        params_as: How the script gets its parameters.
    """

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    requirements_file: str | None = None
    packages: tuple[str, ...] = ()
    live_outputs: tuple[str, ...] = ()
    python: str | None = None
    secrets: tuple[SecretRef, ...] = ()
    outputs: tuple[str, ...] = ()
    named_outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    metric_patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    primary_metric: str | None = None
    goal: Goal = "max"
    expect: tuple[ExpectedRange, ...] = ()
    model: ModelRequest | None = None
    checkpoints: CheckpointRule | None = CheckpointRule()
    keep: KeepRule | None = KeepRule()
    timeout_s: float | None = None
    retries: int = 0
    resources: Resources = NO_RESOURCES
    priority: int = 0
    image: str | None = None
    prepare: str | None = None
    max_cost_micros: int | None = None
    launcher: Launcher = "python"
    processes_per_node: int | None = None
    hang_timeout_s: float | None = None
    params_as: ParamsAs = "flags"

    def to_json(self) -> dict[str, Any]:
        """Return the keys of run.json that the recipe decides."""
        return {
            "env": dict(self.env),
            "requirements": {"file": self.requirements_file} if self.requirements_file else None,
            "python": self.python,
            "secrets": [ref.variable for ref in self.secrets],
            "secret_refs": {ref.variable: ref.to_json() for ref in self.secrets},
            "outputs": list(self.outputs),
            "named_outputs": dict(self.named_outputs),
            "metrics": {
                "patterns": dict(self.metric_patterns),
                "primary": self.primary_metric,
                "goal": self.goal,
            },
            "model": self.model.to_json() if self.model else None,
            "checkpoints": self.checkpoints.to_json() if self.checkpoints else None,
            **self._keep_json(),
            **({"packages": list(self.packages)} if self.packages else {}),
            **({"live_outputs": list(self.live_outputs)} if self.live_outputs else {}),
            **({"expect": {e.metric: e.to_json() for e in self.expect}} if self.expect else {}),
            **({"prepare": self.prepare} if self.prepare else {}),
            **({"max_cost_micros": self.max_cost_micros} if self.max_cost_micros else {}),
            **self._launch_json(),
            "timeout_s": self.timeout_s,
            "retries": self.retries,
            "resources": self.resources.to_json(),
            "priority": self.priority,
            "image": {"name": self.image, "digest": image_digest(self.image)}
            if self.image
            else None,
        }

    def _launch_json(self) -> dict[str, Any]:
        """Return the keys about processes that differ from the defaults."""
        found = {
            "launcher": None if self.launcher == "python" else self.launcher,
            "processes_per_node": self.processes_per_node,
            "hang_timeout_s": self.hang_timeout_s,
            "params_as": None if self.params_as == "flags" else self.params_as,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _keep_json(self) -> dict[str, Any]:
        """Return `keep` unless it is the default, which older documents imply."""
        if self.keep == KeepRule():
            return {}
        return {"keep": self.keep.to_json() if self.keep else None}

    @classmethod
    def from_json(cls, raw: JsonObject) -> RecipeSpec:
        """Read these keys. A missing key has its default."""
        return RecipeSpec(**RecipeSpec._values(raw))

    @staticmethod
    def _values(raw: JsonObject) -> dict[str, Any]:
        """Return the values of the fields of this class."""
        metrics, checkpoints = _part(raw, "metrics"), raw.get("checkpoints", {})
        keep = raw.get("keep", {})
        refs: dict[str, Any] = {str(name): {} for name in raw.get("secrets") or ()}
        refs |= _part(raw, "secret_refs")
        return {
            "env": {str(name): str(value) for name, value in _part(raw, "env").items()},
            "requirements_file": _part(raw, "requirements").get("file"),
            "packages": tuple(str(name) for name in raw.get("packages") or ()),
            "live_outputs": tuple(str(path) for path in raw.get("live_outputs") or ()),
            "python": raw.get("python"),
            "secrets": tuple(
                SecretRef(name, ref.get("env"), ref.get("keyvault")) for name, ref in refs.items()
            ),
            "outputs": tuple(raw.get("outputs") or ()),
            "named_outputs": {v: str(path) for v, path in _part(raw, "named_outputs").items()},
            "metric_patterns": dict(metrics.get("patterns") or {}),
            "primary_metric": metrics.get("primary"),
            "goal": "min" if metrics.get("goal") == "min" else "max",
            "expect": tuple(
                ExpectedRange.from_json(name, each) for name, each in _part(raw, "expect").items()
            ),
            "model": ModelRequest.from_json(raw["model"]) if raw.get("model") else None,
            "checkpoints": None if checkpoints is None else CheckpointRule.from_json(checkpoints),
            "keep": None if keep is None else KeepRule.from_json(keep),
            "timeout_s": raw.get("timeout_s"),
            "retries": int(raw.get("retries") or 0),
            "resources": Resources.from_json(_part(raw, "resources")),
            "priority": int(raw.get("priority") or 0),
            "image": _part(raw, "image").get("name"),
            "prepare": raw.get("prepare"),
            "max_cost_micros": raw.get("max_cost_micros"),
            "launcher": raw.get("launcher") or "python",
            "processes_per_node": raw.get("processes_per_node"),
            "hang_timeout_s": raw.get("hang_timeout_s"),
            "params_as": raw.get("params_as") or "flags",
        }

    @property
    def secret_names(self) -> frozenset[str]:
        """Variables whose values are secret."""
        return frozenset(ref.variable for ref in self.secrets)

    @property
    def goals(self) -> dict[str, Goal]:
        """Return the goal of the primary metric by its name; empty without one."""
        return {self.primary_metric: self.goal} if self.primary_metric else {}

    @property
    def nodes(self) -> int:
        """The number of nodes that the run uses at the same time."""
        return self.resources.nodes

    def recipe_fields(self) -> dict[str, Any]:
        """Return the values of the fields of this class, without those of a derived class."""
        return {each.name: getattr(self, each.name) for each in fields(RecipeSpec)}


def image_digest(name: str) -> str | None:
    """Return `sha256:...` of an image reference, or None for a tag, which can move."""
    return name.partition("@")[2] or None


@dataclass(frozen=True, slots=True)
class CodeRef:
    """The recipe's files as one content-addressed archive.

    `files` is the number of files; 0 if the reference was read from blob storage.
    """

    sha256: str = ""
    size_bytes: int = 0
    files: int = field(default=0, compare=False)
    git_revision: str | None = None
    git_dirty: bool = False

    @property
    def blob(self) -> str:
        """Name in the `runs` container."""
        return code_blob(self.sha256)

    def to_json(self) -> dict[str, Any]:
        """Return `code` of run.json."""
        return {
            "sha256": self.sha256,
            "blob": self.blob,
            "size_bytes": self.size_bytes,
            "git_revision": self.git_revision,
            "git_dirty": self.git_dirty,
        }

    @classmethod
    def from_json(cls, raw: JsonObject) -> CodeRef:
        """Read `code` of run.json."""
        return cls(
            sha256=str(raw.get("sha256") or ""),
            size_bytes=int(raw.get("size_bytes") or 0),
            git_revision=raw.get("git_revision"),
            git_dirty=bool(raw.get("git_dirty")),
        )


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a data set or an input. A value that is None is unknown, and is not checked.

    `etag` is the ETag of the blob. `md5` is base64, as in the storage API.
    """

    name: str
    size_bytes: int | None
    sha256: str | None
    etag: str | None = None
    md5: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the file as `data` of run.json lists it."""
        return {"name": self.name, "size_bytes": self.size_bytes, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class DataRef:
    """The data set of a run; `prefix` is its folder in the `data` container."""

    name: str
    source: str
    notice: str | None
    files: tuple[DataFile, ...]
    prefix: str

    @classmethod
    def of_files(
        cls, name: str, source: str, notice: str | None, files: Iterable[tuple[str, int, str]]
    ) -> DataRef:
        """Return the reference to files given as (name, size in bytes, SHA-256)."""
        listed = tuple(files)
        prefix = data_prefix(name, listed)
        return cls(name, source, notice, tuple(DataFile(*each) for each in listed), prefix)

    def to_json(self) -> dict[str, Any]:
        """Return `data` of run.json."""
        return {
            "name": self.name,
            "source": self.source,
            "notice": self.notice,
            "prefix": self.prefix,
            "files": [file.to_json() for file in self.files],
        }

    @classmethod
    def from_json(cls, raw: JsonObject) -> DataRef:
        """Read `data` of run.json."""
        return cls(
            name=str(raw.get("name") or ""),
            source=str(raw.get("source") or ""),
            notice=raw.get("notice"),
            files=tuple(parse_data_files(raw.get("files") or ())),
            prefix=str(raw.get("prefix") or ""),
        )


def data_prefix(folder: str, files: Iterable[tuple[str, int, str]]) -> str:
    """Return the prefix of files given as (name, size in bytes, SHA-256).

    It contains a hash of the list, so equal files have the same prefix.
    """
    manifest = json.dumps(sorted(files), separators=(",", ":"))
    return f"{folder}/{hashlib.sha256(manifest.encode()).hexdigest()}/"


def parse_data_files(raw: Sequence[JsonObject]) -> list[DataFile]:
    """Read a list of files in run.json."""
    return [
        DataFile(str(f["name"]), int(f["size_bytes"]), f.get("sha256"), f.get("etag"), f.get("md5"))
        for f in raw
    ]


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """The checkpoint of another run that a new run starts from.

    `checkpoint` is its number, or None for the newest one. `exact` is True if the user chose it:
    then no other one takes its place.
    """

    run_id: str
    checkpoint: int | None
    exact: bool = False

    @classmethod
    def from_json(cls, raw: JsonObject) -> ResumeFrom:
        """Read `resume_from` of run.json. Raise ValueError if it names no run."""
        run_id, number = str(raw["run_id"]), raw.get("checkpoint")
        if not run_id or "/" in run_id or run_id in (".", ".."):
            raise ValueError(f"{run_id!r} is not a run ID")
        exact = number is not None and raw.get("exact") is True
        return cls(run_id, None if number is None else int(number), exact)

    def to_json(self) -> dict[str, Any]:
        """Return `resume_from` of run.json."""
        exact = {"exact": True} if self.exact else {}
        return {"run_id": self.run_id, "checkpoint": self.checkpoint, **exact}


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The run that this run repeats. `kind` is retry, resume or reproduce."""

    kind: str
    run_id: str


@dataclass(frozen=True, slots=True)
class PoolStay:
    """A pool that the run's job was in before. Attempts on its nodes have its VM size and price.

    `requeued` is the number of the attempt that the move ended, which does not count as evicted, or
    0 if none was running.
    """

    pool: str
    vm_size: str | None
    spot: bool
    requeued: int = 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> PoolStay:
        """Read an entry of `batch.moved_from`."""
        requeued = int(raw.get("requeued") or 0)
        return cls(str(raw["pool"]), raw.get("vm_size"), bool(raw.get("spot")), requeued)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec(RecipeSpec):
    """One run: the document `run.json`.

    Attributes:
        recipe: Name of the recipe, with its `description` and `source`.
        agent_sha256: Hash of the archive with the node agent.
        constraints: `name==version` of every package; empty leaves them open.
        inputs: Named inputs, as docs/run-format.md describes them.
        after: Runs that must succeed before it.
        moved_from: Pools that the run's job was in before, oldest first.
        job_limit_s: Time limit of the job, from its creation, if the costs of the run have a cap.
        schedule: Name of the schedule that started the run.
        rehearsal: Evictions that the emulator carries out. `spec` is the text of the user, and
            `evictions` has `[after, notice, away]` in seconds for each eviction.
        trial: `TrialSpec` as a document, if the run is a trial of a sweep.
        template: What `place_parameters` makes `command` from, if a word of it names a parameter.
        raw: The document that was read. `to_json` keeps its order and its unknown keys.
    """

    run_id: str
    experiment: str = ""
    created: datetime = _UNKNOWN_TIME
    recipe: str = ""
    description: str = ""
    source: str = "folder"
    code: CodeRef = CodeRef()
    agent_sha256: str = ""
    command: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    requirements_sha256: str | None = None
    constraints: tuple[str, ...] = ()
    data: DataRef | None = None
    inputs: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    after: tuple[str, ...] = ()
    group: str | None = None
    account: str | None = None
    pool: str = ""
    vm_size: str | None = None
    spot: bool = False
    moved_from: tuple[PoolStay, ...] = ()
    job_id: str = ""
    task_id: str = ""
    job_limit_s: int | None = None
    origin: RunOrigin | None = None
    schedule: str | None = None
    resume_from: ResumeFrom | None = None
    rehearsal: JsonObject | None = None
    trial: JsonObject | None = None
    template: tuple[str | None, ...] = ()
    raw: JsonObject = field(default_factory=dict[str, Any], compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return run.json. In a document that was read, only changed values are replaced."""
        document = self._document()
        if not self.raw:
            return document
        return _updated(self.raw, RunSpec.from_json(self.raw)._document(), document)

    def _document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            **RecipeSpec.to_json(self),
            "format": FORMAT,
            "run_id": self.run_id,
            "experiment": self.experiment,
            "created": self.created.isoformat(),
            "recipe": {"name": self.recipe, "description": self.description, "source": self.source},
            "code": self.code.to_json(),
            "agent": {"sha256": self.agent_sha256, "blob": code_blob(self.agent_sha256)},
            "command": list(self.command),
            "params": dict(self.params),
            "requirements": self._requirements(),
            "data": self.data.to_json() if self.data else None,
            "inputs": dict(self.inputs),
            "after": list(self.after),
            "group": self.group,
            "batch": {
                "account": self.account,
                "pool": self.pool,
                "vm_size": self.vm_size,
                "spot": self.spot,
                "job_id": self.job_id,
                "task_id": self.task_id,
                **({"moved_from": list(map(asdict, self.moved_from))} if self.moved_from else {}),
                **({"job_limit_s": self.job_limit_s} if self.job_limit_s else {}),
            },
            "price": None,
            "origin": asdict(self.origin) if self.origin else None,
        }
        if self.schedule is not None or "schedule" in self.raw:
            found["schedule"] = self.schedule
        if self.rehearsal is not None or "rehearsal" in self.raw:
            found["rehearsal"] = dict(self.rehearsal) if self.rehearsal else None
        if self.trial is not None or "trial" in self.raw:
            found["trial"] = dict(self.trial) if self.trial else None
        if self.template or "template" in self.raw:
            found["template"] = list(self.template)
        repeated = self.origin is not None and self.origin.kind != "reproduce"
        if self.resume_from is not None or repeated or "resume_from" in self.raw:
            found["resume_from"] = self.resume_from.to_json() if self.resume_from else None
        return {**{name: found[name] for name in _KEYS}, **found}

    def _requirements(self) -> dict[str, Any] | None:
        if self.requirements_file is None or self.requirements_sha256 is None:
            return None
        pins = {"constraints": list(self.constraints)} if self.constraints else {}
        return {"file": self.requirements_file, "sha256": self.requirements_sha256, **pins}

    @classmethod
    def from_json(cls, raw: JsonObject) -> RunSpec:
        """Read run.json or a part of it. A missing key has its default.

        Raises:
            Exception: one of DAMAGED, for a value of the wrong type.
        """
        batch, recipe, origin = _part(raw, "batch"), _part(raw, "recipe"), raw.get("origin")
        requirements, data = _part(raw, "requirements"), _part(raw, "data")
        return RunSpec(
            **RecipeSpec._values(raw),
            run_id=str(raw["run_id"]),
            experiment=str(raw.get("experiment") or ""),
            created=datetime.fromisoformat(raw["created"]) if "created" in raw else _UNKNOWN_TIME,
            recipe=str(recipe.get("name") or ""),
            description=str(recipe.get("description") or ""),
            source=str(recipe.get("source") or "folder"),
            code=CodeRef.from_json(_part(raw, "code")),
            agent_sha256=str(_part(raw, "agent").get("sha256") or ""),
            command=tuple(str(word) for word in raw.get("command") or ()),
            params=dict(raw.get("params") or {}),
            requirements_sha256=requirements.get("sha256"),
            constraints=tuple(requirements.get("constraints") or ()),
            data=DataRef.from_json(data) if any(data.values()) else None,
            inputs=dict(raw.get("inputs") or {}),
            after=tuple(str(run) for run in raw.get("after") or ()),
            group=raw.get("group"),
            account=batch.get("account"),
            pool=str(batch.get("pool") or ""),
            vm_size=batch.get("vm_size"),
            spot=bool(batch.get("spot")),
            moved_from=tuple(map(PoolStay.from_json, batch.get("moved_from") or ())),
            job_id=str(batch.get("job_id") or ""),
            job_limit_s=None if (limit := batch.get("job_limit_s")) is None else int(limit),
            task_id=str(batch.get("task_id") or ""),
            origin=RunOrigin(str(origin["kind"]), str(origin["run_id"])) if origin else None,
            schedule=raw.get("schedule"),
            resume_from=ResumeFrom.from_json(raw["resume_from"])
            if raw.get("resume_from") is not None
            else None,
            rehearsal=raw.get("rehearsal"),
            trial=raw.get("trial"),
            template=tuple(raw.get("template") or ()),
            raw=raw,
        )

    @property
    def all_params(self) -> dict[str, Any]:
        """The parameters of the script, those in the words of the command included."""
        return read_parameters(
            {"command": self.command, "params": self.params, "trial": self.trial}
        )

    @property
    def is_workspace(self) -> bool:
        """True for a run of `runner dev`, whose command only waits or serves JupyterLab."""
        return self.recipe == WORKSPACE and self.command[:1] in (("sleep",), ("sh",))

    def check_executable(self) -> None:
        """Raise ValueError if the agent cannot run it."""
        if not self.code.sha256 or not self.command:
            raise ValueError(f"it has no {'command' if self.code.sha256 else 'code'}")
        try:
            for pattern in self.metric_patterns.values():
                re.compile(pattern)
        except re.error as err:
            raise ValueError(str(err)) from err
        for path in self.live_outputs:
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise ValueError(f"{path!r} leaves the outputs")
        if self.launcher not in LAUNCHERS:
            raise ValueError(f"this agent does not support launcher {self.launcher!r}")
        if self.params_as not in PARAMS_AS:
            raise ValueError(f"this agent does not support params_as {self.params_as!r}")
        for variable, path in self.named_outputs.items():
            parts = PurePosixPath(path).parts
            if not variable.startswith("RUNNER_OUTPUT_") or variable == "RUNNER_OUTPUT_DIR":
                raise ValueError(f"{variable} is not an output variable")
            if not parts or parts[0] == "/" or ".." in parts:
                raise ValueError(f"{path!r} leaves the outputs")


def _updated(raw: JsonObject, before: JsonObject, after: JsonObject) -> dict[str, Any]:
    """Return `raw` with the differences between `before` and `after` applied, at any depth."""
    changed: dict[str, Any] = {}
    for key, value in after.items():
        if key not in before or before[key] != value:
            parts: list[Any] = [part.get(key) for part in (raw, before, after)]
            changed[key] = _updated(*parts) if all(isinstance(p, dict) for p in parts) else value
    return {k: v for k, v in {**raw, **changed}.items() if k in after or k not in before}


def _part(raw: JsonObject, name: str) -> dict[str, Any]:
    return raw.get(name) or {}


def parse_run_spec(body: bytes) -> RunSpec:
    """Read run.json for the agent.

    Raises:
        RunSpecError: its format is newer, or the run cannot be executed.
    """
    try:
        raw: dict[str, Any] = parse_json(body)
        found = int(raw["format"])
        if found > FORMAT:
            raise RunSpecError(f"run.json has format {found}; this agent reads up to {FORMAT}")
        spec = RunSpec.from_json(raw)
        spec.check_executable()
    except DAMAGED as err:
        raise RunSpecError(f"invalid run.json: {type(err).__name__}: {err}") from err
    return spec


def parse_run(content: bytes, run_id: str) -> RunSpec:
    """Read run.json, or the part of it in the index, for the client.

    Raises:
        RunnerError: R-RUN-FORMAT for a newer format, R-RUN-BROKEN for a damaged document.
    """
    raw = parse_document(content, run_id, "run.json")
    try:
        for key in _CLIENT_NEEDS:
            part, _, name = key.rpartition(".")
            _ = raw[part][name] if part else raw[name]
        spec = RunSpec.from_json(raw)
        _check_ids(spec, run_id)
        return spec
    except DAMAGED as err:
        raise broken_document(run_id, "run.json", err) from err


def _check_ids(spec: RunSpec, run_id: str) -> None:
    """Raise ValueError if a record claims to be another run, or has IDs that Batch cannot have.

    They become parts of blob names, URLs and commands.
    """
    if is_run_id(run_id) and spec.run_id != run_id:
        raise ValueError(f"it is the document of {spec.run_id!r}")
    for value in (spec.job_id, spec.task_id, spec.pool):
        check_batch_id(value)


def parse_document(content: bytes, run_id: str, name: str) -> dict[str, Any]:
    """Read a JSON object of a run, and check its format. Raise RunnerError as `parse_run` does."""
    try:
        raw: Any = parse_json(content)
    except (ValueError, RecursionError) as err:
        raise broken_document(run_id, name, err) from err
    if not isinstance(raw, dict):
        raise broken_document(run_id, name, ValueError("not a JSON object"))
    document = cast("dict[str, Any]", raw)
    version = document.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise RunnerError(
            "R-RUN-FORMAT",
            f"{name} of {run_id} has format {version}; this runner reads up to {FORMAT}",
            why="a newer version of runner wrote it",
            fix="run `pip install --upgrade azure-batch-runner`",
        )
    return document


def broken_document(run_id: str, name: str, err: Exception) -> RunnerError:
    """Return the error for a document of a run that cannot be read."""
    return RunnerError(
        "R-RUN-BROKEN",
        f"{name} of {run_id} cannot be read",
        why=f"{type(err).__name__}: {err}",
        fix="submit the run again: the document is damaged in storage",
        exit_code=ExitCode.RUN_FAILED,
    )


_NOTEBOOK_DRIVER = ("python", "-m", NOTEBOOK_MODULE)


def notebook_command(name: str) -> tuple[str, ...]:
    """Return the command that executes a notebook of the code folder."""
    return *_NOTEBOOK_DRIVER, name


def find_notebook(command: Sequence[str]) -> str | None:
    """Return the notebook that a command executes, or None for another command."""
    length = len(_NOTEBOOK_DRIVER)
    is_notebook = tuple(command[:length]) == _NOTEBOOK_DRIVER
    return command[length] if is_notebook and command[length:] else None
