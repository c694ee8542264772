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
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, cast

from runner.protocol import commands
from runner.protocol.codec import (
    DAMAGED,
    FORMAT,
    NOT_STORED,
    JsonDocument,
    JsonObject,
    or_none,
    parse_json,
    read,
    unless_empty,
    wire,
    write,
)
from runner.protocol.commands import PARAMS_AS, ParamsAs, Word, read_parameters
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.launchers import LAUNCHERS, Launcher
from runner.protocol.metrics import ExpectedRange, Goal, read_goal
from runner.protocol.models import ModelRequest
from runner.protocol.paths import check_batch_id, code_blob, is_run_id

if TYPE_CHECKING:
    from typing import Self  # the agent runs on Python 3.10

Capacity = Literal["spot", "dedicated", "spot-then-dedicated"]
NOTIFY_VARIABLE = "RUNNER_NOTIFY_URL"  # has the URL of `notify` among the secrets of a task
NOTIFY_EVENTS = ("success", "failure", "evictions", "cap")
FALLBACK_AFTER_S = 20 * 60
FALLBACK_EVICTIONS = 3
WORKSPACE = "dev"  # name of the recipe of `runner dev`
_UNKNOWN_TIME = datetime.fromtimestamp(0, timezone.utc)  # noqa: UP017 - the agent runs on 3.10
_KEYS = (
    "format", "run_id", "experiment", "created", "recipe", "code", "agent", "command", "params",
    "env", "requirements", "python", "data", "inputs", "secrets", "secret_refs", "outputs",
    "named_outputs", "metrics", "model", "checkpoints", "timeout_s", "retries", "resources",
    "priority", "after", "group", "batch", "image", "price", "origin",
)  # fmt: skip
# Keys that are written if they have a value, or were in the document, with what stands for none.
_OMITTED: dict[str, Any] = {
    "schedule": None, "rehearsal": None, "trial": None, "template": [], "resume_from": None,
}  # fmt: skip
_CLIENT_NEEDS = (
    "run_id", "experiment", "created", "params", "recipe.name", "batch.pool", "batch.spot",
    "batch.job_id", "batch.task_id",
)  # fmt: skip


class RunSpecError(Exception):
    """The agent cannot execute a `run.json`; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Resources(JsonDocument):
    """Minimum resources of a node; None and () accept any.

    `memory_bytes` is per node, `gpu_memory_bytes` per GPU.
    """

    gpus: int | None = None
    memory_bytes: int | None = None
    vm_sizes: tuple[str, ...] = ()
    nodes: int = 1
    capacity: Capacity | None = None
    gpu_memory_bytes: int | None = field(default=None, metadata=wire(omit="default"))


NO_RESOURCES = Resources()


@dataclass(frozen=True, slots=True)
class CheckpointRule(JsonDocument):
    """How often checkpoints are committed, how many are kept, and their maximum size.

    With `automatic`, hooks save checkpoints in scripts that save none. With `sharded`, every rank
    saves its part of the state.
    """

    interval_s: float = field(default=60, metadata=wire(read=lambda s: max(float(s), 0.1)))
    keep: int = field(default=3, metadata=wire(read=lambda number: max(int(number), 1)))
    max_bytes: int = field(default=10 << 30, metadata=wire(read=int))
    automatic: bool = field(default=True, metadata=wire(read=bool))
    sharded: bool = field(default=False, metadata=wire(omit="default"))


@dataclass(frozen=True, slots=True)
class KeepRule(JsonDocument):
    """The rule for files that a script writes outside of `$RUNNER_OUTPUT_DIR`: which are kept.

    Attributes:
        max_bytes: Maximum total size; the largest files are left out first.
        paths: Globs relative to the script's folder; matching files are kept at any size.
    """

    max_bytes: int = field(default=10 << 30, metadata=wire(read=int))
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SecretRef(JsonDocument):
    """A secret variable of the script, with its source: a client variable or a key vault."""

    variable: str = field(metadata=NOT_STORED)
    env: str | None = None
    keyvault: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the reference as in train.yaml and run.json."""
        return {"env": self.env} if self.env else {"keyvault": self.keyvault or ""}


def _read_notify_url(raw: JsonObject | None) -> SecretRef:
    return SecretRef.from_json(raw or {}, variable=NOTIFY_VARIABLE)


