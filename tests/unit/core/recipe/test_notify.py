"""`notify` of train.yaml and submit files, and `--notify`: never with the URL itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.planning.plan import storage_scopes
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions, with_options
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.secrets import read_secrets, recorded_secrets
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import NOTIFY_VARIABLE, NotifyRule, RunSpec, SecretRef

URL = "https://hooks.slack.com/services/T0/B0/very-secret-part"
VAULT = "https://team.vault.azure.net/secrets/hook"


def recipe_of(folder: Path, text: str) -> Recipe:
    (folder / "train.py").write_text("print(1)\n")
    (folder / "train.yaml").write_text(text)
    return load_recipe(str(folder), cwd=folder)


def test_keys_become_the_rule_of_the_run(tmp_path: Path) -> None:
    text = (
        "notify: {url: {env: HOOK}, on: [failure, cap], format: teams, evictions: 5, "
        "cap_share: 0.5}\n"
    )
    url = SecretRef(NOTIFY_VARIABLE, env="HOOK")
    rule = NotifyRule(url, ("failure", "cap"), "teams", 5, 0.5)
    found = recipe_of(tmp_path, text)
    assert found.notify == rule
    assert (found.all_secrets, found.secret_names) == ((url,), frozenset())


def test_defaults_are_those_of_the_rule(tmp_path: Path) -> None:
    found = recipe_of(tmp_path, f"notify: {{url: {{keyvault: '{VAULT}'}}}}\n")
    assert found.notify == NotifyRule(SecretRef(NOTIFY_VARIABLE, keyvault=VAULT))


@pytest.mark.parametrize(
    "value",
    [
        f"'{URL}'",
        f"{{url: '{URL}'}}",
        f"{{url: {{env: '{URL}'}}}}",
        f"{{url: {{keyvault: '{URL}'}}}}",
        "{url: {}}",
        "{url: {env: A, keyvault: B}}",
        "{url: {env: A}, on: []}",
        "{url: {env: A}, on: [everything]}",
        "{url: {env: A}, format: email}",
        "{url: {env: A}, evictions: 0}",
        "{url: {env: A}, cap_share: 1}",
        "{on: [failure]}",
    ],
)
def test_invalid_key_is_refused_without_showing_the_url(tmp_path: Path, value: str) -> None:
    with pytest.raises(RunnerError) as caught:
        recipe_of(tmp_path, f"notify: {value}\n")
    assert "train.yaml:1" in caught.value.what
    error = caught.value
    assert "very-secret-part" not in f"{error.what} {error.why} {error.fix}"


def test_option_replaces_the_url_and_keeps_the_rest(tmp_path: Path) -> None:
    own = recipe_of(tmp_path, "notify: {url: {env: A}, on: [cap]}\n")
    changed = with_options(own, RunOptions(notify="B")).notify
    assert changed == NotifyRule(SecretRef(NOTIFY_VARIABLE, env="B"), ("cap",))
    assert with_options(own, RunOptions(notify="off")).notify is None
    assert with_options(own, RunOptions()).notify == own.notify
    other = with_options(own, RunOptions(notify=VAULT)).notify
    assert other is not None
    assert other.url.keyvault == VAULT


@pytest.mark.parametrize("text", [URL, "a name", "", "http://127.0.0.1/x", "1A"])
def test_option_with_the_url_itself_is_refused(tmp_path: Path, text: str) -> None:
    own = recipe_of(tmp_path, "")
    with pytest.raises(RunnerError) as caught:
        with_options(own, RunOptions(notify=text))
    error = caught.value
    assert error.code == "R-NOTIFY-SOURCE"
    assert "very-secret-part" not in f"{error.what} {error.why} {error.fix}"


@pytest.mark.parametrize("url", ["http://example.com/x", "file:///x", "example.com/x", "x"])
def test_submission_with_another_url_is_refused(url: str) -> None:
    with pytest.raises(RunnerError) as caught:
        read_secrets([SecretRef(NOTIFY_VARIABLE, env="HOOK")], {"HOOK": url})
    assert (caught.value.code, caught.value.what) == (
        "R-NOTIFY-URL", "$HOOK is not the URL of a webhook",
    )  # fmt: skip


def test_url_is_passed_to_the_node_as_a_secret() -> None:
    values = read_secrets([SecretRef(NOTIFY_VARIABLE, env="HOOK")], {"HOOK": URL})
    assert values.reveal()["values"] == {NOTIFY_VARIABLE: URL}
    assert "secret-part" not in repr(values)


def test_repetition_reads_the_url_again() -> None:
    url = SecretRef(NOTIFY_VARIABLE, env="HOOK")
    own = SecretRef("TOKEN", env="T")
    run = RunSpec(run_id="a", secrets=(own,), notify=NotifyRule(url))
    assert recorded_secrets(run) == (own, url)
    damaged = RunSpec(
        run_id="a", notify=NotifyRule(SecretRef(NOTIFY_VARIABLE, keyvault="http://x"))
    )
    with pytest.raises(RunnerError, match="cannot be read"):
        recorded_secrets(damaged)
    forged = RunSpec(run_id="a", secrets=(url,))
    with pytest.raises(RunnerError, match="cannot be read"):
        recorded_secrets(forged)


def test_trial_that_notifies_may_read_how_others_ended() -> None:
    group = "s-20261129-120000-aaaa"
    trial = {
        "run_id": "s-1-20261129-120000-aaaa", "group": group, "trial": {"name": "1"},
    }  # fmt: skip
    before = set(storage_scopes(trial).runs)
    added = set(storage_scopes({**trial, "notify": {"url": {"env": "A"}}}).runs) - before
    assert f"rlw~sweeps/{group}/notified/" in added
    assert f"r=groups/{group}.json" in added
    assert "r=s-**-********-******-****/result.json" in added
    assert not {each for each in added if each.startswith("r~")}
