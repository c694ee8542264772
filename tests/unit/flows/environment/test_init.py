"""`runner init`: questions, options and files, with a stand-in of `az` on PATH."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from runner.cli.commands.environment import init as command
from runner.cli.main import build_app, main
from runner.cli.options import open_settings
from runner.flows.environment import first_files
from runner.protocol.errors import ExitCode

pytest.importorskip("pulumi")
Capture = pytest.CaptureFixture[str]
Ask = Callable[..., Result]
CURRENT, OTHER = (f"{n}0000000-1111-2222-3333-444444444444" for n in (1, 2))
_USER = {"name": "ada@example.com"}
_ACCOUNTS = [
    {"id": OTHER, "name": "Research", "state": "Enabled", "user": _USER},
    {"id": CURRENT, "name": "Team", "isDefault": True, "state": "Enabled", "user": _USER},
    {"id": "x", "name": "Closed", "state": "Disabled", "user": _USER},
]
_REGIONS = [{"name": "eastus"}, {"name": "westeurope"}]


_TEAM = f"/subscriptions/{CURRENT}/resourceGroups/team/providers"
_STORAGE = [
    {"id": f"{_TEAM}/Microsoft.Storage/storageAccounts/{name}", "location": "westeurope"}
    for name in ("teamdata", "teamlogs")
]
_BATCH = [
    {
        "id": f"{_TEAM}/Microsoft.Batch/batchAccounts/teambatch",
        "location": "westeurope",
        "autoStorage": {"storageAccountId": _STORAGE[0]["id"]},
    },
    {
        "id": f"{_TEAM}/Microsoft.Batch/batchAccounts/alone",
        "location": "eastus",
        "autoStorage": None,
    },
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty folder, without a terminal and without `az`. Return it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    (tmp_path / "config.yaml").touch()
    for name in ("ARM_LOCATION", "ARM_SUBSCRIPTION_ID", "RUNNER_STACK"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def az(tmp_path: Path) -> Callable[..., None]:
    """Write an `az` that lists these subscriptions; it fails if there are none to list.

    `there` are a Batch account and two storage accounts.
    """

    def write(accounts: object, *, there: bool = False) -> None:
        lines = [
            "#!/bin/sh",
            f"[ $2 = list-locations ] && echo '{json.dumps(_REGIONS)}' && exit",
            f"[ $1 = batch ] && echo '{json.dumps(_BATCH if there else [])}' && exit",
            f"[ $1 = storage ] && echo '{json.dumps(_STORAGE if there else [])}' && exit",
            f"echo '{json.dumps(accounts)}'" if accounts is not None else "echo broken >&2; exit 1",
        ]
        file = tmp_path / "bin/az"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        file.chmod(0o755)

    return write


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run `init` as on a terminal, with these answers."""

    def run(*words: str, answers: str) -> Result:
        monkeypatch.setattr(command, "is_terminal", lambda _: True)
        monkeypatch.setattr("runner.cli.ui.output.is_terminal", lambda _: True)
        return CliRunner().invoke(build_app(["init"]), ["init", "--no-check", *words], answers)

    return run


def config(folder: Path, stack: str = "dev") -> dict[str, object]:
    text = (folder / f"Pulumi.{stack}.yaml").read_text(encoding="utf-8")
    return YAML(typ="safe").load(text)["config"]


@pytest.mark.feature(27)
def test_default_answers_create_a_valid_project(
    folder: Path, az: Callable[..., None], ask: Ask, capsys: Capture
) -> None:
    az(_ACCOUNTS)
    done = ask(answers="\n" * 6)
    assert done.exit_code == 0, done.output
    assert f"1  Team  {CURRENT}  (current)" in done.output
    assert "Closed" not in done.output
    written = config(folder)
    assert written["azure-native:subscriptionId"] == CURRENT
    assert written["azure-native:location"] == "eastus"
    assert written["runner:budget"] == {"usd_per_month": 100, "emails": ["ada@example.com"]}
    assert main(["preview", "--offline", "-o", "json"]) == 0
    (pool,) = json.loads(capsys.readouterr().out)["pools"]
    assert (pool["max_spot"], pool["max_dedicated"], pool["upper_bound"]) == (4, 0, True)


