from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.batch.translate import to_task
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.secrets import read_secrets
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.pipeline import Services, plan_submission
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.run_spec import SecretRef
from tests.unit.core.recipe_maker import outputs, plan, recipe, settings

VALUE = "hunter2-and-more"


def loaded(tmp_path: Path, text: str) -> tuple[SecretRef, ...]:
    folder = tmp_path / "cats"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / "train.yaml").write_text(f"command: python train.py\nsecrets:\n{text}")
    return load_recipe(str(folder), cwd=tmp_path).secrets


def test_both_sources_of_secrets_are_read(tmp_path: Path) -> None:
    text = "  A: {env: MY_TOKEN}\n  B: {keyvault: 'https://my.vault.azure.net/secrets/hub'}\n"
    assert loaded(tmp_path, text) == (
        SecretRef("A", env="MY_TOKEN"),
        SecretRef("B", keyvault="https://my.vault.azure.net/secrets/hub"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"  A: {VALUE}\n", "expected a reference to a secret, not its value"),
        (f"  A: {{env: '{VALUE}'}}\n", "env must be the name of a variable of this machine"),
        (f"  A: {{value: '{VALUE}'}}\n", "unknown key"),
        ("  A: {}\n", "one source: env or keyvault"),
        ("  A: {env: X, keyvault: 'https://v.vault.azure.net/secrets/x'}\n", "one source"),
        ("  A: {keyvault: 'http://v.vault.azure.net/secrets/x'}\n", "keyvault must be https://"),
        (
            "  A: {keyvault: 'https://v.vault.azure.net.example.org/secrets/x'}\n",
            "keyvault must be",
        ),
        ("  A: {keyvault: 'https://u:p@v.vault.azure.net/secrets/x'}\n", "keyvault must be"),
        ("  A: {keyvault: 'https://v.vault.azure.net/keys/x'}\n", "keyvault must be"),
        ("  RUNNER_STORAGE: {env: X}\n", "RUNNER_STORAGE is reserved"),
        ("  AZ_BATCH_TASK_ID: {env: X}\n", "is reserved"),
        ("  PATH: {env: X}\n", "is reserved"),
        ("  'A B': {env: X}\n", "invalid variable name 'A B'"),
    ],
)
def test_invalid_secret_is_refused_without_printing_it(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(RunnerError, match=said) as caught:
        loaded(tmp_path, text)
    assert "train.yaml:" in caught.value.what
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("environment", [{}, {"MY_TOKEN": ""}])
def test_missing_variable_is_refused_before_packing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = recipe(folder=tmp_path, secrets=(SecretRef("A", env="MY_TOKEN"),))
    with pytest.raises(RunnerError, match="secret A has no value") as caught:
        check_run(given, RunOptions())
    assert caught.value.exit_code == ExitCode.PREFLIGHT
    assert "export MY_TOKEN" in caught.value.fix


def test_secret_value_in_the_arguments_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", VALUE)
    (tmp_path / "train.py").write_text("print(1)")
    refs = (SecretRef("A", env="MY_TOKEN"),)
    for given, options in (
        (recipe(folder=tmp_path, secrets=refs), RunOptions(args=("--token", VALUE))),
        (recipe(folder=tmp_path, secrets=refs, env={"B": f"Bearer {VALUE}"}), RunOptions()),
    ):
        with pytest.raises(RunnerError) as caught:
            check_run(given, options)
        assert caught.value.code == "R-SECRET-EXPOSED"
        assert VALUE not in str(caught.value)


def test_only_the_task_setting_contains_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", VALUE)
    (tmp_path / "train.py").write_text("print(1)")
    given = recipe(folder=tmp_path, secrets=(SecretRef("A", env="MY_TOKEN"),))
    services = Services(settings(), outputs(), None, dry_run=True)
    submission = plan_submission(check_run(given, RunOptions()), services, ignore_progress)
    prepared, document = submission.run, submission.documents()["digits"]
    assert (document["secrets"], document["secret_refs"]) == (["A"], {"A": {"env": "MY_TOKEN"}})
    assert VALUE not in json.dumps(document) + repr(submission) + str(prepared.secrets)

    class Nobody:
        outputs = outputs()

        def node_storage(self, scopes: Any, lifetime: Any) -> dict[str, Any]:
            return {}

        def resource_file(self, *args: Any) -> Any:
            return None

    task = to_task(prepared, cast("Connection", Nobody()))
    found = {setting.name: setting.value for setting in task.environment_settings or ()}
    assert json.loads(found["RUNNER_SECRETS"] or "")["values"] == {"A": VALUE}
    assert VALUE not in (task.command_line or "")
    without = to_task(plan(given), cast("Connection", Nobody()))
    assert "RUNNER_SECRETS" not in str(without)


def test_values_too_short_to_redact_are_named() -> None:
    refs = (SecretRef("A", env="X"), SecretRef("B", env="Y"))
    assert read_secrets(refs, {"X": "12345", "Y": "123456"}).short() == ["A"]
