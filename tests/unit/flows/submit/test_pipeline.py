"""The submission pipeline: a plan is made once, and the plan of a dry run is not submitted."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import runner
from runner.core.home import HomePaths
from runner.core.planning.plan import in_job
from runner.core.pricing.cost import BOOT_S
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.submit_file import load_submit_file
from runner.core.recipe.sweep import SweepFile
from runner.core.settings import AZURE
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.group import check_file
from runner.flows.submit.lookups import refuse_predecessors
from runner.flows.submit.pipeline import (
    Services,
    open_and_plan,
    plan_submission,
)
from runner.flows.submit.submit_run import upload_files
from runner.flows.submit.sweep import check_sweep
from runner.protocol.errors import ExitCode, RunnerError
from tests.unit.core.recipe_maker import load_text, outputs, plan, pool, settings


def calls(folder: str) -> list[tuple[str, str]]:
    """Return function and first argument of every call in a folder of the product."""
    root = Path(runner.__file__).parent / folder
    nodes = (
        node
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    )
    return [
        (ast.unparse(node.func), ast.unparse(node.args[0]) if node.args else "") for node in nodes
    ]


def test_plan_is_never_changed() -> None:
    changed = [first for name, first in calls("flows") if name.endswith("replace")]
    assert not [first for first in changed if first.split(".")[-1] == "plan"]


@pytest.mark.slow
def test_each_kind_of_plan_is_created_in_one_place() -> None:
    made = Counter(name for name, _ in calls("."))
    assert (made["plan_run"], made["plan_again"]) == (1, 1)


def test_preview_without_services_lists_skipped_checks(tmp_path: Path) -> None:
    recipe = load_text(
        tmp_path / "a", "after: [some-run]\ninputs: {cat: 'blob:data/cats', w: 'https://x.org/w'}\n"
    )
    services = Services(settings(), outputs(), None, dry_run=True)
    plan = plan_submission(check_run(recipe, RunOptions()), services, ignore_progress)
    assert plan.run.after == ("some-run",)
    assert [what for what, _ in plan.unanswered] == [
        "input cat", "after some-run", "pool local, job a_local", "input w",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="dry run"):
        upload_files(cast("Any", None), plan, ignore_progress)


def test_template_of_one_task_has_neither_job_nor_group(tmp_path: Path) -> None:
    path = tmp_path / "nightly.yaml"
    (tmp_path / "train.py").touch()
    path.write_text("tasks: {a: {command: python train.py}}\n", encoding="utf-8")
    checked = check_file(load_submit_file(path)[0], path, RunOptions())
    services = Services(settings(), outputs(), None, dry_run=True)
    template = plan_submission(checked, services, ignore_progress, scheduled=True).run
    assert (template.job_id, template.group) == ("", None)
    run = plan_submission(checked, services, ignore_progress)
    assert (run.run.job_id, run.run.group) == (run.job.job_id, run.run_group.group_id)


def test_vault_is_refused_where_nodes_have_no_identity(tmp_path: Path) -> None:
    url = "https://team.vault.azure.net/secrets/wandb"
    recipe = load_text(tmp_path / "a", f"secrets: {{TOKEN: {{keyvault: {url}}}}}")
    checked = check_run(recipe, RunOptions())
    services = Services(settings(), outputs(), None, dry_run=True)
    azure = replace(services, outputs=replace(outputs(), identity_client_id="the-identity"))
    plan = plan_submission(checked, azure, ignore_progress)
    assert "secret TOKEN: the node asks the vault" in plan.unanswered_text()
    with pytest.raises(RunnerError) as caught:
        plan_submission(checked, services, ignore_progress)
    error = caught.value
    assert (error.code, error.exit_code) == ("R-SECRET-VAULT", ExitCode.PREFLIGHT)
    assert error.fix.endswith("TOKEN: {env: TOKEN}")


def test_missing_pool_is_named_before_code_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "runner.flows.submit.check_and_read.pack_code", lambda *_: pytest.fail("code was packed")
    )
    checked = check_run(load_text(tmp_path / "a", "{}"), RunOptions())
    services = Services(settings("gpu"), outputs(pool("local")), None, dry_run=True)
    with pytest.raises(RunnerError, match="gpu"):
        plan_submission(checked, services, ignore_progress)


@pytest.mark.parametrize(
    ("text", "typed", "problem"),
    [
        ("command: python train.py $RUNER_OUTPUT_DIR\n", (), "did you mean 'RUNNER_OUTPUT_DIR'"),
        ("{}", ("--lr", "${RATE}"), "write $$RATE for the text"),
        ("params: {RATE: 1}\n", ("${RATE}",), "write {RATE} for the value of the parameter"),
        ("{}", ("$RUNNER_DATA_DIR",), "--data PATH"),
        ("{}", ("$RUNNER_INPUT_WORDS",), "--input WORDS=PATH"),
        ("inputs: {words: train.py}", ("$RUNNER_INPUT_WORD",), "mean 'RUNNER_INPUT_WORDS'"),
        ("{}", ("$RUNNER_OUTPUT_PLOTS",), "add plots to `named_outputs`"),
        ("{image: 'a/b:1'}", ("$RUNNER_OUT",), "RUNNER_OUT"),
        ("env: {CFG: $HOME/$CONFIG}", (), "CFG in env refers to $CONFIG"),
        ("env: {DATA: $RUNNER_DATA_DIR}", (), "--data PATH"),
        ("{image: 'a/b:1'}", ("$AZ_BATCHAI_INPUT_SAMPLE",), "--input SAMPLE=PATH"),
    ],
)
def test_command_with_an_unknown_variable_is_refused(
    tmp_path: Path, text: str, typed: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        check_run(load_text(tmp_path / "a", text), RunOptions(args=typed))
    assert caught.value.code == "R-COMMAND-VARIABLE"
    assert problem in caught.value.fix + caught.value.what


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("env: {RATE: '1'}\nnamed_outputs: {plots: p}\n", ("$RATE", "$RUNNER_OUTPUT_PLOTS")),
        ("inputs: {words: ./train.py}\n", ("$RUNNER_INPUT_WORDS", "$AZ_BATCH_NODE_ID")),
        ("inputs: {words: ./train.py}\n", ("$AZ_BATCHAI_INPUT_WORDS", "$AZ_BATCHAI_OUTPUT_A")),
        ("command: [sh, -c, 'echo $anything']\n", ()),
        ("{image: 'a/b:1'}", ("$CUDA_HOME",)),  # the image may set it
    ],
)
def test_command_with_variables_that_nodes_set_is_accepted(
    tmp_path: Path, text: str, typed: tuple[str, ...]
) -> None:
    checked = check_run(load_text(tmp_path / "a", text), RunOptions(args=typed))
    assert checked.options.args == typed


def _azure(tmp_path: Path, **changes: Any) -> Services:
    t4 = pool("t4", vm_size="Standard_NC4as_T4_v3", max_nodes=4, release_minutes=20, **changes)
    stack = replace(outputs(t4), location="westus2")
    where = replace(settings(), target=AZURE, home=tmp_path / "home")
    return Services(where, stack, None, dry_run=True)


@pytest.mark.feature(53)
def test_capped_run_has_its_own_job_with_limits(tmp_path: Path) -> None:
    checked = check_run(load_text(tmp_path / "a", "max_cost: 5\nretries: 2\n"), RunOptions())
    plan = plan_submission(checked, _azure(tmp_path), ignore_progress)
    assert plan.cost is not None
    cap, run = plan.cost.cap, plan.run
    assert cap is not None
    assert plan.job.job_id == run.job_id == run.run_id
    assert plan.job.limit == timedelta(seconds=cap.job_s)
    assert run.wall_clock == timedelta(seconds=cap.job_s)
    assert run.recipe.timeout_s == cap.script_s
    assert run.to_spec().to_json()["max_cost_micros"] == 5_000_000
    shown = plan.cost.to_json()["cap"]
    assert shown["bound_micros"] <= shown["cap_micros"] == 5_000_000


def test_time_limit_below_the_cap_is_kept(tmp_path: Path) -> None:
    checked = check_run(load_text(tmp_path / "a", "max_cost: 5\ntimeout: 10m\n"), RunOptions())
    run = plan_submission(checked, _azure(tmp_path), ignore_progress).run
    assert run.recipe.timeout_s == 600
    assert run.wall_clock == timedelta(minutes=40)


def test_run_without_a_cap_shows_its_costs_and_keeps_its_job(tmp_path: Path) -> None:
    checked = check_run(load_text(tmp_path / "a", "timeout: 1h\nestimate: 30 min\n"), RunOptions())
    plan = plan_submission(checked, _azure(tmp_path), ignore_progress)
    assert plan.cost is not None
    assert (plan.job.job_id, plan.job.limit) == ("a_t4", None)
    assert plan.cost.dedicated.expected_micros == 526_000
    assert plan.cost.spot.price is None


def test_cap_of_a_file_covers_all_of_its_tasks(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    (tmp_path / "train.py").touch()
    path.write_text(
        "max_cost: 7\ntasks:\n  a: {command: python train.py}\n"
        "  b: {command: python train.py, after: [a]}\n",
        encoding="utf-8",
    )
    checked = check_file(load_submit_file(path)[0], path, RunOptions(max_cost="5.000001"))
    plan = plan_submission(checked, _azure(tmp_path), ignore_progress)
    assert plan.cost is not None
    assert plan.cost.cap is not None
    assert plan.cost.cap.cap_micros == 5_000_001
    assert plan.cost.cap.nodes == 2, "one works while the other leaves"
    assert plan.job.job_id == plan.run_group.group_id
    shares = [run.to_spec().max_cost_micros for run in plan.runs.values()]
    assert sorted(each or 0 for each in shares) == [2_500_000, 2_500_001]
    scheduled = plan_submission(checked, _azure(tmp_path), ignore_progress, scheduled=True)
    assert scheduled.job.limit == timedelta(seconds=plan.cost.cap.job_s), "of each firing"


def test_cap_of_some_tasks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    load_text(tmp_path / "capped", "max_cost: 1\n")
    load_text(tmp_path / "free", "{}")
    path.write_text("tasks: {a: {recipe: ./capped}, b: {recipe: ./free}}\n", encoding="utf-8")
    checked = check_file(load_submit_file(path)[0], path, RunOptions())
    with pytest.raises(RunnerError, match="some tasks of the file have a cost cap"):
        plan_submission(checked, _azure(tmp_path), ignore_progress)


@pytest.mark.parametrize(
    ("keys", "options", "rounds", "nodes"),
    [
        ({}, {}, 2, 4),
        ({"max_parallel": 2}, {}, 3, 4),
        ({"max_parallel": 1}, {}, 6, 4),
        ({}, {"trials_per_task": 3}, 3, 2),
        ({"max_parallel": 1}, {"trials_per_task": 3}, 6, 2),
    ],
)
def test_cap_that_a_budget_needs_pays_for_the_last_trial(
    keys: dict[str, Any], options: dict[str, Any], rounds: int, nodes: int, tmp_path: Path
) -> None:
    sweep = SweepFile.model_validate({"params": {"lr": [1, 2, 3, 4, 5, 6]}, **keys, **options})
    recipe = load_text(tmp_path / "a", "params: {lr: 0.2}\ntimeout: 1h\n")
    plan = plan_submission(
        check_sweep(recipe, sweep, RunOptions()), _azure(tmp_path, spot=False), ignore_progress,
        scheduled=True, left_micros=100_000_000,
    )  # fmt: skip
    assert plan.cost is not None
    assert plan.cost.cap is not None
    assert plan.cost.cap.nodes == nodes
    attempt_s = 90 * 60  # the time limit, and the time to download and upload
    assert plan.cost.cap.job_s == BOOT_S + rounds * attempt_s + 300


def test_trials_differ_from_the_first_only_in_their_parameters(tmp_path: Path) -> None:
    sweep = SweepFile.model_validate(
        {"params": {"lr": {"choice": [0.1, 0.2, 0.3]}}, "merge": {"command": ["true"]}}
    )
    text = "params: {lr: 0.2}\nexpect: {loss: {max: 1}}\n"
    recipe = load_text(tmp_path / "a", text)
    plan = plan_submission(
        check_sweep(recipe, sweep, RunOptions(max_cost="9")), _azure(tmp_path), ignore_progress
    )
    assert list(plan.runs) == ["1", "2", "3", "merge"]
    assert plan.cost is not None
    assert plan.cost.cap is not None
    assert (plan.cost.cap.cap_micros, plan.cost.cap.nodes) == (9_000_000, 4)
    trials = [plan.runs[name] for name in plan.run_group.trials]
    assert [each.run_id for each in trials] == [*plan.run_group.trial_runs.values()]
    assert [each.params for each in trials] == [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}]
    assert [each.command[-1] for each in trials] == ["0.1", "0.2", "0.3"]
    assert [len(each.recipe.expect) for each in trials] == [0, 1, 0], "only for the defaults"
    assert [(each.trial or {})["number"] for each in trials] == [1, 2, 3]
    for each in plan.runs.values():
        assert each.job_id == plan.job.job_id == plan.run_group.group_id
        assert each.recipe.timeout_s == plan.cost.cap.script_s
        assert each.job_limit_s == plan.cost.cap.job_s
    assert plan.runs["merge"].depends_on == (*plan.run_group.trial_runs.values(),)


def test_error_of_all_trials_names_no_task(tmp_path: Path) -> None:
    sweep = SweepFile.model_validate({"params": {"lr": {"choice": [0.1, 0.2]}}})
    load_text(tmp_path / "a", "params: {lr: 0.2}\n")
    (tmp_path / "a" / "requirements.txt").write_text("numpy\n", encoding="utf-8")
    (tmp_path / "a" / ".runnerignore").write_text("*.txt\n", encoding="utf-8")
    checked = check_sweep(load_recipe("./a", cwd=tmp_path), sweep, RunOptions())
    with pytest.raises(RunnerError, match=r"requirements\.txt") as caught:
        plan_submission(checked, _azure(tmp_path), ignore_progress)
    assert (caught.value.code, "task" in caught.value.what) == ("R-REQUIREMENTS", False)


def test_plan_in_another_job_is_the_same_run() -> None:
    made = plan()
    moved = in_job(made, "digits_local-2")
    was, now = made.to_spec().to_json(), moved.to_spec().to_json()
    assert was.pop("batch") == {**now.pop("batch"), "job_id": made.job_id}
    assert was == now
    assert in_job(made, made.job_id) is made


def test_run_with_after_cannot_have_a_cap() -> None:
    with pytest.raises(RunnerError) as caught:
        refuse_predecessors(replace(plan(), job_id="cats_t4", depends_on=("cats-1",)))
    assert caught.value.code == "R-AFTER-JOB"
    assert "cost cap" in caught.value.why


def test_cap_on_free_nodes_causes_a_warning(tmp_path: Path) -> None:
    free = replace(outputs().pools[0], vm_size="local")
    local = Services(replace(settings(), home=tmp_path), outputs(free), None, dry_run=True)
    HomePaths(tmp_path).prices.write_text("no table")  # not read
    for text, noted in (("max_cost: 5\n", True), ("{}", False)):
        checked = check_run(load_text(tmp_path / str(noted), text), RunOptions())
        found = plan_submission(checked, local, ignore_progress)
        assert found.cost is None
        assert any("has no effect" in each for each in found.warnings) is noted


def test_plan_warns_of_modules_that_no_package_provides(tmp_path: Path) -> None:
    services = Services(settings(), outputs(), None, dry_run=True)

    def warnings() -> str:
        checked = check_run(load_recipe("a", cwd=tmp_path), RunOptions())
        return "\n".join(plan_submission(checked, services, ignore_progress).warnings)

    load_text(tmp_path / "a", "{}")
    assert "imports" not in warnings()
    (tmp_path / "a" / "train.py").write_text("import some_module\n")
    assert "train.py imports some_module, but no file lists packages" in warnings()
    (tmp_path / "a" / "train.py").write_text("import sklearn\n")
    with pytest.raises(RunnerError, match="--package scikit-learn"):
        warnings()
    (tmp_path / "a" / "requirements.txt").write_text("scikit-learn\n")
    assert "imports" not in warnings()


@pytest.mark.parametrize("submits", [True, False])
def test_packages_of_conda_need_micromamba_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submits: bool
) -> None:
    recipe = load_text(tmp_path / "a", "{}")
    (recipe.folder / "environment.yml").write_text("dependencies: [python=3.12, numpy]\n")
    checked = check_run(load_text(tmp_path / "a", "{}"), RunOptions())
    services = Services(settings(), outputs(), None, dry_run=True)

    def plan() -> object:
        if submits:  # refused before the services start
            return open_and_plan(checked, settings(), ignore_progress, print)
        return plan_submission(checked, services, ignore_progress)

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunnerError, match="which micromamba installs") as caught:
        plan()
    assert caught.value.code == "R-PACKAGES"
    if not submits:
        (tmp_path / "micromamba").touch(mode=0o755)
        plan()


@pytest.mark.parametrize(
    ("text", "rule", "missing"),
    [
        ("-r base.txt\n", "base.txt", "base.txt"),
        ("./wheels/one-1-py3-none-any.whl\n", "*.whl", "wheels/one-1-py3-none-any.whl"),
        ("./lib\n", "lib/", "lib"),
    ],
)
def test_ignored_file_that_the_packages_need_is_named(
    tmp_path: Path, text: str, rule: str, missing: str
) -> None:
    folder = load_text(tmp_path / "a", "{}").folder
    for name in ("base.txt", "wheels/one-1-py3-none-any.whl", "lib/setup.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "requirements.txt").write_text(text)
    services = Services(settings(), outputs(), None, dry_run=True)

    def plan() -> object:
        checked = check_run(load_recipe("a", cwd=tmp_path), RunOptions())
        return plan_submission(checked, services, ignore_progress)

    plan()
    (folder / ".gitignore").write_text(f"{rule}\n")
    with pytest.raises(RunnerError, match="would not be uploaded") as caught:
        plan()
    assert caught.value.what == f"requirements.txt needs {missing}, which would not be uploaded"
    (folder / ".runnerignore").write_text(f"!{missing}\n")
    plan()


def test_cost_cap_holds_in_every_pool_that_a_run_names(tmp_path: Path) -> None:
    pools = (
        pool("t4", vm_size="Standard_NC4as_T4_v3", gpus=1, release_minutes=5),
        pool("dear", vm_size="Standard_NC16as_T4_v3", release_minutes=5),
    )
    stack = replace(outputs(*pools), location="eastus")
    where = replace(settings(), target=AZURE, home=tmp_path / "home")
    services = Services(where, stack, None, dry_run=True)
    recipe = load_text(tmp_path / "recipe", "command: python train.py\nmax_cost: 5\n")

    def plan_in(*names: str) -> Any:
        run = check_run(recipe, RunOptions(pools=names))
        return plan_submission(run, services, ignore_progress)

    both, cheap, dear = plan_in("t4", "dear"), plan_in("t4"), plan_in("dear")
    assert (both.run.pool.id, cheap.run.pool.id, dear.run.pool.id) == ("t4", "t4", "dear")
    assert both.cost.cap.job_s == dear.cost.cap.job_s < cheap.cost.cap.job_s
    assert both.run.job_id == both.run.run_id
    assert both.run.fallback is not None
    assert cheap.run.fallback is None
