from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from runner.core.settings import AZURE, LOCAL, Settings, load_settings, refuse_stack_of_local
from runner.protocol.errors import RunnerError


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text("{}\n")
    return {
        "RUNNER_HOME": str(tmp_path / "home"),
        "RUNNER_CONFIG": str(tmp_path / "config" / "config.yaml"),
    }


def _load(tmp_path: Path, env: dict[str, str], **flags: object) -> Settings:
    return load_settings(flags, cwd=tmp_path, env=env)


def test_stack_is_refused_for_the_local_target_only(tmp_path: Path, env: dict[str, str]) -> None:
    local, azure = _load(tmp_path, env), _load(tmp_path, env, target="azure")
    refuse_stack_of_local(local, None)
    refuse_stack_of_local(azure, "team")
    with pytest.raises(RunnerError, match="unexpected --stack team") as caught:
        refuse_stack_of_local(local, "team")
    assert caught.value.why == "target is local (built-in)"


def test_team_is_a_setting_and_its_flag_is_refused_for_the_local_target(
    tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "runner.yaml").write_text("team: vision\n")
    found = _load(tmp_path, env)
    assert (found.team, found.origins["team"]) == ("vision", f"{tmp_path / 'runner.yaml'}:1")
    refuse_stack_of_local(found, None)
    assert found.for_whole_stack().team is None
    env["RUNNER_TEAM"] = "audio"
    assert _load(tmp_path, env).team == "audio"
    refuse_stack_of_local(_load(tmp_path, env, target="azure", team="shared"), None)
    with pytest.raises(RunnerError, match="unexpected --team shared"):
        refuse_stack_of_local(_load(tmp_path, env, team="shared"), None)


def test_defaults_need_no_file(tmp_path: Path, env: dict[str, str]) -> None:
    settings = _load(tmp_path, env)
    assert (settings.target, settings.stack, settings.pool) == (LOCAL, "dev", None)
    assert settings.output_dir == tmp_path / "outputs"
    assert settings.home == tmp_path / "home"
    assert settings.origins["target"] == "built-in"


def test_later_sources_override_earlier_ones(tmp_path: Path, env: dict[str, str]) -> None:
    user = Path(env["RUNNER_CONFIG"])
    user.write_text("# mine\ntarget: azure\nstack: user\npool: user\noutput_dir: mine\n")
    (tmp_path / "runner.yaml").write_text("stack: project\npool: project\n")
    env["RUNNER_POOL"] = "variable"
    found = _load(tmp_path, env)
    assert (found.target, found.stack, found.pool) == (AZURE, "project", "variable")
    assert found.output_dir == user.parent / "mine"
    assert found.origins["target"] == f"{user}:2"
    assert found.origins["stack"] == f"{tmp_path / 'runner.yaml'}:1"
    assert found.origins["pool"] == "RUNNER_POOL"
    flagged = _load(tmp_path, env, pool="flag", target=None)
    assert (flagged.pool, flagged.target) == ("flag", AZURE)
    assert flagged.origins["pool"] == "--pool"


def test_retention_is_off_unless_a_file_or_variable_sets_it(
    tmp_path: Path, env: dict[str, str]
) -> None:
    assert _load(tmp_path, env).retention is None
    (tmp_path / "runner.yaml").write_text("retention: 30d\n")
    found = _load(tmp_path, env)
    assert found.retention == timedelta(days=30)
    assert found.origins["retention"] == f"{tmp_path / 'runner.yaml'}:1"
    assert _load(tmp_path, {**env, "RUNNER_RETENTION": "2h"}).retention == timedelta(hours=2)


@pytest.mark.parametrize("text", ["30", "5m", "long"])
def test_retention_that_would_delete_fresh_runs_is_refused(
    tmp_path: Path, env: dict[str, str], text: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        _load(tmp_path, {**env, "RUNNER_RETENTION": text})
    assert caught.value.what == f"RUNNER_RETENTION: invalid retention {text!r}"


def test_output_folder_of_a_flag_is_relative_to_the_working_folder(
    tmp_path: Path, env: dict[str, str]
) -> None:
    assert _load(tmp_path, env, output_dir="here").output_dir == tmp_path / "here"


def test_unknown_key_is_reported_with_its_line(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "runner.yaml").write_text("stack: dev\ntaget: azure\n")
    with pytest.raises(RunnerError) as caught:
        _load(tmp_path, env)
    assert caught.value.code == "R-CONFIG-FIELD"
    assert f"{tmp_path / 'runner.yaml'}:2: taget" in caught.value.what
    assert "'target'" in caught.value.fix


@pytest.mark.parametrize(
    ("variable", "value"), [("RUNNER_TARGET", "aws"), ("RUNNER_STACK", "../x")]
)
def test_invalid_value_is_reported_with_its_origin(
    tmp_path: Path, env: dict[str, str], variable: str, value: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        _load(tmp_path, {**env, variable: value})
    assert variable in caught.value.what
    assert value in caught.value.what


def test_explicit_config_file_must_exist(tmp_path: Path, env: dict[str, str]) -> None:
    with pytest.raises(RunnerError, match="cannot read"):
        _load(tmp_path, {**env, "RUNNER_CONFIG": str(tmp_path / "nowhere.yaml")})


def test_unknown_flag_raises_value_error(tmp_path: Path, env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not a setting"):
        _load(tmp_path, env, colour="red")
