"""The part of a submission that needs no service: check options, pack code, hash data.

Nothing is sent, and only `download_data` downloads. The runs of one submission share one
`FilesToUpload`.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shlex
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar, cast

from runner.contract import StackOutputs
from runner.core.home import HomePaths, is_private, make_private
from runner.core.packages.script_file import find_script, is_file_in
from runner.core.planning.plan import (
    CheckedRun,
    RunContent,
    RunPlan,
    compose_command,
    with_content,
)
from runner.core.progress import OnProgress
from runner.core.recipe.code_archive import (
    RUNNER_RULES,
    CodeArchive,
    pack_code,
    repack,
    state_of_last,
)
from runner.core.recipe.imports import package_warnings, refuse_conda_here
from runner.core.recipe.inputs import InputSpec, advise_variable, input_variable
from runner.core.recipe.notebook import refuse_arguments
from runner.core.recipe.options import RunOptions, resolve_params, with_options
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.secrets import read_secrets, refuse_exposed_secrets
from runner.core.settings import Settings
from runner.flows.data.datasets import Dataset, cached_dataset, from_path, resolve_dataset
from runner.flows.submit.agent_archive import build_agent
from runner.protocol.commands import find_notebook, referenced_variables
from runner.protocol.errors import RunnerError
from runner.protocol.paths import SUFFIX_ALPHABET, slug, stored_path
from runner.protocol.run_spec import CodeRef, DataRef, ExcludedPath, data_prefix

if TYPE_CHECKING:
    from concurrent.futures import Future

    from runner.core.recipe.listed_files import GitListing
    from runner.core.recipe.read_paths import UnsentPath

T = TypeVar("T")
_DATA_DIR = "RUNNER_DATA_DIR"
# Prefixes of variables of Batch, Batch AI and Azure ML.
_SERVICE_PREFIXES = ("AZ_BATCH", "AZUREML_", "AZURE_ML_")
_INPUT_VARIABLE = re.compile(r"(?:AZ_BATCHAI_INPUT_|AZURE_ML_INPUT_|AZUREML_DATAREFERENCE_)(\w+)")
MAX_FILES = 50_000  # run.json lists every file of an input
_UPLOADED = "inputs"  # folder of local inputs in the `data` container


class FilesToUpload:
    """The files that a submission may upload, each of which this machine hashes only once.

    Attributes:
        archives: Code and agent by hash.
        data: Data sets and local inputs by prefix in storage.
    """

    def __init__(self) -> None:
        self.archives: dict[str, bytes] = {}
        self.data: dict[str, Dataset] = {}
        self._values: dict[Hashable, Any] = {}

    def once(self, source: Hashable, read: Callable[[], T]) -> T:
        """Return the result of `read` for this source, which is read only once."""
        if source not in self._values:
            self._values[source] = read()
        return self._values[source]


def check_run(
    recipe: Recipe, options: RunOptions, *, rehearsal: Mapping[str, Any] | None = None
) -> CheckedRun:
    """Apply options to a recipe, and validate both. Raise RunnerError. Write nothing.

    `rehearsal` is as in RunSpec.
    """
    return check_command(with_options(recipe, options), options, rehearsal=rehearsal)


def check_command(
    recipe: Recipe,
    options: RunOptions,
    *,
    rehearsal: Mapping[str, Any] | None = None,
    trial: Mapping[str, Any] | None = None,
) -> CheckedRun:
    """Validate parameters, arguments and secrets of a recipe that has the options already."""
    secrets = recipe.all_secrets
    values = read_secrets(secrets, os.environ) if secrets else None
    notebook = find_notebook(recipe.command)
    if notebook is not None:
        refuse_arguments(notebook, options.args)
    words = (*recipe.command, *options.args)
    params = resolve_params(recipe.params, options.set, notebook, recipe, words)
    arguments, template = compose_command(recipe, params, options.args)
    recipe = with_named_files(recipe, arguments[len(recipe.command) :])
    names = (recipe.name, recipe.description, options.experiment, *options.inputs)
    texts = (text for text in names if text)
    if values:
        settings = _strings({**replace(recipe, secrets=()).to_json(), "inputs": recipe.inputs})
        refuse_exposed_secrets(values, [*arguments, *settings, *texts])
    _refuse_unknown_variables(recipe, arguments, params, has_data=options.data is not None)
    return CheckedRun(
        recipe=recipe,
        options=options,
        params=params,
        command=arguments,
        template=template,
        secrets=values,
        rehearsal=rehearsal,
        trial=trial,
    )


def _strings(value: object) -> Iterator[str]:
    """Yield all texts in a value at any depth; run.json stores them."""
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[object, object]", value).items():
            yield from (*_strings(key), *_strings(part))
    elif isinstance(value, list | tuple):
        for part in cast("Sequence[object]", value):
            yield from _strings(part)
    elif value is not None:
        yield str(value)


def with_named_files(recipe: Recipe, arguments: Sequence[str]) -> Recipe:
    """Return a recipe that sends its script alone with the files beside it that arguments name."""
    if recipe.files is None:
        return recipe
    values = (word.partition("=")[2] or word for word in arguments)
    found = (value.strip("'\"") for value in values if not value.startswith(("-", "/", "..")))
    named = [str(PurePosixPath(path)) for path in found if is_file_in(recipe.folder, path)]
    if not named:  # a sweep has thousands of trials
        return recipe
    return replace(recipe, files=tuple(dict.fromkeys((*recipe.files, *named))))


# Variables that the agent sets for every script (docs/run-format.md) and that every node has.
_ALWAYS_SET = (
    "RUNNER_RUN_ID",
    "RUNNER_ATTEMPT",
    "RUNNER_OUTPUT_DIR",
    "RUNNER_CHECKPOINT_DIR",
    "RUNNER_METRICS_FILE",
    "RUNNER_PARAMS",
    "RUNNER_NODES",
    "RUNNER_NODE_RANK",
    "RUNNER_RESUMED",
    "HOME",
    "PATH",
    "TMPDIR",
)


def _refuse_unknown_variables(
    recipe: Recipe, arguments: Sequence[str], params: Collection[str], *, has_data: bool
) -> None:
    """Raise RunnerError if command or `env` refers to a variable that will not be set on a node.

    Variables of an image or a framework are unknown here; the node checks them.
    """
    known = {
        *_ALWAYS_SET,
        *(input_variable(one.name) for one in recipe.inputs),
        *recipe.named_outputs,
        *recipe.env,
        *(secret.variable for secret in recipe.secrets),
    }
    if has_data or recipe.dataset:
        known.add(_DATA_DIR)
    if recipe.checkpoints:
        known.add("RUNNER_CHECKPOINT_INTERVAL")
    texts = [("the command", each) for each in referenced_variables(arguments)]
    for variable, value in recipe.env.items():  # `PATH: /opt/bin:$PATH` refers to itself
        named = referenced_variables([value])
        texts += [(f"{variable} in env", each) for each in named if each != variable]
    for where, name in texts:
        of_input = _INPUT_VARIABLE.match(name)
        if name in known or (of_input and input_variable(of_input[1]) in known):
            continue
        if name.startswith(_SERVICE_PREFIXES) and not of_input:
            continue
        if name.startswith("RUNNER_") or of_input or not (recipe.image or recipe.nodes > 1):
            raise RunnerError(
                "R-COMMAND-VARIABLE",
                f"{where} refers to ${name}, which is not set on the node",
                why="$NAME and ${NAME} are replaced by variables of the node",
                fix=f"write {{{name}}} for the value of the parameter"
                if name in params
                else _variable_fix(name, known),
            )


def _variable_fix(name: str, known: Collection[str]) -> str:
    from runner.core.yaml_files import did_you_mean  # noqa: PLC0415  only a mistake needs it

    return (
        did_you_mean(name, known, 0.85)
        or advise_variable(name)
        or did_you_mean(name, known)
        or f"set {name} with --env or under `env`, or write $${name} for the text itself"
    )


def read_files(
    run: CheckedRun,
    settings: Settings,
    outputs: StackOutputs,
    files: FilesToUpload,
    on_progress: OnProgress,
    *,
    runs_code: bool = True,
) -> tuple[RunContent, tuple[str, ...]]:
    """Pack the code and hash the data on this machine. Do not download missing data.

    Without `runs_code`, no code of the recipe's folder is executed. The second value is warnings.
    """
    recipe = run.recipe
    if settings.target.runs_here and recipe.source != "builtin":
        refuse_conda_here(recipe)
    apart = local_paths(recipe.inputs, recipe.folder)
    excluded = (settings.output_dir, settings.home, *apart)
    added = recipe.package_source.added
    code = files.once(
        ("code", recipe.folder, recipe.files, excluded, added),
        lambda: _pack(recipe, excluded, settings.home, files),
    )
    if recipe.source != "builtin":
        _refuse_left_out(recipe, code)
    agent = files.once("agent", build_agent)
    agent_sha256 = files.once("agent_sha256", lambda: hashlib.sha256(agent).hexdigest())
    files.archives |= {code.sha256: code.data, agent_sha256: agent}
    commits, found = _check_packages(run, code, files)
    content = RunContent(
        code=_code_ref(recipe, code, files),
        agent_sha256=agent_sha256,
        requirements_sha256=_requirements_sha256(recipe),
        data=_read_data(run, settings.home, files, on_progress, runs_code=runs_code),
        inputs=input_entries(recipe.inputs, outputs, settings.home, on_progress, files),
        commits=commits,
    )
    if recipe.source == "builtin":
        return content, (*code.warnings, *found)
    packages = files.once(
        ("packages", recipe.folder, recipe.command, recipe.package_source, recipe.packages),
        lambda: package_warnings(recipe),
    )
    unsent = _unsent(run, code)
    warnings = (*code.warnings, *packages, *map(str, unsent))
    return replace(content, unsent=unsent), (*warnings, *found)


def warn_of_files(recipe: Recipe, home: Path) -> tuple[str, ...]:
    """Return warnings about the files of a recipe that are sent, or that its code reads in vain.

    Raises:
        RunnerError: as `pack_code`, or a rule leaves out what the run needs.
    """
    if recipe.source == "builtin":
        return ()
    code = _pack(recipe, (home, *local_paths(recipe.inputs, recipe.folder)), home, None)
    _refuse_left_out(recipe, code)
    params = {each.name: each.default for each in recipe.params if each.default is not None}
    run = CheckedRun(recipe, RunOptions(), params, recipe.command)
    return (*code.warnings, *map(str, _unsent(run, code)))


def _unsent(run: CheckedRun, code: CodeArchive) -> tuple[UnsentPath, ...]:
    """Return the paths that the code of a run reads and that will not exist on the node."""
    from runner.core.recipe.read_paths import SentCode, find_unsent  # noqa: PLC0415

    recipe, data = run.recipe, run.options.data
    elsewhere = [(one.base or Path.cwd()) / Path(one.source).expanduser()
                 for one in recipe.inputs if one.kind == "path"]  # fmt: skip
    elsewhere += [data] if data else []
    sent = SentCode(
        recipe.folder,
        code.names,
        code.excluded,
        tuple(path.resolve() for path in elsewhere),
        recipe.files[0] if recipe.files else None,
    )
    return find_unsent(sent, recipe.command, run.command[len(recipe.command) :], run.params)


def _refuse_left_out(recipe: Recipe, code: CodeArchive) -> None:
    """Raise RunnerError if an ignore file excludes the script, or what the installation needs."""
    _refuse_without_script(recipe, code)
    source, sent = recipe.package_source, frozenset(code.names)
    missing = [name for name in source.files if name not in sent]
    missing += [
        name
        for name in source.listed.folders
        if name != "." and not any(each.startswith(f"{name}/") for each in sent)
    ]
    if missing:
        raise RunnerError(
            "R-REQUIREMENTS",
            f"{missing[0]} would not be uploaded"
            if missing[0] == source.origin
            else f"{source.origin} needs {missing[0]}, which would not be uploaded",
            why=".gitignore or .runnerignore excludes it",
            fix=f"remove that rule, or add a line with !{missing[0]} to .runnerignore",
        )


def _refuse_without_script(recipe: Recipe, code: CodeArchive) -> None:
    """Raise RunnerError if rules leave out the script of the command."""
    script = find_script(recipe.folder, recipe.command)
    if script is None or not code.excluded or script in code.names:
        return
    name = PurePosixPath(os.path.normpath(script)).as_posix()
    for each in code.excluded:
        if f"{name}/".startswith(f"{each.path.rstrip('/')}/"):
            ignore = shlex.quote(str(recipe.folder / RUNNER_RULES))
            raise RunnerError(
                "R-CODE-LEFT-OUT",
                f"{name}, which the command runs, would not be uploaded",
                why=f"{each.rule} leaves it out",
                fix=f"echo {shlex.quote(f'!{each.path}')} >> {ignore}",
            )


def _check_packages(
    run: CheckedRun, code: CodeArchive, files: FilesToUpload
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the commits of packages in git, and warnings; built-in recipes have neither."""
    recipe = run.recipe
    if recipe.source == "builtin":
        return {}, ()
    from runner.flows.submit.packages import (  # noqa: PLC0415  built-in recipes start faster
        find_commits,
        read_package_texts,
        warn_passwords,
        warn_unset,
    )

    texts = read_package_texts(recipe)
    commits, unresolved = files.once(
        ("commits", recipe.folder, recipe.requirements_file),
        lambda: find_commits(recipe, texts, run.secrets),
    )
    return commits, (
        *warn_passwords(recipe, texts, code),
        *warn_unset(recipe, texts),
        *unresolved,
    )