def test_invalid_answer_repeats_the_question_with_the_reason(
    folder: Path, az: Callable[..., None], ask: Ask
) -> None:
    az(_ACCOUNTS)
    typed = ["research", "westeuorpe", "westeurope", "Standard_T5", "", "lots", "2", "0"]
    done = ask(answers="\n".join([*typed, ""]))
    assert done.exit_code == 0, done.output
    assert "did you mean 'westeurope'?" in done.output
    assert "run `runner skus` to list all sizes" in done.output
    assert "write a whole number, like 3" in done.output
    written = config(folder)
    assert written["azure-native:subscriptionId"] == OTHER
    assert written["runner:budget"] is None
    assert written["runner:pools"] == [
        {"id": "gpu", "vm_size": "Standard_NC4as_T4_v3", "max_spot": 2}
    ]


def test_existing_accounts_are_listed_and_adopted_by_number(
    folder: Path, az: Callable[..., None], ask: Ask, capsys: Capture
) -> None:
    az(_ACCOUNTS, there=True)
    done = ask(answers="\n1\n\nteam\n" + "\n" * 4)  # the region is not asked for
    assert done.exit_code == 0, done.output
    assert "1  teambatch  westeurope, resource group team" in done.output
    written = config(folder)
    assert written["azure-native:location"] == "westeurope"
    assert written["runner:adopt"] == {
        "resource_group": "team",
        "batch_account": _BATCH[0]["id"],
        "storage_account": _STORAGE[0]["id"],
    }
    assert main(["preview", "--offline", "-o", "json"]) == 0
    types = {each["type"] for each in json.loads(capsys.readouterr().out)["resources"]}
    assert "batch:Pool" in types
    assert not types & {"batch:BatchAccount", "storage:StorageAccount", "resources:ResourceGroup"}


@pytest.mark.parametrize(
    ("words", "adopted"),
    [
        (("--adopt", "teambatch"), (_BATCH[0]["id"], _STORAGE[0]["id"], "westeurope")),
        (("--adopt", str(_BATCH[1]["id"])), (_BATCH[1]["id"], None, "eastus")),
        (
            ("--adopt", "alone", "--storage-account", "teamlogs"),
            (_BATCH[1]["id"], _STORAGE[1]["id"], "eastus"),
        ),
        (
            ("--adopt", "teambatch", "--storage-account", "new"),
            (_BATCH[0]["id"], None, "westeurope"),
        ),
        (("--storage-account", "teamdata"), (None, _STORAGE[0]["id"], "eastus")),
    ],
)
def test_options_adopt_accounts_by_name_or_id(
    folder: Path, az: Callable[..., None], words: tuple[str, ...], adopted: tuple[str | None, ...]
) -> None:
    az(_ACCOUNTS, there=True)
    assert main(["init", "--no-check", *words]) == 0
    written = config(folder)
    section = written["runner:adopt"]
    assert isinstance(section, dict)
    found = (section.get("batch_account"), section.get("storage_account"))
    assert (*found, written["azure-native:location"]) == adopted


def test_default_answers_adopt_no_existing_account(
    folder: Path, az: Callable[..., None], ask: Ask
) -> None:
    az(_ACCOUNTS, there=True)
    assert ask(answers="\n" * 7).exit_code == 0
    assert "runner:adopt" not in config(folder)