@dataclass(frozen=True, slots=True)
class NotifyRule(JsonDocument):
    """Which events of a run are sent to a webhook. The URL is a secret that the script lacks.

    Attributes:
        url: Where the URL is.
        on: Events of NOTIFY_EVENTS.
        format: `json`, `slack` or `teams`; None is decided by the host of the URL.
        evictions: Number of evictions within an hour for the event `evictions`.
        cap_share: Share of a time limit or cost cap for the event `cap`.
    """

    url: SecretRef = field(metadata=wire(read=_read_notify_url, missing=_read_notify_url(None)))
    on: tuple[str, ...] = NOTIFY_EVENTS
    format: str | None = None
    evictions: int = 3
    cap_share: float = 0.8


def _read_image(raw: JsonObject | None) -> str | None:
    return raw.get("name") if raw else None


def _image_json(name: str | None) -> dict[str, Any] | None:
    return {"name": name, "digest": image_digest(name)} if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSpec(JsonDocument):
    """The part of a run that `train.yaml` decides, as `run.json` stores it.

    Attributes:
        requirements_file: Path in the code archive.
        python: A version such as `3.12`, or specifiers such as `>=3.11,<3.13`.
        python_from: The file that asks for that Python, unless it is train.yaml.
        secrets: References to secrets. In older documents, they have no source.
        named_outputs: Folders below the outputs, by their variable.
        metric_patterns: Regular expressions over standard output, by metric.
        checkpoints: None switches them off.
        keep: None keeps `$RUNNER_OUTPUT_DIR` only. Older documents imply the default.
        packages: Additional packages, unless the requirements list them.
        live_outputs: Files below `$RUNNER_OUTPUT_DIR` that are stored while the script runs.
        expect: Expected ranges of metrics; a run outside of a range warns or fails.
        prepare: Shell commands that run before the script, once per node and job if possible.
        max_cost_micros: Cap of the costs of the run's job in micro-dollars.
        processes_per_node: For launchers that start several processes. None means one per GPU.
        hang_timeout_s: Time without any progress after which the attempt fails; None is unlimited.
        idle_timeout_s: Time with idle devices after which the run fails; None is unlimited.
        keep_node_s: Time for which the node of a run that failed is kept; None does not keep it.
        params_as: How the script gets its parameters.
        switches: Options of the script without a value, by parameter: for true, and for false.
        image: Reference of the container image that the script runs in.
        notify: The webhook that is told how the run goes; None sends nothing.
    """

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    requirements_file: str | None = field(default=None, metadata=wire("requirements.file"))
    python: str | None = None
    python_from: str | None = field(default=None, metadata=wire(omit="empty"))
    secrets: tuple[SecretRef, ...] = field(default=(), metadata=wire("secret_refs", by="variable"))
    outputs: tuple[str, ...] = ()
    named_outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    metric_patterns: Mapping[str, str] = field(
        default_factory=dict[str, str],
        metadata=wire("metrics.patterns", read=lambda raw: dict(raw or {})),
    )
    primary_metric: str | None = field(default=None, metadata=wire("metrics.primary"))
    goal: Goal = field(default="max", metadata=wire("metrics.goal", read=read_goal))
    model: ModelRequest | None = field(
        default=None, metadata=wire(read=unless_empty(ModelRequest.from_json))
    )
    checkpoints: CheckpointRule | None = CheckpointRule()
    keep: KeepRule | None = field(default=KeepRule(), metadata=wire(omit="default"))
    packages: tuple[str, ...] = field(default=(), metadata=wire(omit="default"))
    live_outputs: tuple[str, ...] = field(default=(), metadata=wire(omit="default"))
    expect: tuple[ExpectedRange, ...] = field(
        default=(), metadata=wire(by="metric", omit="default")
    )
    prepare: str | None = field(default=None, metadata=wire(omit="empty"))
    max_cost_micros: int | None = field(default=None, metadata=wire(omit="empty"))
    launcher: Launcher = field(default="python", metadata=wire(omit="default"))
    processes_per_node: int | None = field(default=None, metadata=wire(omit="default"))
    hang_timeout_s: float | None = field(default=None, metadata=wire(omit="default"))
    idle_timeout_s: float | None = field(default=None, metadata=wire(omit="default"))
    keep_node_s: float | None = field(default=None, metadata=wire(omit="default"))
    params_as: ParamsAs = field(default="flags", metadata=wire(omit="default"))
    switches: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, "tuple[str, ...]"], metadata=wire(omit="default")
    )
    timeout_s: float | None = None
    retries: int = 0
    resources: Resources = NO_RESOURCES
    priority: int = 0
    image: str | None = field(default=None, metadata=wire(read=_read_image, write=_image_json))
    notify: NotifyRule | None = field(
        default=None, metadata=wire(read=unless_empty(NotifyRule.from_json), omit="empty")
    )

    def to_json(self) -> dict[str, Any]:
        """Return the keys of run.json that the recipe decides."""
        found = write(self, RecipeSpec)
        requirements = found["requirements"] if self.requirements_file else None
        return {**found, "requirements": requirements, "secrets": self._listed_secrets()}

    def _listed_secrets(self) -> list[str]:
        return [ref.variable for ref in self.secrets]

    @classmethod
    def from_json(cls, raw: JsonObject, /, **given: Any) -> Self:
        """Read run.json or a part of it."""
        refs: dict[str, Any] = {str(name): {} for name in raw.get("secrets") or ()}
        return read(
            cls, {**raw, "secret_refs": {**refs, **(raw.get("secret_refs") or {})}}, **given
        )

    @property
    def is_conda(self) -> bool:
        """True if the packages are those of an `environment.yml`, which micromamba installs."""
        return (self.requirements_file or "").endswith((".yml", ".yaml"))

    @property
    def all_secrets(self) -> tuple[SecretRef, ...]:
        """The secrets of the script and of the agent."""
        return self.secrets if self.notify is None else (*self.secrets, self.notify.url)

    @property
    def secret_names(self) -> frozenset[str]:
        """Variables of the script whose values are secret."""
        return frozenset(ref.variable for ref in self.secrets)

    @property
    def nodes(self) -> int:
        """The number of nodes that the run uses at the same time."""
        return self.resources.nodes

    def to_arguments(self, params: Mapping[str, Any]) -> list[str]:
        """Return the arguments of the script with parameters. Raise ValueError."""
        return commands.to_arguments(params, self.params_as, self.switches)

    def place_parameters(
        self, template: Iterable[str | None], params: Mapping[str, Any]
    ) -> list[str]:
        """Return the command of a template with parameters. Raise ValueError."""
        return commands.place_parameters(template, params, self.params_as, self.switches)

    def insert_parameters(
        self, params: Sequence[Word], args: Sequence[str]
    ) -> tuple[Word | str, ...]:
        """Return the arguments of the script with words for its parameters at their place."""
        return commands.insert_parameters(params, args, self.params_as)

    def replace_arguments(
        self, command: Sequence[str], old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> tuple[str, ...] | None:
        """Return the command with other parameters, or None if it has not the old ones.

        Raises:
            ValueError: the script cannot read a value.
        """
        return commands.replace_arguments(command, old, new, self.params_as, self.switches)

    def argument_start(self, name: str) -> str:
        """Return what the argument of a parameter begins with."""
        return commands.argument_start(name, self.params_as)

    def recipe_fields(self) -> dict[str, Any]:
        """Return the values of the fields of this class, without those of a derived class."""
        return {each.name: getattr(self, each.name) for each in fields(RecipeSpec)}


def image_digest(name: str) -> str | None:
    """Return `sha256:...` of an image reference, or None for a tag, which can move."""
    return name.partition("@")[2] or None


_MAX_LEFT_OUT = 100  # entries in run.json


@dataclass(frozen=True, slots=True)
class ExcludedPath(JsonDocument):
    """A file, or a folder whose path ends with `/`, that is left out, and the rule that says so."""

    path: str
    rule: str


def _write_left_out(entries: tuple[ExcludedPath, ...]) -> list[dict[str, Any]]:
    return [each.to_json() for each in entries[:_MAX_LEFT_OUT]]


@dataclass(frozen=True, slots=True)
class CodeRef(JsonDocument):
    """The recipe's files as one content-addressed archive.

    `files` is the number of files; 0 if the reference was read from blob storage. `left_out` is
    what is not in the archive, of which run.json has the first 100 entries.
    """

    sha256: str = ""
    size_bytes: int = 0
    files: int = field(default=0, compare=False, metadata=NOT_STORED)
    git_revision: str | None = None
    git_dirty: bool = False
    left_out: tuple[ExcludedPath, ...] = field(
        default=(), compare=False, metadata=wire(omit="empty", write=_write_left_out)
    )

    @property
    def blob(self) -> str:
        """Name in the `runs` container."""
        return code_blob(self.sha256)

    def to_json(self) -> dict[str, Any]:
        """Return `code` of run.json."""
        return {"sha256": self.sha256, "blob": self.blob, **write(self)}


@dataclass(frozen=True, slots=True)
class DataFile(JsonDocument):
    """One file of a data set or an input. A value that is None is unknown, and is not checked.

    `etag` is the ETag of the blob. `md5` is base64, as in the storage API.
    """

    name: str
    size_bytes: int | None = field(metadata=wire(read=int))
    sha256: str | None = None
    etag: str | None = field(default=None, metadata=wire(omit="always"))
    md5: str | None = field(default=None, metadata=wire(omit="always"))


@dataclass(frozen=True, slots=True)
class DataRef(JsonDocument):
    """The data set of a run; `prefix` is its folder in the `data` container."""

    name: str = ""
    source: str = ""
    notice: str | None = None
    prefix: str = ""
    files: tuple[DataFile, ...] = ()

    @classmethod
    def of_files(
        cls, name: str, source: str, notice: str | None, files: Iterable[tuple[str, int, str]]
    ) -> DataRef:
        """Return the reference to files given as (name, size in bytes, SHA-256)."""
        listed = tuple(files)
        prefix = data_prefix(name, listed)
        return cls(name, source, notice, prefix, tuple(DataFile(*each) for each in listed))


def data_prefix(folder: str, files: Iterable[tuple[str, int, str]]) -> str:
    """Return the prefix of files given as (name, size in bytes, SHA-256).

    It contains a hash of the list, so equal files have the same prefix.
    """
    manifest = json.dumps(sorted(files), separators=(",", ":"))
    return f"{folder}/{hashlib.sha256(manifest.encode()).hexdigest()}/"


@dataclass(frozen=True, slots=True)
class ResumeFrom(JsonDocument):
    """The checkpoint of another run that a new run starts from.

    `checkpoint` is its number, or None for the newest one. `exact` is True if the user chose it:
    then no other one takes its place.
    """

    run_id: str
    checkpoint: int | None = field(default=None, metadata=wire(read=or_none(int)))
    exact: bool = field(
        default=False, metadata=wire(read=lambda value: value is True, omit="default")
    )

    @classmethod
    def from_json(cls, raw: JsonObject, /, **given: Any) -> Self:
        """Read `resume_from` of run.json. Raise ValueError if it names no run."""
        found = read(cls, raw, **given)
        if not found.run_id or "/" in found.run_id or found.run_id in (".", ".."):
            raise ValueError(f"{found.run_id!r} is not a run ID")
        return replace(found, exact=False) if found.checkpoint is None else found


@dataclass(frozen=True, slots=True)
class RunOrigin(JsonDocument):
    """The run that this run repeats. `kind` is retry, resume or reproduce."""

    kind: str
    run_id: str


@dataclass(frozen=True, slots=True)
class PoolStay(JsonDocument):
    """A pool that the run's job was in before. Attempts on its nodes have its VM size and price.

    `requeued` is the number of the attempt that the move ended, which does not count as evicted, or
    0 if none was running. `until` is the time of the move, and `why` its reason if no person moved
    the run: `waited` or `evicted`. Both are empty in older documents.
    """

    pool: str
    vm_size: str | None = None
    spot: bool = False
    requeued: int = 0
    until: str = field(default="", metadata=wire(omit="default"))
    why: str = field(default="", metadata=wire(omit="default"))


@dataclass(frozen=True, slots=True)
class FallbackRule(JsonDocument):
    """The pools that a run may use, in order, and when it moves to the next one.

    Attributes:
        pools: At least two, of which the first was preferred.
        after_s: Time in seconds that it waits for a node of one pool.
        evictions: Number of evictions within an hour in one pool.
    """

    pools: tuple[str, ...]
    after_s: int = FALLBACK_AFTER_S
    evictions: int = FALLBACK_EVICTIONS


def _read_data(raw: JsonObject | None) -> DataRef | None:
    return DataRef.from_json(raw) if raw and any(raw.values()) else None


def _read_agent(raw: JsonObject | None) -> str:
    return str(raw.get("sha256") or "") if raw else ""


def _agent_json(sha256: str) -> dict[str, str]:
    return {"sha256": sha256, "blob": code_blob(sha256)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec(RecipeSpec):
    """One run: the document `run.json`.

    Attributes:
        recipe: Name of the recipe, with its `description` and `source`.
        agent_sha256: Hash of the archive with the node agent.
        constraints: `name==version` of every package; empty leaves them open.
        commits: Commits of branches and tags in git that the requirements name, by
            `GitAddress.key`.
        inputs: Named inputs, as docs/run-format.md describes them.
        after: Runs that must succeed before it.
        task_trials: How many trials of a sweep its task runs at most, one after another. The ID of
            such a task is the run ID of its first trial.
        moved_from: Pools that the run's job was in before, oldest first.
        fallback: The other pools that it moves to if it waits or is evicted too often.
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
    recipe: str = field(default="", metadata=wire("recipe.name"))
    description: str = field(default="", metadata=wire("recipe.description"))
    source: str = field(default="folder", metadata=wire("recipe.source"))
    code: CodeRef = CodeRef()
    agent_sha256: str = field(
        default="",
        metadata=wire("agent", read=_read_agent, write=_agent_json),
    )
    command: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    requirements_sha256: str | None = field(default=None, metadata=wire("requirements.sha256"))
    constraints: tuple[str, ...] = field(
        default=(), metadata=wire("requirements.constraints", omit="default")
    )
    commits: Mapping[str, str] = field(
        default_factory=dict[str, str], metadata=wire("requirements.commits", omit="default")
    )
    data: DataRef | None = field(default=None, metadata=wire(read=_read_data))
    inputs: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    after: tuple[str, ...] = ()
    group: str | None = None
    account: str | None = field(default=None, metadata=wire("batch.account"))
    pool: str = field(default="", metadata=wire("batch.pool"))
    vm_size: str | None = field(default=None, metadata=wire("batch.vm_size"))
    spot: bool = field(default=False, metadata=wire("batch.spot"))
    job_id: str = field(default="", metadata=wire("batch.job_id"))
    task_id: str = field(default="", metadata=wire("batch.task_id"))
    task_trials: int = field(
        default=1, metadata=wire("batch.task_trials", read=int, omit="default")
    )
    moved_from: tuple[PoolStay, ...] = field(
        default=(), metadata=wire("batch.moved_from", omit="default")
    )
    fallback: FallbackRule | None = field(
        default=None, metadata=wire("batch.fallback", omit="empty")
    )
    job_limit_s: int | None = field(
        default=None, metadata=wire("batch.job_limit_s", read=or_none(int), omit="empty")
    )
    origin: RunOrigin | None = field(
        default=None, metadata=wire(read=unless_empty(RunOrigin.from_json))
    )
    schedule: str | None = field(default=None, metadata=wire(omit="default"))
    rehearsal: JsonObject | None = field(default=None, metadata=wire(omit="default"))
    trial: JsonObject | None = field(default=None, metadata=wire(omit="default"))
    template: tuple[str | None, ...] = field(default=(), metadata=wire(omit="default"))
    resume_from: ResumeFrom | None = field(default=None, metadata=wire(omit="default"))
    raw: JsonObject = field(
        default_factory=dict[str, Any], compare=False, repr=False, metadata=NOT_STORED
    )

    @property
    def is_later_in_task(self) -> bool:
        """True for a trial whose task runs others before it."""
        return self.task_trials > 1 and self.run_id != self.task_id

    def to_json(self) -> dict[str, Any]:
        """Return run.json. In a document that was read, only changed values are replaced."""
        document = self._document()
        if not self.raw:
            return document
        return _updated(self.raw, RunSpec.from_json(self.raw)._document(), document)

    @property
    def named_metrics(self) -> tuple[str, ...]:
        """The metrics that its sweep and its recipe name; the first one ranks the run."""
        named = ((self.trial or {}).get("metric"), self.primary_metric)
        return tuple(dict.fromkeys(str(name) for name in named if name))

    @property
    def goals(self) -> dict[str, Goal]:
        """The goals of `named_metrics` by name, without that of a sweep that declares none."""
        trial = self.trial or {}
        found: dict[str, Goal] = {self.primary_metric: self.goal} if self.primary_metric else {}
        if trial.get("metric") and trial.get("goal") in ("max", "min"):
            found[str(trial["metric"])] = read_goal(trial["goal"])
        return found

    def _document(self) -> dict[str, Any]:
        found = write(self)
        found |= {"format": FORMAT, "price": None, "secrets": self._listed_secrets()}
        if self.requirements_file is None or self.requirements_sha256 is None:
            found["requirements"] = None
        is_repeated = self.origin is not None and self.origin.kind != "reproduce"
        for name, empty in _OMITTED.items():
            if name in self.raw or (name == "resume_from" and is_repeated):
                found.setdefault(name, empty)
        return {**{name: found[name] for name in _KEYS}, **found}

    @classmethod
    def from_json(cls, raw: JsonObject, /, **given: Any) -> RunSpec:
        """Read run.json or a part of it. A missing key has its default."""
        return super(RunSpec, cls).from_json(raw, raw=raw, **given)

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