def download_data(
    draft: RunPlan, home: Path, files: FilesToUpload, on_progress: OnProgress
) -> RunPlan:
    """Download the data sets that are not on this machine. Return the draft with its content."""
    recipe, content = draft.recipe, draft.content
    data = content.data
    if data is None and recipe.dataset is not None:
        folder = recipe.folder
        data = _data_ref(
            _find_dataset(recipe.dataset, home, files, on_progress, folder, fetch=True), files
        )
    inputs = dict(content.inputs)
    for spec in recipe.inputs:
        if spec.kind == "dataset" and "prefix" not in inputs[spec.name]:
            found = _find_dataset(spec.source, home, files, on_progress, fetch=True)
            if found is not None:
                inputs[spec.name] = _uploaded(spec, found, files)
    return with_content(draft, replace(content, data=data, inputs=inputs))


def _read_data(
    run: CheckedRun, home: Path, files: FilesToUpload, on_progress: OnProgress, *, runs_code: bool
) -> DataRef | None:
    """Return the data set of --data or the cached one."""
    name, data = run.recipe.dataset, run.options.data
    folder = run.recipe.folder if name else None
    if data is None:
        dataset = name and _find_dataset(name, home, files, on_progress, folder, fetch=False)
        return _data_ref(dataset or None, files)
    name = name or slug(data.resolve().name)
    return _data_ref(
        files.once(
            ("--data", name, data, folder),
            lambda: resolve_dataset(name, data, home, on_progress, folder, runs_code=runs_code),
        ),
        files,
    )