def test_unknown_account_is_named_with_the_known_ones(
    folder: Path, az: Callable[..., None], capsys: Capture
) -> None:
    az(_ACCOUNTS, there=True)
    assert main(["init", "--adopt", "nobody"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "invalid --adopt 'nobody'" in said
    assert "fix: use one of: teambatch, alone" in said
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("answered", range(6))
def test_interrupted_questions_leave_no_file(folder: Path, ask: Ask, answered: int) -> None:
    done = ask("--subscription", CURRENT, answers="\n" * min(answered, 4))  # then the input ends
    assert done.exit_code == ExitCode.INTERRUPTED
    assert "interrupted: no file was written" in done.output
    assert list(folder.iterdir()) == []


def test_existing_file_is_kept_unless_the_answer_is_yes(folder: Path, ask: Ask) -> None:
    file = folder / "Pulumi.dev.yaml"
    file.write_text("config: {}\n", encoding="utf-8")
    words = ("--subscription", CURRENT)
    done = ask(*words, answers="n\nlab\n" + "\n" * 5)
    assert done.exit_code == 0, done.output
    assert file.read_text(encoding="utf-8") == "config: {}\n"
    assert config(folder, "lab")["azure-native:subscriptionId"] == CURRENT
    assert "runner up --stack lab" in done.output
    assert ask(*words, answers="y\n" + "\n" * 5).exit_code == 0
    assert config(folder)["azure-native:location"] == "eastus"


def test_without_a_terminal_existing_files_need_force(folder: Path, capsys: Capture) -> None:
    file = folder / "Pulumi.dev.yaml"
    file.write_text("config: {}\n", encoding="utf-8")
    words = ["init", "--subscription", CURRENT, "--location", "westus2", "--no-check"]
    assert main(words) == ExitCode.USAGE
    assert "add --force to replace it" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == "config: {}\n"
    assert main([*words, "--force"]) == 0
    assert config(folder)["azure-native:location"] == "westus2"


@pytest.mark.parametrize(
    ("accounts", "why"),
    [
        ("no az", "the Azure CLI (az) is not installed"),
        ([], "the Azure CLI (az) is not signed in"),
        (None, "the Azure CLI failed: broken"),
        ("text", "the Azure CLI printed no list"),
        ([{"name": "no ID"}], "`az account list` printed no list of subscriptions"),
    ],
)
def test_missing_subscription_is_refused_with_the_reason(
    folder: Path, az: Callable[..., None], capsys: Capture, accounts: object, why: str
) -> None:
    if accounts != "no az":
        az(accounts)
    assert main(["init", "--no-check"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert why in said
    assert "fix: add --subscription ID, or " in said
    assert ("install the Azure CLI" in said) == (accounts == "no az")
    assert "`az login`" in said
    assert list(folder.iterdir()) == []


def test_json_has_files_values_and_checks(folder: Path, capsys: Capture) -> None:
    words = ["--subscription", CURRENT, "--stack", "lab", "--max-nodes", "1", "--budget", "20"]
    assert main(["init", *words, "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    names = ("Pulumi.yaml", "Pulumi.lab.yaml", "runner_stack/__main__.py")
    assert made["files"] == [str(folder / name) for name in names]
    assert (made["stack"], made["subscription"], made["budget"]) == ("lab", CURRENT, "20")
    states = {each["check"]: each["state"] for each in made["checks"]}
    assert (states["config"], states["az"]) == ("ok", "note")
    assert all(each["fix"] for each in made["checks"] if each["state"] in ("note", "failed"))


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--max-nodes", "-1"), "--max-nodes '-1'"),
        (("--vm-size", "big"), "--vm-size 'big'"),
        (("--location", "East/US"), "--location 'East/US'"),
        (("--budget", "1\n  x: 2"), "--budget"),
        (("--email", "somebody"), "--email 'somebody'"),
        (("--subscription", "Research"), "--subscription 'Research'"),
    ],
)
def test_invalid_option_is_named_and_nothing_is_written(
    folder: Path, capsys: Capture, words: tuple[str, str], option: str
) -> None:
    given = [] if words[0] == "--subscription" else ["--subscription", CURRENT]
    assert main(["init", *given, *words]) != 0
    said = capsys.readouterr().err
    assert f"invalid {option}" in said
    assert "fix: " in said
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("stack", ["a/b", "..", "ä", "x" * 300])
def test_invalid_stack_name_is_refused(folder: Path, capsys: Capture, stack: str) -> None:
    assert main(["init", "--subscription", CURRENT, "--stack", stack]) == ExitCode.USAGE
    assert "error[R-" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_folder_of_another_pulumi_project_is_refused(folder: Path, capsys: Capture) -> None:
    (folder / "Pulumi.yaml").write_text("name: theirs\n", encoding="utf-8")
    assert main(["init", "--subscription", CURRENT, "--no-check"]) == ExitCode.USAGE
    assert "fix: run `runner init` in another folder" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["Pulumi.yaml"]


def test_failed_write_leaves_no_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(self: Path, text: str, **_: object) -> None:
        self.touch()
        raise OSError(28, "No space left on device")

    answers = first_files.Answers(subscription=CURRENT)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(first_files.RunnerError) as caught:
        first_files.write_files(answers, folder)
    assert caught.value.why == "No space left on device"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "region", "cloud"),
    [
        ("AzureChinaCloud", "chinanorth3", "china"),
        ("AzureUSGovernment", "usgovvirginia", "usgov"),
        ("AzureCloud", "eastus", None),
    ],
)
def test_stack_is_in_the_cloud_that_az_uses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, region: str, cloud: str | None
) -> None:
    settings = folder.parent / "az-settings"
    settings.mkdir()
    (settings / "config").write_text(f"[core]\noutput = table\n[cloud]\nname = {name}\n")
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(settings))
    assert main(["init", "--subscription", CURRENT, "--no-check"]) == 0
    written = YAML(typ="safe").load(folder / "Pulumi.dev.yaml")["config"]
    assert written["azure-native:location"] == region
    assert written.get("runner:cloud") == cloud


