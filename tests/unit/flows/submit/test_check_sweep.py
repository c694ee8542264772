"""The fields of a sweep in the run specification of each trial."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from runner.core.recipe.dimensions import matches_blob
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.submit_file import edges, must_succeed
from runner.core.recipe.sweep import SweepFile, change_sweep, parse_param
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.group import CheckedFile
from runner.flows.submit.sweep import check_sweep
from runner.protocol.errors import RunnerError
from runner.protocol.sweeps import StopRule, TrialSpec

DRAWN = {"lr": {"uniform": [0, 1]}}


def trial_of(folder: Path, keys: dict[str, Any], recipe: str = "") -> TrialSpec:
    (folder / "train.py").write_text("print('loss: 1')\n")
    (folder / "train.yaml").write_text(f"command: python train.py\n{recipe}")
    sweep = SweepFile.model_validate({"params": DRAWN, "trials": 3, **keys})
    checked = check_sweep(load_recipe(str(folder), cwd=folder), sweep, RunOptions())
    assert list(checked.runs) == ["1", "2", "3"]
    return TrialSpec.from_json(checked.runs["2"].trial or {})


def test_trial_has_the_metric_the_sampler_and_its_space(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, {"metric": "loss", "seed": 4})
    assert (trial.name, trial.number, trial.metric, trial.goal) == ("2", 2, "loss", "min")
    assert (trial.sampler, trial.decided, trial.seed) == ("tpe", False, 4)
    assert trial.early_stop == StopRule("median")
    assert [each["names"] for each in trial.space] == [["lr"]]


def test_without_a_metric_trials_are_drawn_and_nothing_stops_them(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, {})
    assert (trial.sampler, trial.decided, trial.early_stop) == (None, True, None)
    assert 0 <= trial.params["lr"] <= 1


def test_declared_parameters_keep_their_defaults_for_trials_without_a_value(
    tmp_path: Path,
) -> None:
    recipe = "params: {lr: {type: float, default: 0.5}}\nmetrics: {primary: auc, goal: max}\n"
    trial = trial_of(tmp_path, {}, recipe)
    assert (trial.defaults, trial.metric, trial.goal) == ({"lr": 0.5}, "auc", "max")


def test_trials_on_several_nodes_are_drawn(tmp_path: Path) -> None:
    nodes = "resources: {nodes: 2}\n"
    trial = trial_of(tmp_path, {"metric": "loss"}, nodes)
    assert (trial.sampler, trial.early_stop) == (None, None)
    for keys in ({"method": "tpe"}, {"early_stop": "median"}):
        with pytest.raises(RunnerError, match="with 2 nodes"):
            trial_of(tmp_path, {"metric": "loss", **keys}, nodes)


def merged(folder: Path, merge: object) -> CheckedFile:
    (folder / "train.py").write_text("print('loss: 1')\n")
    (folder / "merge.py").write_text("print(1)\n")
    recipe = "command: python train.py\nmetrics: {primary: loss}\ndataset: mnist\n"
    (folder / "train.yaml").write_text(recipe)
    sweep = SweepFile.model_validate({"params": {"lr": [1, 2]}, "merge": merge})
    return check_sweep(load_recipe(str(folder), cwd=folder), sweep, RunOptions(max_cost="3"))


@pytest.mark.feature(42)
def test_merge_task_waits_for_all_trials_and_has_their_results(tmp_path: Path) -> None:
    checked = merged(tmp_path, "python merge.py $RUNNER_INPUT_TRIALS")
    assert list(checked.runs) == ["1", "2", "merge"]
    assert list(checked.trials) == ["1", "2"]
    assert edges(checked.file)["merge"] == ("1", "2")
    assert must_succeed("merge", checked.file) == ("1", "2")
    run = checked.runs["merge"]
    assert run.recipe.command == ("python", "merge.py", "$RUNNER_INPUT_TRIALS")
    assert [each.kind for each in run.recipe.inputs] == ["trials"]
    assert (run.recipe.dataset, run.recipe.primary_metric, run.trial) == (None, None, None)
    assert run.options.experiment == checked.runs["1"].recipe.name
    assert {each.recipe.max_cost_micros for each in checked.runs.values()} == {1_000_000}


def test_partial_merge_task_runs_although_trials_fail(tmp_path: Path) -> None:
    checked = merged(tmp_path, {"command": ["python", "merge.py"], "partial": True})
    assert edges(checked.file)["merge"] == ("1", "2")
    assert must_succeed("merge", checked.file) == ()


def test_merge_task_can_be_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "train.py").write_text("print(1)\n")
    run = merged(tmp_path, {"recipe": "report"}).runs["merge"]
    assert run.recipe.folder == tmp_path / "report"
    assert [each.name for each in run.recipe.inputs] == ["trials"]


def test_merge_task_without_its_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=r"task merge: nothing\.py not found"):
        merged(tmp_path, "python nothing.py")


@pytest.mark.parametrize("merge", [{}, {"command": "a", "recipe": "b"}, "a && b", {"run": "a"}, ""])
def test_invalid_merge_is_refused(merge: object) -> None:
    with pytest.raises(RunnerError):
        change_sweep(None, {"lr": [1, 2]}, {"merge": merge})


def test_more_trials_than_a_merge_task_can_wait_for_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    sweep = SweepFile.model_validate(
        {"params": {"lr": {"range": [1, 3000]}}, "merge": "python train.py"}
    )
    with pytest.raises(RunnerError, match="trials, not 3,000") as caught:
        check_sweep(load_recipe(str(tmp_path), cwd=tmp_path), sweep, RunOptions())
    assert caught.value.code == "R-SWEEP-MERGE"


def test_merge_script_is_sent_with_a_script_that_is_sent_alone(tmp_path: Path) -> None:
    for name in ("count.py", "merge.py", "other.py"):
        (tmp_path / name).write_text("print(1)\n")
    sweep = SweepFile.model_validate({"params": {"lr": [1]}, "merge": "python merge.py"})
    checked = check_sweep(load_recipe("count.py", cwd=tmp_path), sweep, RunOptions())
    assert checked.runs["1"].recipe.files == ("count.py",)
    assert checked.runs["merge"].recipe.files == ("count.py", "merge.py")


def test_files_of_trials_are_sent_with_a_script_that_is_sent_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("count.py", "other.py", "data/1.csv", "data/2.csv", "data/no.txt"):
        (tmp_path / name).write_text("1\n")
    sweep = SweepFile.model_validate({"params": {"csv": {"files": "data/*.csv"}, "n": [1, 2]}})
    checked = check_sweep(load_recipe("count.py", cwd=tmp_path), sweep, RunOptions())
    assert checked.runs["4"].recipe.files == ("count.py", "data/1.csv", "data/2.csv")


def test_files_that_arguments_name_are_sent_with_a_script_that_is_sent_alone(
    tmp_path: Path,
) -> None:
    for name in ("train.py", "a.yaml", "b.yaml", "c.yaml", "other.yaml"):
        (tmp_path / name).write_text("")
    recipe = load_recipe("./train.py", cwd=tmp_path)
    options = RunOptions(args=("--extra=./c.yaml", "--lr", "0.1", "/etc/hostname"))
    assert check_run(recipe, options).recipe.files == ("train.py", "c.yaml")
    sweep = SweepFile.model_validate({"params": {"config": ["a.yaml", "b.yaml", "missing.yaml"]}})
    sent = {each.recipe.files for each in check_sweep(recipe, sweep, options).runs.values()}
    assert sent == {("train.py", "a.yaml", "b.yaml", "c.yaml")}
    sampled = change_sweep(sweep, DRAWN, {"trials": 1, "metric": "loss"})
    [run] = check_sweep(recipe, sampled, RunOptions()).runs.values()
    assert set(run.recipe.files or ()) == {"train.py", "a.yaml", "b.yaml"}
    folder = load_recipe(".", cwd=tmp_path)
    assert check_run(folder, options).recipe.files is None


def test_pattern_as_the_only_value_of_a_parameter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text("")
    recipe = load_recipe("./count.py", cwd=tmp_path)
    params = dict([parse_param("csv=data/*.csv")])
    [run] = check_sweep(recipe, change_sweep(None, params, {}), RunOptions()).runs.values()
    assert run.options.args == ("--csv", "data/*.csv"), "nothing matches"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1")
    with pytest.raises(RunnerError, match="is the only value of csv") as caught:
        check_sweep(recipe, change_sweep(None, params, {}), RunOptions())
    text = change_sweep(None, {"csv": ["a**b.csv"]}, {})
    assert check_sweep(recipe, text, RunOptions()).trials == {"1": {"csv": "a**b.csv"}}
    [_, corrected] = shlex.split(caught.value.fix)
    sweep = change_sweep(None, dict([parse_param(corrected)]), {})
    assert check_sweep(recipe, sweep, RunOptions()).trials == {"1": {"csv": "data/a.csv"}}


def test_subcommand_precedes_the_parameters_of_trials(tmp_path: Path) -> None:
    (tmp_path / "cli.py").write_text("")
    recipe = load_recipe("./cli.py", cwd=tmp_path)
    sweep = SweepFile.model_validate({"params": {"lr": [0.1]}})
    options = RunOptions(args=("fit", "data", "--quiet", "x"))
    [run] = check_sweep(recipe, sweep, options).runs.values()
    assert run.options.args == ("fit", "data", "--lr", "0.1", "--quiet", "x")
    [run] = check_sweep(recipe, sweep, RunOptions()).runs.values()
    assert run.options.args == ("--lr", "0.1")


def test_dollar_in_the_name_of_a_file_is_no_variable(tmp_path: Path) -> None:
    for name in ("count.py", "$HOME.csv"):
        (tmp_path / name).write_text("1\n")
    sweep = SweepFile.model_validate({"params": {"csv": {"files": "*.csv"}}})
    checked = check_sweep(load_recipe("count.py", cwd=tmp_path), sweep, RunOptions())
    run = checked.runs["1"]
    assert run.options.args == ("--csv", "$$HOME.csv")
    assert (run.recipe.files, checked.trials) == (
        ("count.py", "$HOME.csv"),
        {"1": {"csv": "$HOME.csv"}},
    )


def test_generator_may_yield_numbers_of_numpy(tmp_path: Path) -> None:
    number = "class N:\n    def item(self):\n        return 0.5\n"
    (tmp_path / "trials.py").write_text(f"{number}def make():\n    yield {{'lr': N()}}\n")
    (tmp_path / "train.py").write_text("print('loss: 1')\n")
    sweep = SweepFile.model_validate({"generator": "trials.py:make"})
    checked = check_sweep(load_recipe("./train.py", cwd=tmp_path), sweep, RunOptions())
    assert checked.trials == {"1": {"lr": 0.5}}


def test_trial_reads_its_blob_by_the_path_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text("print(1)\n")
    sweep = SweepFile.model_validate({"params": {"csv": {"files": "blob:data/x/*.csv"}}})
    assert sweep.blob_patterns == {"csv": "data/x/*.csv"}
    entries = {f"data/x/{n}.csv": {"kind": "blob", "files": [n]} for n in (1, 2)}
    swept = sweep.with_blobs({"csv": tuple(entries)})
    recipe = load_recipe("count.py", cwd=tmp_path)
    checked = check_sweep(recipe, swept, RunOptions(), {"csv": entries})
    assert checked.trials == {"1": {"csv": "data/x/1.csv"}, "2": {"csv": "data/x/2.csv"}}
    run = checked.runs["2"]
    assert run.options.args == ("--csv", "$RUNNER_INPUT_CSV")
    assert run.resolved == {"csv": entries["data/x/2.csv"]}
    sampled = change_sweep(swept, {}, {"method": "tpe", "metric": "loss"})
    with pytest.raises(RunnerError, match="the method tpe cannot choose blobs"):
        check_sweep(recipe, sampled, RunOptions(), {"csv": entries})


def test_trial_of_a_hydra_script_reads_its_blob_by_its_quoted_path(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import hydra\nhydra.main()(print)()\n")
    recipe = load_recipe(str(tmp_path), cwd=tmp_path)
    sweep = SweepFile.model_validate({"params": {"csv": {"files": "blob:data/*.csv"}}})
    found = {"csv": {"data/a,b.csv": {"kind": "blob", "blob": "data/a,b.csv"}}}
    swept = sweep.with_blobs({"csv": ["data/a,b.csv"]})
    checked = check_sweep(recipe, swept, RunOptions(), blobs=found)
    assert checked.runs["1"].options.args == ("csv='$RUNNER_INPUT_CSV'",)
    quoted = {"csv": {"data/it's.csv": {"kind": "blob", "blob": "data/it's.csv"}}}
    with pytest.raises(RunnerError, match="cannot read the path of blob") as caught:
        check_sweep(
            recipe, sweep.with_blobs({"csv": list(quoted["csv"])}), RunOptions(), blobs=quoted
        )
    assert caught.value.code == "R-SWEEP-BLOBS"


def test_sampled_text_that_hydra_cannot_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import hydra\nhydra.main()(print)()\n")
    recipe = load_recipe(str(tmp_path), cwd=tmp_path)
    params = {**DRAWN, "note": ["a", "b", "c", "line\n"]}
    sweep = SweepFile.model_validate({"params": params, "trials": 1, "metric": "loss"})
    with pytest.raises(RunnerError, match="as the value of note") as caught:
        check_sweep(recipe, sweep, RunOptions())
    assert caught.value.code == "R-SET-VALUE"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("x", {"x/a.csv", "x/y/b.csv", "x/y/c.txt"}),
        ("", {"x/a.csv", "x/y/b.csv", "x/y/c.txt"}),
        ("x/*.csv", {"x/a.csv"}),
        ("x/**/*.csv", {"x/a.csv", "x/y/b.csv"}),
        ("x/**", {"x/a.csv", "x/y/b.csv", "x/y/c.txt"}),
        ("x/y/[!b].???", {"x/y/c.txt"}),
        ("x/a.csv", {"x/a.csv"}),
        ("x/a(csv", set()),
    ],
)
def test_blob_patterns(pattern: str, found: set[str]) -> None:
    blobs = ("x/a.csv", "x/y/b.csv", "x/y/c.txt")
    assert {name for name in blobs if matches_blob(name, pattern)} == found


@pytest.mark.parametrize(
    ("body", "code", "why", "fix"),
    [
        (
            "raise ValueError('no data')\n    yield {}",
            "R-SWEEP-GENERATOR",
            "ValueError: no data",
            "correct line 2 of trials.py",
        ),
        (
            "n = 0\n    while True:\n        n += 1\n        yield {'n': n}",
            "R-SWEEP-SIZE",
            "10,000",
            "let trials.py:make yield fewer trials",
        ),
        (
            "import time\n    time.sleep(60)\n    yield {}",
            "R-SWEEP-GENERATOR",
            "more than 0.3 s",
            "yield fewer trials, or yield them faster",
        ),
        ("yield 3", "R-SWEEP-GENERATOR", "invalid trial 3", "yield one dict"),
        (
            "yield {'lr': float('nan')}",
            "R-SWEEP-GENERATOR",
            "for a trial: lr=nan",
            "finite numbers",
        ),
        (
            "return\n    yield {}",
            "R-SWEEP-GENERATOR",
            "the generator yielded nothing",
            "one dict per trial",
        ),
    ],
)
@pytest.mark.feature(44)
def test_generator_that_fails_or_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, code: str, why: str, fix: str
) -> None:
    if "sleep" in body:
        monkeypatch.setattr("runner.flows.submit.sweep.GENERATOR_S", 0.3)
    (tmp_path / "trials.py").write_text(f"def make():\n    {body}\n")
    (tmp_path / "train.py").write_text("print('loss: 1')\n")
    sweep = SweepFile.model_validate({"generator": "trials.py:make"})
    with pytest.raises(RunnerError) as refused:
        check_sweep(load_recipe("./train.py", cwd=tmp_path), sweep, RunOptions())
    assert refused.value.code == code
    assert why in refused.value.why
    assert fix in refused.value.fix


def test_refused_value_of_a_trial_names_the_option_that_varies_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('loss: 1')\n")
    (tmp_path / "train.yaml").write_text("command: python train.py\nparams: {lr: 0.1}\n")
    sweep = SweepFile.model_validate({"params": {"lr": [0.1, "low"]}})
    with pytest.raises(RunnerError, match="trial 2: invalid value 'low'") as refused:
        check_sweep(load_recipe(".", cwd=tmp_path), sweep, RunOptions())
    assert refused.value.fix.startswith("--param lr=")


def swept(folder: Path, params: dict[str, Any], *args: str, **keys: Any) -> CheckedFile:
    sweep = SweepFile.model_validate({"params": params, **keys})
    recipe = load_recipe("./train.py", cwd=folder)
    return check_sweep(recipe, sweep, RunOptions(args=args))


def command_of(checked: CheckedFile, name: str) -> tuple[str, ...]:
    run = checked.runs[name]
    command, _ = run.command, run.template
    return command[2:]


@pytest.mark.parametrize("keys", [{}, {"metric": "loss", "method": "tpe", "trials": 2}])
def test_swept_parameters_take_the_places_that_arguments_name(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    (tmp_path / "train.py").write_text("print('loss: 1')\n")
    params = {"lr": [0.5], "verbose": [True], "n": [1, 2], "json": [3]}
    checked = swept(tmp_path, params, "fit", "{lr}", '{"json": 1}', "--n={n}", **keys)
    trial = checked.trials["2"]
    expected = (
        "fit",
        "0.5",
        '{"json": 1}',
        "--verbose",
        "true",
        "--json",
        "3",
        f"--n={trial['n']}",
    )
    assert command_of(checked, "2") == expected


def test_file_in_the_place_of_an_argument_is_sent_with_the_script(tmp_path: Path) -> None:
    for name in ("train.py", "a.yaml", "$b.yaml"):
        (tmp_path / name).write_text("")
    checked = swept(tmp_path, {"cfg": {"files": "*.yaml"}}, "--config={cfg}")
    assert command_of(checked, "1") == ("--config=$$b.yaml",)
    assert checked.runs["2"].recipe.files == ("train.py", "$b.yaml", "a.yaml")


@pytest.mark.parametrize("keys", [{}, {"metric": "loss", "method": "tpe", "trials": 2}])
def test_files_of_all_trials_are_sent_if_their_names_contain_a_parameter(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    (tmp_path / "conf").mkdir()
    for name in ("train.py", "conf/a-1.yaml", "conf/b-1.yaml", "conf/c-1.yaml"):
        (tmp_path / name).write_text("")
    sweep = SweepFile.model_validate({"params": {"cfg": ["a", "b"]}, **keys})
    options = RunOptions(args=("--config=conf/{cfg}-{n}.yaml",), set=("n=1",))
    checked = check_sweep(load_recipe("./train.py", cwd=tmp_path), sweep, options)
    files = {run.recipe.files for run in checked.runs.values()}
    assert files == {("train.py", "conf/a-1.yaml", "conf/b-1.yaml")}


def test_files_that_generated_trials_name_in_part_are_sent_with_all(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("")
    (tmp_path / "train.py").write_text("def trials():\n    yield from ({'c': n} for n in 'ab')\n")
    sweep = SweepFile.model_validate({"generator": "train.py:trials"})
    recipe = load_recipe("./train.py", cwd=tmp_path)
    checked = check_sweep(recipe, sweep, RunOptions(args=("{c}.yaml",)))
    files = {run.recipe.files for run in checked.runs.values()}
    assert files == {("train.py", "a.yaml", "b.yaml")}


@pytest.mark.parametrize("keys", [{}, {"metric": "loss", "method": "tpe", "trials": 2}])
def test_swept_parameters_are_not_part_of_the_template_of_a_fixed_one(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    (tmp_path / "train.py").write_text("print('loss: 1')\n")
    sweep = SweepFile.model_validate({"params": {"note": ["{model}"], "b": [True]}, **keys})
    options = RunOptions(args=("{model}",), set=("model=x",))
    run = check_sweep(load_recipe("./train.py", cwd=tmp_path), sweep, options).runs["1"]
    command, template = run.command, run.template
    assert command[2:] == ("x", "--note", "{model}", "--b", "true")
    assert template[2:] == ("{model}", None), "the template of a trial is that of all trials"
    assert run.params["note"] == "{model}"


def test_swept_parameter_in_braces_needs_no_declaration(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('loss: 1')\n")
    (tmp_path / "train.yaml").write_text("command: python train.py\nparams: {lr: 0.1}\n")
    sweep = SweepFile.model_validate({"params": {"cfg": ["a", "b"], "lr": [1, 2]}})
    recipe = load_recipe(".", cwd=tmp_path)
    options = RunOptions(args=("--config-name={cfg}",))
    assert command_of(check_sweep(recipe, sweep, options), "4") == (
        "--lr", "2", "--config-name=b",
    )  # fmt: skip
    with pytest.raises(RunnerError, match="'cfg' is not declared"):
        check_sweep(recipe, sweep, RunOptions())


@pytest.mark.parametrize("keys", [{}, {"metric": "loss", "method": "tpe", "trials": 1}])
def test_place_without_a_value_in_some_trials_is_refused(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    (tmp_path / "train.py").write_text("print('loss: 1')\n")
    momentum = {"choice": [0.8, 0.9], "when": {"opt": "sgd"}}
    params = {"opt": ["sgd", "adam"], "momentum": momentum}
    with pytest.raises(RunnerError, match="no value for momentum") as caught:
        swept(tmp_path, params, "{momentum}", **keys)
    assert caught.value.code == "R-SET-MISSING"
    assert command_of(swept(tmp_path, params, "{opt}", **keys), "1")[0] in ("sgd", "adam")