def _data_ref(dataset: Dataset | None, files: FilesToUpload) -> DataRef | None:
    if dataset is None:
        return None
    ref = DataRef.of_files(dataset.name, dataset.source, dataset.notice, _listed(dataset))
    files.data[ref.prefix] = dataset
    return ref


def _find_dataset(
    name: str,
    home: Path,
    files: FilesToUpload,
    on_progress: OnProgress,
    folder: Path | None = None,
    *,
    fetch: bool,
) -> Dataset | None:
    if fetch:
        return files.once(
            ("fetched", name, folder),
            lambda: resolve_dataset(name, None, home, on_progress, folder),
        )
    return files.once(("cached", name, folder), lambda: cached_dataset(name, home, folder))


def input_entries(
    specs: Sequence[InputSpec],
    outputs: StackOutputs,
    home: Path,
    on_progress: OnProgress,
    files: FilesToUpload,
) -> dict[str, Mapping[str, Any]]:
    """Return the entries of inputs in run.json without the services, and hash local files.

    The entry of a data set that is not cached has a name, but no files.
    """
    return {spec.name: _input_entry(spec, outputs, home, on_progress, files) for spec in specs}


def _input_entry(
    spec: InputSpec,
    outputs: StackOutputs,
    home: Path,
    on_progress: OnProgress,
    files: FilesToUpload,
) -> Mapping[str, Any]:
    if spec.kind == "path":
        return files.once(("input", spec), lambda: _from_path(spec, files))
    if spec.kind == "dataset":
        try:
            dataset = _find_dataset(spec.source, home, files, on_progress, fetch=False)
        except RunnerError as err:
            fix = "use dataset:mnist, or a path, blob: or https:// for other data"
            raise refused_input(spec, "there is no download for this data set", fix) from err
        if dataset is not None:
            return _uploaded(spec, dataset, files)
    if spec.kind == "url":
        return {"kind": "url", "url": spec.source, "sha256": spec.sha256}
    if spec.kind == "share":
        if outputs.file_share is None:
            problem = "this stack has no file share"
            raise refused_input(spec, problem, "use blob:container/prefix or a path")
        return {"kind": "share", "path": spec.source}
    # These entries are completed later: by the services, a download, or the group.
    part = {"path": spec.part} if spec.kind == "run" else {}
    return {"kind": spec.kind, spec.kind: spec.source, **part}