@pytest.mark.parametrize("location", ["West Europe", "WestEurope", "west europe", "westeurope"])
def test_region_is_accepted_in_every_spelling(
    folder: Path, az: Callable[..., None], location: str
) -> None:
    az(_ACCOUNTS)
    assert main(["init", "--no-check", "--location", location]) == 0
    assert config(folder)["azure-native:location"] == "westeurope"


def test_region_of_a_variable_is_accepted_in_every_spelling(
    folder: Path, az: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    az(_ACCOUNTS)
    monkeypatch.setenv("ARM_LOCATION", "East US")
    assert main(["init", "--no-check"]) == 0
    assert config(folder)["azure-native:location"] == "eastus"


def test_size_without_new_capacity_is_noted(az: Callable[..., None], capsys: Capture) -> None:
    az(_ACCOUNTS)
    assert main(["init", "--no-check", "--vm-size", "Standard_NC24ads_A100_v4"]) == 0
    said = capsys.readouterr().err
    assert "Azure adds capacity only to NCads_H100_v5; consider Standard_NC40ads_H100_v5" in said


def test_without_az_each_invalid_answer_repeats_its_question(folder: Path, ask: Ask) -> None:
    (folder / "Pulumi.dev.yaml").touch()
    typed = ["n", "a b", "lab", "1", CURRENT, "narnia", "west europ", "West Europe", "2", ""]
    done = ask(answers="\n".join([*typed, "0", "3", "-5", "50", "50", "true", "a@b.example", ""]))
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "allowed: letters, digits, '.', '_' and '-'; use a value such as dev" in said
    assert "Subscription (ID): 1" in said
    assert "did you mean 'westeurope'" in said
    assert said.count("VM size of the spot nodes") == 2
    assert "the pool could have no nodes; use 1 or more" in said
    assert "use 0 for no budget, or a positive number" in said
    for wrong in ("put it in quotes", "yaml:", "pools.0", "error["):
        assert wrong not in said
    assert config(folder, "lab")["azure-native:location"] == "westeurope"


def test_region_that_only_azure_knows_has_no_prices(tmp_path: Path) -> None:
    settings = open_settings("azure", None)
    (line,) = first_files.size_lines(settings, "atlantiscentral")
    assert line.endswith("runner skus --refresh --region atlantiscentral")


def test_columns_of_sizes_are_aligned_under_long_names() -> None:
    lines = first_files.size_lines(open_settings("azure", None), "westeurope")
    rows = [line for line in lines if not line.startswith("Standard_") or ": " not in line]
    assert any("RTXPRO6000" in line for line in rows)
    assert len({len(line) for line in rows}) == 1
    assert max(map(len, rows)) <= 78
