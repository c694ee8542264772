"""Keys and flags for the place and time of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from runner.core.recipe.options import RunOptions, parse_env, with_options
from runner.core.recipe.recipe import Recipe
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.paths import MAX_ID, job_id_for
from runner.protocol.run_spec import Resources
from tests.unit.core.recipe_maker import load_text, recipe

Load = Callable[[str], Recipe]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return partial(load_text, tmp_path / "demo")


@pytest.mark.feature(28)
def test_resources_priority_and_after_are_read(load: Load) -> None:
    loaded = load(
        "resources: {gpus: 2, memory: 28GiB, vm_sizes: [Standard_NC4as_T4_v3], nodes: 1,\n"
        "  capacity: spot-then-dedicated}\n"
        "priority: -1000\n"
        "after: ['@last', mnist-20261121-143005-k3f9]\n"
    )
    assert loaded.resources == Resources(
        gpus=2,
        memory_bytes=28 * 1024**3,
        vm_sizes=("Standard_NC4as_T4_v3",),
        nodes=1,
        capacity="spot-then-dedicated",
    )
    assert (loaded.priority, loaded.after) == (-1000, ("@last", "mnist-20261121-143005-k3f9"))


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("resources: {gpu: 1}", "1: resources.gpu: unknown key", "did you mean 'gpus'"),
        ("\nresources:\n  gpus: many", "3: resources.gpus: expected a whole number", ""),
        ("resources: {gpus: -1}", "1: resources.gpus", ""),
        ("resources: {memory: lots}", "1: resources.memory: 'lots' is not a size", "28GiB"),
        ("resources: {memory: 0}", "1: resources.memory", ""),
        ("resources: {nodes: 101}", "1: resources.nodes", ""),
        ("resources: {nodes: 0}", "1: resources.nodes", ""),
        ("resources: {capacity: cheap}", "1: resources.capacity: got 'cheap'", ""),
        ("resources: {vm_sizes: []}", "1: resources.vm_sizes", ""),
        ("resources: 4", "1: resources: expected `key: value` lines", ""),
        ("priority: 1001", "1: priority", ""),
        ("priority: high", "1: priority: expected a whole number", ""),
        ("after: mnist-1", "1: after: expected a list", ""),
        ("after: ['../x']", "1: after.0", ""),
    ],
)
def test_invalid_key_is_reported_with_file_line_and_field(
    load: Load, text: str, where: str, said: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        load(text)
    assert f"train.yaml:{where}" in caught.value.what
    assert said in str(caught.value)


def test_flags_override_the_file_and_leave_the_rest() -> None:
    written = recipe(
        resources=Resources(gpus=4, vm_sizes=("x",), capacity="spot"),
        priority=5,
        after=("a",),
        timeout_s=60,
        retries=1,
    )
    assert with_options(written, RunOptions()) == written
    changed = with_options(
        written,
        RunOptions(
            gpus=0, capacity="dedicated", priority=-3, after=("b", "c"), timeout="1h30m", retries=0
        ),
    )
    assert changed.resources == Resources(gpus=0, vm_sizes=("x",), capacity="dedicated")
    assert (changed.priority, changed.after) == (-3, ("b", "c"))
    assert (changed.timeout_s, changed.retries) == (5400, 0)
    assert with_options(written, RunOptions(timeout="90")).timeout_s == 90


@pytest.mark.parametrize(
    "flags",
    [
        RunOptions(priority=1001),
        RunOptions(priority=-1001),
        RunOptions(gpus=99),
        RunOptions(retries=-1),
        RunOptions(retries=101),
        RunOptions(timeout="soon"),
        RunOptions(timeout="0"),
        RunOptions(timeout="8d"),
        RunOptions(timeout=""),
        RunOptions(timeout="-5"),
    ],
)
def test_flag_out_of_range_is_refused_with_a_valid_one(flags: RunOptions) -> None:
    with pytest.raises(RunnerError) as caught:
        with_options(recipe(), flags)
    assert caught.value.code == "R-FLAG-VALUE"
    assert caught.value.fix.startswith("--")


def test_variables_extend_and_override_those_of_the_file() -> None:
    written = recipe(env={"A": "file", "B": "file"})
    given = parse_env(("A=1=2", "EMPTY=", "HERE", "C= x ", "C=last"), {"HERE": "of this machine"})
    changed = with_options(written, RunOptions(env=given))
    assert changed.env == {
        "A": "1=2", "B": "file", "EMPTY": "", "HERE": "of this machine", "C": "last"
    }  # fmt: skip
    assert with_options(written, RunOptions()).env == written.env


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("=secret-1", "invalid --env: expected NAME=VALUE", "--env NAME=VALUE"),
        ("", "invalid --env: expected NAME=VALUE", "--env NAME=VALUE"),
        (
            "HF_HOME",
            "--env HF_HOME: no value, and this machine has no such variable",
            "--env HF_HOME=VALUE",
        ),
        (
            "MY-NAME=secret-1",
            "--env MY-NAME: 'MY-NAME' is not the name of a variable",
            "write it like OMP_NUM_THREADS",
        ),
        ("MY-NAME", "--env MY-NAME: 'MY-NAME' is not the name of a variable", "write it like"),
        (" A=secret-1", "--env  A: ' A' is not the name of a variable", "write it like"),
        ("RUNNER_RUN_ID=secret-1", "RUNNER_RUN_ID is reserved for runner", "use another name"),
        ("az_batch_x=secret-1", "az_batch_x is reserved for Batch", "use another name"),
        ("A=secret-1\0", "--env A: the value has a NUL character", "remove it"),
        ("A=secret-1\udcff", "--env A: the value is not UTF-8", "remove the bytes"),
    ],
)
def test_invalid_variable_is_refused_without_its_value(text: str, what: str, fix: str) -> None:
    with pytest.raises(RunnerError) as caught:
        with_options(recipe(), RunOptions(env=parse_env((text,), {})))
    error = caught.value
    assert (error.code, error.exit_code) == ("R-ENV", ExitCode.USAGE)
    assert what in error.what
    assert error.fix.startswith(fix)
    assert "secret-1" not in f"{error.what} {error.why} {error.fix}"


def test_job_id_keeps_pool_and_priority_within_64_characters() -> None:
    for priority in (0, 1000, -1000):
        job_id = job_id_for("e" * 200, "p" * 30, priority)
        assert len(job_id) + len("-99") <= MAX_ID
        assert "p" * 30 in job_id
    assert job_id_for("e", "p", 7) != job_id_for("e", "p", -7)