def _from_path(spec: InputSpec, files: FilesToUpload) -> dict[str, Any]:
    path = Path(spec.source).expanduser()
    path = (spec.base or Path.cwd()) / path
    if not path.exists():
        raise refused_input(spec, f"{path} does not exist", "use a file or folder of this machine")
    single = stored_path(path.name) if path.is_file() else None
    return _uploaded(spec, from_path(_UPLOADED, path), files, single)


def _uploaded(
    spec: InputSpec, dataset: Dataset, files: FilesToUpload, single: str | None = None
) -> dict[str, Any]:
    check_file_count(spec, len(dataset.files))
    listed = _listed(dataset)
    prefix = data_prefix(dataset.name, listed)
    files.data[prefix] = dataset
    return {
        "kind": spec.kind,
        spec.kind: spec.source,
        "prefix": prefix,
        "single": single,
        "files": [{"name": n, "size_bytes": size, "sha256": sha256} for n, size, sha256 in listed],
    }


def local_paths(specs: Sequence[InputSpec], folder: Path) -> tuple[Path, ...]:
    """Return the inputs in the recipe's folder, which are uploaded as inputs instead of code."""
    root = folder.resolve()
    paths = (
        ((spec.base or Path.cwd()) / Path(spec.source).expanduser()).resolve()
        for spec in specs
        if spec.kind == "path"
    )
    return tuple(path for path in paths if path != root and path.is_relative_to(root))


