"""Prepare a run: pack the code, find the data, read the git revision and plan.

Nothing is sent. `Memo` lets runs of one submission share what they read.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runner.contract import StackOutputs
from runner.core.planning.plan import (
    RunInputs,
    RunPlan,
    RunRequest,
    plan_run,
)
from runner.core.progress import OnProgress
from runner.core.recipe.code_archive import CodeArchive, pack_code
from runner.core.recipe.inputs import override_inputs
from runner.core.recipe.overrides import resolve_params
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.secrets import SecretValues, no_secrets, read_secrets, refuse_in_the_open
from runner.core.settings import Settings
from runner.flows.data.datasets import Dataset, check_dataset, resolve_dataset
from runner.flows.local.state import with_container_pool
from runner.flows.submit.agent_archive import build_agent
from runner.flows.submit.inputs import NamedInput, local_paths, prepare_inputs
from runner.protocol.errors import RunnerError
from runner.protocol.paths import SUFFIX_ALPHABET, make_run_id, slug
from runner.protocol.run_spec import NO_RESOURCES, CodeRef, DataRef, Resources

T = TypeVar("T")


class Memo:
    """Keeps what was read, by what it was read from, for as long as one submission lasts."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}

    def __call__(self, source: Hashable, read: Callable[[], T]) -> T:
        """What `read` gave for this source; a read that fails is not kept."""
        if source not in self._kept:
            self._kept[source] = read()
        return self._kept[source]


_GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class GitRevision:
    """HEAD of the checkout a folder lies in; `dirty` when the folder differs from it."""

    revision: str
    dirty: bool


def git_revision(folder: Path) -> GitRevision | None:
    """The revision of a folder, or None outside of git, without git, or when git is slow."""
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--", ".")
    return GitRevision(revision=head, dirty=changes != "")


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What was typed beside the recipe."""

    overrides: tuple[str, ...] = ()
    script_args: tuple[str, ...] = ()
    experiment: str | None = None
    data: Path | None = None
    inputs: tuple[str, ...] = ()  # NAME=SPEC
    insisted: Resources = NO_RESOURCES


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A plan and the bytes that go with it; of secrets only the names are shown.

    `pending_runs` are ids that inputs may name although those runs are not there yet.
    """

    plan: RunPlan
    code: CodeArchive
    agent: bytes
    dataset: Dataset | None
    inputs: tuple[NamedInput, ...] = ()
    pending_runs: frozenset[str] = frozenset()
    secrets: SecretValues = field(default_factory=no_secrets)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know, and nothing is refused for."""
        notice = self.dataset.notice if self.dataset else None
        short = ", ".join(self.secrets.short())
        secrets = f"{short}: too short to be hidden in logs" if short else None
        found = (self.code.warning, notice, secrets, *self.plan.warnings)
        return tuple(text for text in found if text)


def request_run(recipe: Recipe, options: TrainOptions) -> RunRequest:
    """Check what was typed against the recipe. Raises RunnerError; touches nothing."""
    if options.data is not None and not options.data.exists():
        raise RunnerError(
            "R-DATA-MISSING",
            f"--data {options.data}: there is no such file or folder",
            fix="give the folder that holds the data set's files",
        )
    override_inputs(recipe.inputs, options.inputs, Path.cwd())
    read_secrets(recipe.secrets, os.environ)
    return RunRequest(
        created=datetime.now(UTC),
        params=resolve_params(recipe.params, options.overrides),
        script_args=options.script_args,
        experiment=options.experiment,
        insisted=options.insisted,
    )


def prepare_run(
    recipe: Recipe,
    settings: Settings,
    outputs: StackOutputs,
    options: TrainOptions,
    on_progress: OnProgress,
    *,
    fetch_data: bool = True,
    memo: Memo | None = None,
) -> PreparedRun:
    """Pack the code, find the data, and plan.

    `fetch_data=False` leaves the network alone: data that does not lie here is only known by name.
    `once` is shared by runs of one submission: the same folder is packed, and hashed, once.
    """
    memo = memo or Memo()
    request = request_run(recipe, options)
    recipe = replace(recipe, inputs=override_inputs(recipe.inputs, options.inputs, Path.cwd()))
    apart = local_paths(recipe.inputs, recipe.folder)
    excluded = (settings.output_dir, settings.home, *apart)
    code = memo(
        ("code", recipe.folder, recipe.files, excluded), lambda: pack_code(recipe, excluded)
    )
    agent = memo("agent", build_agent)
    dataset = None
    if fetch_data or options.data is not None:
        dataset = memo(
            ("data", recipe.dataset, options.data),
            lambda: _dataset(recipe, settings, options.data, on_progress),
        )
    elif recipe.dataset is not None:
        check_dataset(recipe.dataset, recipe.folder)
    named: list[NamedInput] = []
    for spec in recipe.inputs:
        read = partial(prepare_inputs, [spec], outputs, settings.home, on_progress)
        named += memo(("input", spec), partial(read, fetch=fetch_data))
    run_id = make_run_id(recipe.name, request.created, run_id_suffix())
    inputs = RunInputs(
        code=_code_ref(recipe, code, memo),
        agent_sha256=hashlib.sha256(agent).hexdigest(),
        requirements_sha256=_requirements_sha256(recipe),
        data=_data_ref(dataset),
        named={one.name: one.document for one in named},
    )
    outputs = with_container_pool(recipe.image, settings, outputs, on_progress, make=fetch_data)
    plan = plan_run(recipe, settings, outputs, run_id, request, inputs)
    values = read_secrets(recipe.secrets, os.environ)
    refuse_in_the_open(values, [*plan.command, *recipe.env.values()])
    return PreparedRun(plan, code, agent, dataset, tuple(named), secrets=values)


def _dataset(
    recipe: Recipe, settings: Settings, given: Path | None, on_progress: OnProgress
) -> Dataset | None:
    if recipe.dataset is None and given is None:
        return None
    name = recipe.dataset or slug(given.resolve().name if given else "data")
    folder = recipe.folder if recipe.dataset else None
    return resolve_dataset(name, given, settings.home, on_progress, folder)


def _code_ref(recipe: Recipe, code: CodeArchive, memo: Memo) -> CodeRef:
    ref = CodeRef(sha256=code.sha256, size_bytes=len(code.data), files=code.files)
    if recipe.source == "builtin":
        return ref
    git = memo(("git", recipe.folder), lambda: git_revision(recipe.folder))
    return replace(ref, git_revision=git.revision, git_dirty=git.dirty) if git else ref


def _data_ref(dataset: Dataset | None) -> DataRef | None:
    if dataset is None:
        return None
    files = ((file.name, file.size_bytes, file.sha256) for file in dataset.files)
    return DataRef.of_files(dataset.name, dataset.source, dataset.notice, files)


def _requirements_sha256(recipe: Recipe) -> str | None:
    if recipe.requirements_file is None:
        return None
    path = recipe.folder / recipe.requirements_file
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as err:
        raise RunnerError(
            "R-REQUIREMENTS-MISSING",
            f"cannot read {path}",
            why=err.strerror or str(err),
            fix="correct `requirements` in train.yaml",
        ) from err


def run_id_suffix() -> str:
    """Four letters or digits that tell runs of one second apart."""
    return "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(4))
