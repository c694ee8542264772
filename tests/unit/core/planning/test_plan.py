"""Planning is pure, and run.json has the format of docs/run-format.md."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from runner.core.planning.plan import (
    RunContent,
    at_any_time,
    check_kept_node,
    env_warnings,
    storage_scopes,
)
from runner.core.settings import AZURE
from runner.protocol.errors import RunnerError
from runner.protocol.results import by_time_blob
from runner.protocol.run_spec import CodeRef, DataRef, Resources, parse_run
from tests.unit.core.recipe_maker import CREATED, RUN_ID, outputs, plan, pool, recipe

DATA = DataRef.of_files("mnist", "path", None, (("b.gz", 2, "bb"), ("a.gz", 1, "aa")))
CODE = CodeRef("c" * 64, 4096, 2, git_revision="abc", git_dirty=True)


def test_parameters_follow_the_command_and_script_arguments_come_last() -> None:
    params = {"epochs": 3, "augment": True, "name": "a b"}
    assert plan(params=params, script_args=("--verbose",)).command == (
        "python", "train.py", "--epochs", "3", "--augment", "true", "--name", "a b", "--verbose",
    )  # fmt: skip


def test_one_job_per_experiment_and_pool_and_the_run_id_is_the_task_id() -> None:
    made = plan(experiment="My Trials")
    assert (made.experiment, made.job_id, made.task_id) == ("my-trials", "my-trials_local", RUN_ID)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"timeout_s": 3600, "idle_timeout_s": 1800, "hang_timeout_s": 3599}, []),
        ({"timeout_s": 3600, "idle_timeout_s": 3600}, ["`idle_timeout` of 1 h never applies"]),
        ({"timeout_s": 60, "hang_timeout_s": 7200}, ["`hang_timeout` of 2 h never applies"]),
        (
            {"timeout_s": 60, "hang_timeout_s": 90, "idle_timeout_s": 60},
            ["`idle_timeout` of 1 min never", "`hang_timeout` of 1 min 30 s never"],
        ),
        ({"idle_timeout_s": 7200}, []),
        ({"timeout_s": 60}, []),
    ],
)
def test_limit_that_never_applies_is_a_warning(times: dict[str, float], said: list[str]) -> None:
    warnings = plan(replace(recipe(), **times)).warnings
    assert len(warnings) == len(said)
    for text, begin in zip(warnings, said, strict=True):
        assert text.startswith(begin)
        assert "because `timeout` ends the run after" in text


def test_variable_named_like_a_secret_causes_a_warning() -> None:
    env = {"HF_TOKEN": "x", "TOKENIZERS_PARALLELISM": "0", "db_password": "x", "API_KEY": ""}
    named = [warning.split()[0] for warning in plan(recipe(env=env)).warnings]
    assert named == ["HF_TOKEN", "db_password"]


def test_same_files_have_the_same_data_prefix_in_any_order() -> None:
    turned = DataRef.of_files("mnist", "cache", "notice", (("a.gz", 1, "aa"), ("b.gz", 2, "bb")))
    changed = DataRef.of_files("mnist", "path", None, (("a.gz", 1, "aa"), ("b.gz", 2, "xx")))
    assert turned.prefix == DATA.prefix
    assert changed.prefix != DATA.prefix
    assert DATA.prefix.startswith("mnist/")
    assert DATA.prefix.endswith("/")


def test_first_pool_is_the_default_and_names_ignore_case() -> None:
    stack = outputs(pool("spot"), pool("Dedicated"))
    assert plan(stack=stack).pool.id == "spot"
    assert plan(stack=stack, wanted_pool="dedicated").pool.id == "Dedicated"


def test_unknown_pool_names_the_known_ones() -> None:
    with pytest.raises(RunnerError) as caught:
        plan(stack=outputs(pool("spot"), pool("dedicated")), wanted_pool="dedicatd")
    assert caught.value.code == "R-POOL-UNKNOWN"
    assert "spot, dedicated" in caught.value.why
    assert caught.value.fix == "--pool dedicated"


def test_task_limit_is_later_than_the_limit_of_the_agent() -> None:
    assert plan().wall_clock is None
    limited = plan(recipe(timeout_s=3600)).wall_clock
    twice = plan(recipe(timeout_s=3600, resources=Resources(nodes=2)), stack=outputs()).wall_clock
    assert limited is not None
    assert twice == 2 * limited
    assert limited is not None
    assert limited > timedelta(hours=1)


def test_storage_access_outlives_waiting_and_every_attempt() -> None:
    made = plan(recipe(timeout_s=3600, retries=2))
    assert made.wall_clock is not None
    assert made.access_lifetime >= timedelta(days=7) + 3 * made.wall_clock


def test_run_json_is_written_and_read_back() -> None:
    made = plan(
        recipe(
            requirements_file="requirements.txt",
            outputs=("model.keras",),
            metric_patterns={"loss": "loss=([0-9.]+)"},
            primary_metric="accuracy",
            retries=1,
        ),
        params={"epochs": 5},
        content=RunContent(CODE, "a" * 64, "r" * 64, DATA),
    )
    document = json.loads(json.dumps(replace(made, job_id="digits_local-2").to_spec().to_json()))
    assert document["code"]["blob"] == f"code/{'c' * 64}"
    assert document["agent"] == {"sha256": "a" * 64, "blob": f"code/{'a' * 64}"}
    assert document["requirements"] == {"file": "requirements.txt", "sha256": "r" * 64}
    assert document["data"]["files"][0] == {"name": "b.gz", "size_bytes": 2, "sha256": "bb"}
    assert document["metrics"]["goal"] == "max"
    assert document["batch"]["job_id"] == "digits_local-2"
    spec = parse_run(json.dumps(document).encode(), RUN_ID)
    assert (spec.run_id, spec.job_id, spec.created) == (RUN_ID, "digits_local-2", CREATED)
    assert spec.params == {"epochs": 5}


def test_run_json_has_exactly_the_documented_fields() -> None:
    assert set(plan().to_spec().to_json()) == {
        "format", "run_id", "experiment", "created", "recipe", "code",
        "agent", "command", "params", "env", "requirements", "python",
        "data", "inputs", "secrets", "secret_refs", "outputs", "metrics",
        "timeout_s", "retries", "checkpoints", "model", "origin", "batch",
        "image", "price", "resources", "priority", "after", "group",
        "named_outputs",
    }  # fmt: skip


def test_evictions_are_rehearsed_on_local_spot_pools_only() -> None:
    rehearsal = {"spec": "seed=7,mtbf=10m", "evictions": [[600.5, 0, None]]}
    made = plan(rehearsal=rehearsal)
    spec = parse_run(json.dumps(made.to_spec().to_json()).encode(), RUN_ID)
    assert (spec.rehearsal, plan().to_spec().to_json().get("rehearsal")) == (rehearsal, None)
    with pytest.raises(RunnerError) as caught:
        plan(rehearsal=rehearsal, stack=outputs(pool("d", spot=False)))
    assert caught.value.code == "R-EVICT-DEDICATED"
    with pytest.raises(RunnerError) as caught:
        plan(rehearsal=rehearsal, target=AZURE)
    assert caught.value.code == "R-EVICT-AZURE"


def test_run_reads_and_writes_itself_only() -> None:
    scopes = storage_scopes(plan().to_spec().to_json())
    assert scopes.runs == (
        f"rlaw~{RUN_ID}/",
        f"rlawd~{RUN_ID}/checkpoints/",
        f"rc={RUN_ID}/run.json",
        f"rc={RUN_ID}/result.json",
        f"w=index/{RUN_ID}",
        f"w={by_time_blob(RUN_ID)}",
    )
    assert (scopes.data, scopes.models, scopes.inputs) == ((), (), {})


def test_run_reads_what_its_document_names() -> None:
    document = plan().to_spec().to_json() | {
        "after": ["first-1"],
        "resume_from": {"run_id": "old-1", "checkpoint": 3},
        "model": {"name": "cats", "aliases": []},
        "data": {"name": "mnist", "prefix": "mnist/ab/"},
        "inputs": {
            "a": {"kind": "path", "prefix": "inputs/cd/", "files": []},
            "b": {"kind": "run", "run_id": "source-1", "path": None},
            "c": {"kind": "blob", "container": "theirs", "prefix": "x, *~/", "single": None},
            "d": {"kind": "blob", "container": "theirs", "prefix": "", "single": "one"},
        },
    }
    scopes = storage_scopes(document)
    assert scopes.runs[6:] == ("rl~old-1/", "r=first-1/result.json", "r~source-1/")
    assert scopes.data == ("r~inputs/cd/", "r~mnist/ab/")
    assert scopes.inputs == {"theirs": ("r~x%2C%20%2A~/", "r=one")}
    assert scopes.models == ("rlc~cats/versions/", "rcm~cats/files/", "rw=cats/aliases.json")
    document["model"] = {"name": "cats", "register": False}
    assert storage_scopes(document).models == ()
    document["model"] = {"name": "../dogs"}
    assert storage_scopes(document).models == ()


def test_trial_writes_its_own_report_and_a_sampler_its_parameters() -> None:
    trial = {"name": "07", "number": 7, "params": {}, "decided": False}
    document = plan().to_spec().to_json() | {"group": "s-1", "trial": trial}
    scopes = storage_scopes(document)
    assert f"rcw={RUN_ID}/run.json" in scopes.runs
    assert scopes.runs[6:] == (
        "r=sweeps/s-1/run.json",
        "rl~sweeps/s-1/trials/",
        "rw=sweeps/s-1/trials/07",
    )


def test_merge_reads_the_trials_and_the_runs_that_repeat_them() -> None:
    sweep = "s-20261121-143005-abcd"
    trials = [f"s-{number:02}-20261121-143005-abcd" for number in range(1, 100)]
    document = plan().to_spec().to_json() | {
        "after": [*trials, "s-03-20261122-143005-wxyz", "s-prepare-20261121-143005-abcd"],
        "inputs": {"trials": {"kind": "trials", "group": sweep}},
    }
    assert storage_scopes(document).runs[6:] == (
        f"r=groups/{sweep}.json",
        f"rl~sweeps/{sweep}/runs/",
        *(f"r~s-{'*' * digits}-********-******-****/" for digits in range(1, 6)),
        "r=s-prepare-20261121-143005-abcd/result.json",
    )


def test_scope_of_a_run_after_many_stays_short() -> None:
    before = [f"prepare-{number}-20261121-143005-abcd" for number in range(500)]
    document = plan().to_spec().to_json() | {"after": before}
    assert storage_scopes(document).runs[6:] == ("r~prepare-",)


def test_scope_of_a_schedule_matches_the_ids_of_its_runs() -> None:
    document = plan().to_spec().to_json() | {"run_id": at_any_time(RUN_ID)}
    runs = storage_scopes(document).runs
    assert runs[0] == f"rlaw~{RUN_ID[:-21]}-********-******-****/"
    assert runs[5] == f"w=by-time/**************-{RUN_ID[:-21]}-********-******-****"


def test_password_in_an_address_of_env_is_a_warning() -> None:
    found = {"PIP_INDEX_URL": "https://joe:hunter2secret@h/simple", "API_KEY": "x", "SEED": "1"}
    shown = env_warnings(found)
    assert [text.split()[0] for text in shown] == ["PIP_INDEX_URL", "API_KEY"]
    assert not env_warnings({"A": "https://joe:${PW}@h", "B": "https://h:80/a@b", "C": "a:b@c"})


def test_task_limit_includes_the_time_for_which_the_node_is_kept() -> None:
    limit, kept = (
        plan(recipe(timeout_s=3600, keep_node_s=keep_node_s)) for keep_node_s in (None, 1800)
    )
    assert limit.wall_clock is not None
    assert kept.wall_clock == limit.wall_clock + timedelta(minutes=30)
    assert plan(recipe(keep_node_s=1800)).wall_clock is None


def test_node_is_kept_only_by_a_single_run_on_one_node() -> None:
    made = plan(recipe(keep_node_s=1800))
    check_kept_node(made, "a", {"b": ["c"]}, scheduled=False)
    several = plan(recipe(keep_node_s=1800, resources=Resources(nodes=2)), stack=outputs())
    trial = replace(made, trial={"name": "1"})
    for refused, after, scheduled in (
        (made, {"b": ["a"]}, False),
        (made, {}, True),
        (several, {}, False),
        (trial, {}, False),
        (replace(made, repeats=replace(made.to_spec(), trial={"name": "1"})), {}, False),
    ):
        with pytest.raises(RunnerError) as caught:
            check_kept_node(refused, "a", after, scheduled=scheduled)
        assert caught.value.code == "R-KEEP-NODE"
        # Neither `schedule create` nor `submit` has this option.
        assert ("--keep-node" in caught.value.fix) == (not scheduled and "b" not in after)
        off = replace(refused, recipe=replace(refused.recipe, keep_node_s=None))
        check_kept_node(off, "a", after, scheduled=scheduled)
