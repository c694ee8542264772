"""Validate a sweep: each trial is a run, and all trials are a group in one Batch job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import PurePosixPath
from typing import Any, cast

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer
from runner.core.home import code_variables
from runner.core.planning.plan import CheckedRun, script_arguments
from runner.core.pricing.cost import to_micros
from runner.core.progress import OnProgress
from runner.core.recipe.dimensions import (
    MAX_TRIALS,
    Dimension,
    Trial,
    Value,
    is_value,
    matches_blob,
)
from runner.core.recipe.file import load_recipe, missing_script
from runner.core.recipe.inputs import InputSpec, input_variable
from runner.core.recipe.local_code import is_file_in
from runner.core.recipe.options import (
    RunOptions,
    parse_value,
    resolve_params,
    with_options,
)
from runner.core.recipe.recipe import Param, Recipe
from runner.core.recipe.submit_file import JobFile, SubmitFile, TaskFile
from runner.core.recipe.sweep import MergeFile, SweepFile
from runner.core.settings import Settings
from runner.core.units import format_count
from runner.flows.submit.check_and_read import check_command, check_run, with_named_files
from runner.flows.submit.group import CheckedFile, naming_task
from runner.flows.submit.lookups import blob_document
from runner.flows.submit.pipeline import dry_run_services, open_services
from runner.protocol.commands import find_notebook, names_in_braces, place_parameters, to_text
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.groups import MERGE_TASK, TRIALS_INPUT
from runner.protocol.metrics import default_goal
from runner.protocol.paths import MAX_ID, STAMP_LENGTH, as_stored, listed_prefix, slug
from runner.protocol.samplers import SAMPLERS
from runner.protocol.sweeps import TrialSpec

GENERATOR_S = 60.0
_IDS_MAX_CHARS = 64_000  # REST docs, BatchTaskDependencies.taskIds
# Runs the generator in a separate process, because it may print, fail, or never end.
_GENERATE = """
import importlib.util, itertools, json, os, sys
path, name, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
answer, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
os.dup2(2, 1)
sys.path.insert(0, os.getcwd())
spec = importlib.util.spec_from_file_location("trials", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
def plain(value):
    if hasattr(value, "item"):
        return value.item()  # a number of NumPy
    raise TypeError(f"{value!r} is not text, a bool or a number")
json.dump(list(itertools.islice(getattr(module, name)(), most)), answer, default=plain)
answer.close()
"""


BlobFiles = Mapping[str, Mapping[str, Mapping[str, Any]]]  # per parameter: inputs by value
_NO_BLOBS: BlobFiles = {}


def find_blobs(
    sweep: SweepFile, settings: Settings, on_progress: OnProgress, *, dry_run: bool = False
) -> tuple[SweepFile, BlobFiles]:
    """Return a sweep with the names of blobs as values, and their entries in run.json.

    Raises:
        RunnerError: R-SWEEP-FILES, no blob matches; R-SWEEP-BLOBS, the services are not running.
    """
    if not (patterns := sweep.blob_patterns):
        return sweep, _NO_BLOBS
    connection = (
        dry_run_services(settings).connection
        if dry_run
        else open_services(settings, on_progress)[0]
    )
    if connection is None:
        raise RunnerError(
            "R-SWEEP-BLOBS",
            "cannot list the blobs of the sweep",
            why="the local services are not running",
            fix="runner local up",
            exit_code=ExitCode.PREFLIGHT,
        )
    found = {name: list_blobs(connection, name, each) for name, each in patterns.items()}
    return sweep.with_blobs({name: tuple(files) for name, files in found.items()}), found


def list_blobs(connection: Connection, name: str, pattern: str) -> dict[str, Mapping[str, Any]]:
    """Return the entries of the blobs that match a pattern, by `container/blob`."""
    container, _, below = as_stored(pattern).partition("/")
    store = BlobContainer(connection.blob_service(), container)
    fixed = re.split(r"[*?\[]", below)[0]
    prefix = fixed.rpartition("/")[0] if fixed != below else fixed
    found: dict[str, Mapping[str, Any]] = {}
    try:
        blobs = map(store.with_full_name, store.list(listed_prefix(prefix)))
        for blob in sorted(blobs, key=lambda each: each.name):
            if blob.name.endswith("/") or not matches_blob(blob.name, below):
                continue
            folder, _, last = blob.name.rpartition("/")
            source = f"{container}/{blob.name}"
            found[source] = blob_document(source, container, folder, [blob], last)
    except RunnerError as err:
        if err.code != "R-CONTAINER-MISSING":
            raise
    if not found:
        raise RunnerError(
            "R-SWEEP-FILES",
            f"sweep: no blob for {name} matches {pattern}",
            why=f"there is none in container {container!r} of the storage account",
            fix=f"correct the pattern in `files`; see `runner data ls {container}:`",
        )
    return found


def check_sweep(
    recipe: Recipe,
    sweep: SweepFile,
    options: RunOptions,
    blobs: BlobFiles = _NO_BLOBS,
) -> CheckedFile:
    """Validate every trial of a sweep as a run.

    The parameters of a trial become arguments of the script if the recipe declares no parameters.

    Args:
        recipe: recipe of each trial; its cap applies per trial.
        sweep: the trials.
        options: options of all trials; each trial gets an equal share of `max_cost`.
        blobs: result of `find_blobs`; the blobs become inputs of the trials.

    Raises:
        RunnerError: a trial is invalid, or the generator fails. Nothing is written.
    """
    recipe = with_options(recipe, replace(options, max_cost=None))
    sweep = sweep.with_types(_declared_types(recipe))
    _refuse_shared_task(recipe, sweep)
    if sweep.generator is None:
        trials = sweep.list_trials(recipe.folder)
    else:
        trials = sweep.repeated(_generated(recipe, sweep.generator))
    _refuse_fixed(trials, options.set)
    _refuse_pattern(recipe, sweep)
    words = (*recipe.command, *options.args)
    recipe = _with_files(recipe, sweep, trials, options)
    named = _named_parameters(words, recipe, sweep, trials)
    of_trial = _trial_specs(recipe, sweep, options)
    sampler = of_trial("", 0, {}).sampler
    if blobs and sampler is not None:
        raise RunnerError(
            "R-SWEEP-BLOBS",
            f"the method {sampler} cannot choose blobs",
            why="the blob of a trial must be known at the submission",
            fix="--method random",
        )
    if sampler is not None:
        for each in sweep.dimensions(recipe.folder):  # the node chooses among all rows
            for row in each.rows:
                script_arguments(recipe, dict(zip(each.names, row, strict=True)))
    if options.max_cost is not None:
        shares = len(trials) + (sweep.merge is not None)
        recipe = replace(recipe, max_cost_micros=to_micros(options.max_cost) // shares)
    width = len(str(len(trials)))
    local = [key for key, value in sweep.params.items() if "files" in value]
    runs: dict[str, CheckedRun] = {}
    for number, trial in enumerate(trials, start=1):
        name = f"{number:0{width}d}"
        try:
            read = {key: blobs[key][str(value)] for key, value in trial.items() if key in blobs}
            # A file may have a name with $, which is no variable of the node.
            paths = {key: str(trial[key]).replace("$", "$$") for key in local if key in trial}
            document = of_trial(name, number, trial).to_json()
            own = _options(recipe, {**trial, **paths}, options, tuple(read), named)
            reads = with_options(recipe, RunOptions(inputs=own.inputs)) if read else recipe
            checked = check_command(reads, own, trial=document)
            runs[name] = replace(checked, resolved=read) if read else checked
        except RunnerError as err:
            fix = err.fix.replace("--set ", "--param ", 1) if err.code == "R-SET-VALUE" else err.fix
            raise RunnerError(
                err.code, f"trial {name}: {err.what}", why=err.why, fix=fix, exit_code=err.exit_code
            ) from err
    runs = _with_same_files(runs)
    swept = dict(zip(runs, trials, strict=True))
    task = TaskFile.model_construct(recipe=recipe.name)
    tasks = dict.fromkeys(runs, task)
    if (merge := sweep.merge) is not None:
        if merge.partial:
            tasks = dict.fromkeys(runs, task.model_copy(update={"on_failure": "satisfy"}))
        _check_dependencies(recipe, len(runs), width)
        tasks[MERGE_TASK] = task.model_copy(update={"after": list(runs)})
        runs[MERGE_TASK] = _check_merge(recipe, merge, options)
    file = SubmitFile.model_construct(
        tasks=tasks, job=JobFile.model_validate({"max_parallel": sweep.max_parallel})
    )
    return CheckedFile(file, slug(recipe.name), recipe.priority, runs, swept, sweep.trials_per_task)


def _declared_types(recipe: Recipe) -> dict[str, Callable[[str], Value]]:
    """Return what reads a text as a value of each parameter with a declared type.

    It returns the text if that is invalid, which the check of the trial refuses.
    """

    def read(param: Param, text: str) -> Value:
        with suppress(RunnerError):
            return cast("Value", parse_value(param, text))
        return text

    return {
        each.name: partial(read, each)
        for each in recipe.params
        if each.type in ("int", "float", "bool") and not each.is_inferred
    }


def _with_files(
    recipe: Recipe, sweep: SweepFile, trials: Sequence[Trial], options: RunOptions
) -> Recipe:
    """Return the recipe with the files that parameters name, if it sends its script alone."""
    if recipe.files is None:
        return recipe
    values = [value for trial in trials for value in trial.values()]
    if sweep.generator is None:  # the sampler may choose other values than those of the trials
        dimensions = sweep.dimensions(recipe.folder)
        values += [value for each in dimensions for row in each.rows for value in row]
        recipe = with_named_files(recipe, _sampled_words(dimensions, options))
    texts = (value for value in dict.fromkeys(values) if isinstance(value, str))
    found = (str(PurePosixPath(text)) for text in texts if is_file_in(recipe.folder, text))
    return replace(recipe, files=tuple(dict.fromkeys((*(recipe.files or ()), *found))))


def _sampled_words(dimensions: Sequence[Dimension], options: RunOptions) -> list[str]:
    """Return the arguments that the script may get for those with names of parameters in braces.

    Numbers between two limits are not inserted, because they name no files.
    """
    rows = [
        [dict(zip(each.names, row, strict=True)) for row in each.rows]
        for each in dimensions
        if each.rows
    ]
    rows += [[{name: value}] for name, _, value in (o.partition("=") for o in options.set)]
    found: list[str] = []
    for word in options.args:
        placed, _ = names_in_braces((word,))
        named = [choices for choices in rows if not placed.isdisjoint(choices[0])]
        for chosen in islice(product(*named), MAX_TRIALS if named else 0):
            found += place_parameters((word,), dict(ChainMap(*chosen)), "flags")
    return found


def _with_same_files(runs: Mapping[str, CheckedRun]) -> dict[str, CheckedRun]:
    """Return the trials with the files of all of them, because they have the same code."""
    files = dict.fromkeys(file for run in runs.values() for file in run.recipe.files or ())
    return {
        name: run
        if run.recipe.files is None or len(run.recipe.files) == len(files)
        else replace(run, recipe=replace(run.recipe, files=tuple(files)))
        for name, run in runs.items()
    }


def _check_merge(recipe: Recipe, merge: MergeFile, options: RunOptions) -> CheckedRun:
    """Validate the task after all trials; a command has the environment of the recipe."""
    with naming_task(MERGE_TASK):
        if merge.recipe is not None:
            own = load_recipe(merge.recipe, cwd=recipe.folder)
            inputs = own.inputs
        else:
            words = tuple(merge.command or ())
            if missing := missing_script(words, recipe.folder):
                raise RunnerError(
                    "R-SWEEP-MERGE",
                    f"{missing} not found in {recipe.folder}",
                    fix="correct `command` of `merge`",
                )
            own, inputs = replace(recipe, command=words, params=()), ()
            if own.files is not None:  # the recipe sends its script alone
                named = (word for word in words if (recipe.folder / word).is_file())
                own = replace(own, files=tuple(dict.fromkeys((*own.files, *named))))
        results = InputSpec(TRIALS_INPUT, TRIALS_INPUT, "the results of all trials")
        own = replace(
            own,
            inputs=(*(each for each in inputs if each.name != TRIALS_INPUT), results),
            max_cost_micros=recipe.max_cost_micros,
            priority=recipe.priority,
        )
        if merge.recipe is None:
            own = replace(
                own, dataset=None, outputs=(), named_outputs={}, metric_patterns={},
                primary_metric=None, expect=(), model=None, launcher="python",
                resources=replace(recipe.resources, nodes=1),
            )  # fmt: skip
        return check_run(own, RunOptions(experiment=options.experiment or recipe.name))


def _check_dependencies(recipe: Recipe, trials: int, width: int) -> None:
    """Reject a merge task that depends on more trials than Batch can store."""
    length = min(MAX_ID, len(slug(recipe.name)) + 1 + width + STAMP_LENGTH)
    if length * trials > _IDS_MAX_CHARS:
        raise RunnerError(
            "R-SWEEP-MERGE",
            f"a merge task can depend on {_IDS_MAX_CHARS // length:,} trials, not {trials:,}",
            why=f"Batch stores at most {_IDS_MAX_CHARS:,} characters of dependencies per task",
            fix="sweep fewer values, or use a shorter name for the recipe",
        )


def _trial_specs(
    recipe: Recipe, sweep: SweepFile, options: RunOptions
) -> Callable[[str, int, Trial], TrialSpec]:
    """Return a function that creates the `trial` of run.json from name, number and trial."""
    metric = sweep.metric or recipe.primary_metric
    method = sweep.choose_method(metric)
    nodes = recipe.resources.nodes
    if nodes > 1 and (sweep.method in SAMPLERS or sweep.stops_early):
        key = "early_stop" if sweep.stops_early else f"method: {sweep.method}"
        raise RunnerError(
            "R-SWEEP-NODES",
            f"sweep: {key} with {nodes} nodes",
            why="a trial on several nodes cannot choose its parameters or stop early",
            fix="remove it, or use one node per trial",
        )
    if nodes > 1 and method in SAMPLERS:  # by default
        method = "random"
    rule = sweep.stop_rule(method)
    own = recipe.goal if metric is not None and metric == recipe.primary_metric else None
    goal = sweep.goal or own or default_goal(metric or "")
    if method not in SAMPLERS:
        return lambda name, number, trial: TrialSpec(name, number, trial, metric, goal, rule)
    space = sweep.space(recipe.folder)
    swept = {name for each in space for name in each["names"]}
    words = (*recipe.command, *options.args)
    declared = resolve_params(recipe.params, options.set, words=words) if recipe.params else {}
    defaults = {name: value for name, value in declared.items() if name in swept}
    return lambda name, number, trial: TrialSpec(
        name, number, trial, metric, goal, rule,
        sampler=method, decided=False, seed=sweep.seed, space=space, defaults=defaults,
    )  # fmt: skip


def _named_parameters(
    words: Sequence[str], recipe: Recipe, sweep: SweepFile, trials: Sequence[Trial]
) -> frozenset[str]:
    """Return the swept parameters that words of the command name in braces.

    Raises:
        RunnerError: R-SET-MISSING, a trial may have no value for one.
    """
    placed, escaped = names_in_braces(words)
    if not placed and not escaped:
        return frozenset()
    swept = {name for trial in trials for name in trial}
    conditional = {name for name in swept if any(name not in trial for trial in trials)}
    if sweep.generator is None:
        dimensions = sweep.dimensions(recipe.folder)
        conditional |= {name for each in dimensions if each.when for name in each.names}
    defaults = {param.name for param in recipe.params if param.default is not None}
    for name in sorted((placed & conditional) - defaults):
        raise RunnerError(
            "R-SET-MISSING",
            f"some trials have no value for {name}",
            why=f"the command contains {{{name}}}, and not every trial has the parameter",
            fix=f"vary {name} in all trials, or remove {{{name}}} from the command",
        )
    return frozenset(swept & (placed | escaped))


def _options(
    recipe: Recipe,
    trial: Trial,
    options: RunOptions,
    read: Sequence[str],
    named: Collection[str],
) -> RunOptions:
    """Return the options of a trial.

    Args:
        recipe: the recipe of all trials.
        trial: the parameters of the trial.
        options: the options of all trials.
        read: the parameters whose values are paths of blobs.
        named: the parameters that the command has in braces.
    """
    inputs = tuple(f"{name}=blob:{trial[name]}" for name in read)
    _refuse_unquotable(recipe, {name: str(trial[name]) for name in read})
    trial = {**trial, **{name: f"${input_variable(name)}" for name in read}}
    overrides, script_args = options.set, options.args
    # Arguments are searched for names of parameters only if there are parameters.
    are_arguments = not (recipe.params or named or overrides)
    if are_arguments and find_notebook(recipe.command) is None:
        given = script_arguments(recipe, trial)
        script_args = recipe.insert_parameters(given, script_args)
    else:
        overrides = (*overrides, *(f"{name}={to_text(value)}" for name, value in trial.items()))
    return replace(options, set=overrides, args=script_args, inputs=(*options.inputs, *inputs))


def _refuse_unquotable(recipe: Recipe, blobs: Mapping[str, str]) -> None:
    """Raise RunnerError for a blob whose path on the node Hydra cannot read.

    Only the node knows the path, which ends with the name of the blob.
    """
    for name, blob in blobs.items():
        if recipe.params_as == "hydra" and re.search(r"['\\\x00-\x1f]", blob):
            raise RunnerError(
                "R-SWEEP-BLOBS",
                f"Hydra cannot read the path of blob {blob!r} as the value of {name}",
                why="its name has a quote, a backslash or a control character",
                fix="rename the blob, or read it with --params-as flags",
            )


def _refuse_shared_task(recipe: Recipe, sweep: SweepFile) -> None:
    """Raise RunnerError if trials of the recipe cannot run one after another in one task."""
    if sweep.trials_per_task == 1:
        return
    nodes = recipe.resources.nodes
    if nodes > 1:
        what, why = f"{nodes} nodes", "the agents of its nodes end with its task"
    elif recipe.image is not None:
        what, why = "an image", "its container ends with its task"
    else:
        return
    raise RunnerError(
        "R-SWEEP-TASKS",
        f"sweep: `trials_per_task: {sweep.trials_per_task}` with {what}",
        why=f"a trial with {what} cannot share a task with others: {why}",
        fix="--trials-per-task 1",
    )


def _refuse_fixed(trials: Sequence[Trial], overrides: Sequence[str]) -> None:
    swept = {name for trial in trials for name in trial}
    for text in overrides:
        name = text.partition("=")[0].strip()
        if name in swept:
            raise RunnerError(
                "R-SWEEP-FIXED",
                f"unexpected --set {text}: the sweep varies {name}",
                why="a parameter is either set for all trials, or varied",
                fix=f"remove --set {text}, or {name} from the sweep",
            )


def _refuse_pattern(recipe: Recipe, sweep: SweepFile) -> None:
    """Raise RunnerError for the pattern of files as the only value of a parameter."""
    for name, entry in sweep.params.items():
        values = cast("list[object]", entry.get("choice") or [])
        pattern = values[0] if len(values) == 1 else None
        if not isinstance(pattern, str) or not re.fullmatch(r"[^/].*[*?].*|[*?].*", pattern):
            continue
        count = 0
        with suppress(ValueError, OSError):  # `a**b` is no pattern
            count = sum(path.is_file() for path in recipe.folder.glob(pattern))
        if count:
            raise RunnerError(
                "R-SWEEP-FILES",
                f"sweep: {pattern!r} is the only value of {name}",
                why=f"the pattern matches {format_count(count, 'file')}, but a list has no "
                f"patterns; to pass the text itself, use --set '{name}={pattern}'",
                fix=f"--param '{name}={{files: \"{pattern}\"}}'",
            )


def _generated(recipe: Recipe, generator: str) -> list[Trial]:
    """Return the trials that a function in the recipe's folder yields."""
    file, _, name = generator.partition(":")
    path = (recipe.folder / file).resolve()
    if not path.is_file() or not path.is_relative_to(recipe.folder.resolve()):
        raise _refused(generator, f"no file {file} in {recipe.folder}", "correct the file's name")
    # -P: the imports of this program are not searched in the folder of the recipe
    command = [sys.executable, "-P", "-c", _GENERATE, str(path), name, str(MAX_TRIALS + 1)]
    try:
        done = subprocess.run(
            command,
            cwd=recipe.folder,
            env=code_variables(os.environ),
            capture_output=True,
            timeout=GENERATOR_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as err:
        why = f"the generator took more than {GENERATOR_S:g} s"
        raise _refused(generator, why, "yield fewer trials, or yield them faster") from err
    if done.returncode:
        printed = done.stderr.decode(errors="replace").strip()
        why = printed.splitlines()[-1] if printed else f"exit code {done.returncode}"
        line = re.findall(rf'File "{re.escape(str(path))}", line (\d+)', printed)[-1:]
        raise _refused(generator, why, f"correct {f'line {line[0]}' if line else name} of {file}")
    trials = [_checked(trial, generator) for trial in json.loads(done.stdout)]
    if not trials:
        raise _refused(
            generator, "the generator yielded nothing", f"yield one dict per trial in {name}"
        )
    return trials


def _checked(trial: Any, generator: str) -> Trial:
    if isinstance(trial, dict):
        found = cast("Trial", trial)
        wrong = [f"{name}={value!r}" for name, value in found.items() if not is_value(value)]
        if wrong:
            why = f"{trial!r} has invalid values for a trial: {wrong[0]}"
            raise _refused(
                generator, why, "yield text, true, false, None or finite numbers as values"
            )
        if found:
            return found
    fix = 'yield one dict per trial, like {"learning_rate": 0.1}'
    raise _refused(generator, f"invalid trial {trial!r}", fix)


def _refused(generator: str, why: str, fix: str) -> RunnerError:
    return RunnerError(
        "R-SWEEP-GENERATOR", f"generator {generator} returned no trials", why=why, fix=fix
    )