def check_file_count(spec: InputSpec, files: int) -> None:
    """Raise RunnerError for an input with more files than run.json can list."""
    if files > MAX_FILES:
        what = f"more than {MAX_FILES} files"
        raise refused_input(spec, what, "pack them into archives, or mount the container")


def refused_input(spec: InputSpec, problem: str, fix: str) -> RunnerError:
    """Return the error for an input that cannot be used."""
    return RunnerError(
        "R-INPUT",
        f"input {spec.name}: {problem}",
        why=f"the input is {spec.kind}: {spec.source}",
        fix=fix,
    )


def _pack(
    recipe: Recipe, apart: tuple[Path, ...], home: Path, files: FilesToUpload | None
) -> CodeArchive:
    """Pack the code. Meanwhile, begin with what else a submission needs if it has `files`."""
    if recipe.files is not None or recipe.source == "builtin":
        if files is not None and recipe.source != "builtin":
            _start_git(recipe, files)
        return pack_code(recipe, apart)
    # Built-in recipes need none of these.
    from runner.core.recipe.listed_files import select_listed  # noqa: PLC0415
    from runner.core.recipe.packed_blocks import PackedBlocks  # noqa: PLC0415
    from runner.flows.submit.git import list_code  # noqa: PLC0415

    root = recipe.folder.resolve()
    cache = HomePaths(home).cache / "code"
    if home.is_dir():  # a dry run creates none
        with suppress(OSError):
            make_private(cache)
    # Its files are sent as code, whoever wrote them.
    packed = PackedBlocks(cache, root) if is_private(cache) else None

    def meanwhile() -> str:
        if files is not None:
            files.once("agent", build_agent)
        return "" if packed is None else state_of_last(recipe, apart, packed)

    listing = list_code(recipe.folder, meanwhile)
    if files is not None:
        _start_git(recipe, files, listing)
    if listing is None:
        return pack_code(recipe, apart, None, packed)
    if packed is not None and listing.is_last:
        found = repack(recipe, packed, listing.changed)
        if found is not None:
            return found
        listing = list_code(recipe.folder) or listing
    return pack_code(recipe, apart, select_listed(root, apart, listing), packed)


def _code_ref(recipe: Recipe, code: CodeArchive, files: FilesToUpload) -> CodeRef:
    left_out = tuple(ExcludedPath(stored_path(e.path), e.rule) for e in code.excluded)
    ref = CodeRef(code.sha256, len(code.data), code.files, left_out=left_out)
    if recipe.source == "builtin":
        return ref
    git = _start_git(recipe, files).result()
    return replace(ref, git_revision=git[0], git_dirty=git[1]) if git else ref


def _start_git(
    recipe: Recipe, files: FilesToUpload, listing: GitListing | None = None
) -> Future[tuple[str, bool] | None]:
    """Ask git about the folder of a recipe, while its files are read."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  not for built-in recipes

    from runner.flows.submit.git import git_revision  # noqa: PLC0415

    def start() -> Future[tuple[str, bool] | None]:
        threads = ThreadPoolExecutor(1)
        try:
            return threads.submit(git_revision, recipe.folder, listing)
        finally:
            threads.shutdown(wait=False)

    return files.once(("git", recipe.folder), start)


def _listed(dataset: Dataset) -> tuple[tuple[str, int, str], ...]:
    return tuple((stored_path(f.name), f.size_bytes, f.sha256) for f in dataset.files)


def _requirements_sha256(recipe: Recipe) -> str | None:
    if recipe.requirements_file is None:
        return None
    added = dict(recipe.package_source.added).get(recipe.requirements_file)
    if added is not None:
        return hashlib.sha256(added.encode()).hexdigest()
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


def random_suffix() -> str:
    """Return four random letters or digits, which distinguish run IDs of the same second."""
    return "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(4))
