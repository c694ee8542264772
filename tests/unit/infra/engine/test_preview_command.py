"""`runner preview --offline`: what a first deployment creates, without Azure or the engine."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli.main import main
from tests.unit.infra.stacks import plain_stack

_ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "deeper").mkdir(parents=True)
    for name in ("Pulumi.yaml", "Pulumi.dev.yaml"):
        shutil.copy(_ROOT / name, folder)
    monkeypatch.chdir(folder / "deeper")
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    (tmp_path / "config.yaml").touch()
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")  # asks no address
    for name in ("ARM_LOCATION", "ARM_SUBSCRIPTION_ID", "RUNNER_STACK"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_preview_lists_the_declared_resources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", "--offline", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    kinds = sorted(row["type"] for row in shown["resources"])
    assert kinds == sorted(resource.kind for resource in plain_stack().resources)
    names = {row["type"]: row["name"] for row in shown["resources"]}
    assert names["batch:Pool"] == "t4"
    assert names["resources:ResourceGroup"] == "rg-runner-dev"
    kept = {row["type"] for row in shown["resources"] if row["kept_by_down"]}
    assert "storage:StorageAccount" in kept
    assert "batch:Pool" not in kept


def test_preview_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("runner.cli.ui.output.is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["preview", "--offline"]) == 0
    shown = capsys.readouterr().out
    assert "\n+ create  BlobServiceProperties  default " in shown
    assert re.search(r"^t4 +Standard_NC4as_T4_v3 .* 0 to 4 spot ", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80


_NETWORK = """\
  azure-native:location: eastus
  runner:network: {}
  runner:operators: [{id: 22222222-3333-4444-5555-666666666666}]
"""


def test_offline_preview_shows_the_warnings_of_the_program_once(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "Pulumi.dev.yaml"
    text = file.read_text().replace(
        "max_spot: 4", "max_spot: 4\n      image: {sku: '2404'}\n      mounts: " + _MOUNTS
    )
    file.write_text(text + _NETWORK)
    assert main(["preview", "--offline", "-o", "json"]) == 0
    said = capsys.readouterr()
    mounts, access = json.loads(said.out)["warnings"]
    assert "mounts 2 containers on Ubuntu 24.04" in mounts
    assert "and the address of the deployer, which may exclude the operators" in access
    assert said.err.splitlines() == [f"warning: {mounts}", f"warning: {access}"]


_MOUNTS = "[{kind: blob, container: data, path: a}, {kind: blob, container: runs, path: b}]"


def test_offline_preview_replaces_no_pool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", "--offline", "--replace", "t4"]) == 2
    assert "error[R-PREVIEW-OPTIONS]" in capsys.readouterr().err


def test_preview_needs_no_event_loop_of_its_caller() -> None:
    asyncio.set_event_loop(None)
    assert main(["preview", "--offline"]) == 0
    assert main(["preview", "--offline"]) == 0


@pytest.mark.slow
def test_preview_shows_the_cost_of_each_pool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", "--offline", "-o", "json"]) == 0
    (pool,) = json.loads(capsys.readouterr().out)["pools"]
    assert pool["idle_usd_per_hour"] == 0
    assert (pool["max_spot"], pool["max_dedicated"]) == (4, 0)


@pytest.mark.slow
def test_unknown_price_is_shown_with_a_warning(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "Pulumi.dev.yaml"
    file.write_text(file.read_text() + "  azure-native:location: antarcticanorth\n")
    assert main(["preview", "--offline"]) == 0
    said = capsys.readouterr()
    assert "unknown" in said.out
    assert "unknown price of t4" in said.err


@pytest.mark.slow
def test_unknown_spot_price_is_bounded_by_the_dedicated_one(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "Pulumi.dev.yaml"
    file.write_text(file.read_text() + "  azure-native:location: eastus\n")
    assert main(["preview", "--offline", "-o", "json"]) == 0
    (pool,) = json.loads(capsys.readouterr().out)["pools"]
    assert pool["usd_per_hour_max"] == pytest.approx(4 * 0.526)  # four T4
    assert pool["upper_bound"]
    assert main(["preview", "--offline"]) == 0
    said = capsys.readouterr().out
    assert "below 2.10" in said
    assert "0 to 4 spot" in said


@pytest.mark.slow
def test_known_price_is_multiplied_and_dated(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "Pulumi.dev.yaml"
    text = file.read_text().replace("Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4")
    text = text.replace("max_spot: 4", "max_spot: 0\n      max_dedicated: 2")
    file.write_text(text + "  azure-native:location: eastus\n")
    assert main(["preview", "--offline", "-o", "json"]) == 0
    (pool,) = json.loads(capsys.readouterr().out)["pools"]
    assert pool["usd_per_hour_max"] == pytest.approx(2 * 3.673)
    assert not pool["upper_bound"]
    assert pool["prices_of"].startswith("2026-")
    assert main(["preview", "--offline"]) == 0
    assert "up to 7.35" in capsys.readouterr().out


@pytest.mark.slow
def test_warning_of_an_unknown_price_names_the_region(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "Pulumi.dev.yaml"
    file.write_text(file.read_text() + "  azure-native:location: antarcticanorth\n")
    assert main(["preview", "--offline"]) == 0
    assert "run `runner skus --refresh --region antarcticanorth`" in capsys.readouterr().err


def test_spend_cap_uses_refreshed_prices(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The packaged table lacks the region, so the result depends on the refreshed table."""
    file = project / "Pulumi.dev.yaml"
    text = file.read_text().replace("max_spot: 4", "max_spot: 4\n      spend_cap_usd_per_hour: 1")
    file.write_text(text + "  azure-native:location: antarcticanorth\n")
    assert main(["preview", "--offline"]) == 6
    assert "runner skus --refresh" in capsys.readouterr().err
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home/prices.csv").write_text(
        "vm_size,location,kind,usd_per_hour,as_of,source\n"
        "Standard_NC4as_T4_v3,antarcticanorth,spot,0.4,2026-11-20,test\n"
    )
    assert main(["preview", "--offline", "-o", "json"]) == 0
    (pool,) = json.loads(capsys.readouterr().out)["pools"]
    assert pool["max_spot"] == 2


@pytest.mark.parametrize(
    ("before", "after", "code", "says"),
    [
        ("Standard_NC4as_T4_v3", "Standard_NC6", "R-MACHINE-RETIRED", "Standard_NC6"),
        ("Standard_NC4as_T4_v3", "Standard_NC4as_T4", "R-MACHINE-UNKNOWN", "Standard_NC4as_T4_v3"),
        ("max_spot: 4", "max_spot: 0", "R-STACK-CONFIG-FIELD", "Pulumi.dev.yaml:"),
    ],
)
def test_invalid_pool_is_one_error_before_any_declaration(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    code: str,
    says: str,
) -> None:
    file = project / "Pulumi.dev.yaml"
    file.write_text(file.read_text().replace(before, after))
    assert main(["preview", "--offline", "-o", "json"]) != 0
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == code
    assert says in f"{error['what']} {error['why']} {error['fix']}"
    assert error["fix"]


def test_missing_region_of_a_real_preview_names_the_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["preview"]) == 3
    assert "set ARM_LOCATION" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "location", "parts"),
    [
        ((), None, ["location: the location is missing", "not signed in", "CLI is not installed"]),
        ((), "eastus", ["not signed in", "CLI is not installed"]),
        (("--yes",), None, ["location: the location is missing", "not signed in"]),
        (("--yes",), "eastus", ["not signed in"]),
    ],
)
def test_real_preview_names_all_that_is_missing_before_a_question(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    location: str | None,
    parts: list[str],
) -> None:
    monkeypatch.setenv("PATH", str(project))
    monkeypatch.setenv("ARM_SUBSCRIPTION_ID", "11111111-2222-3333-4444-555555555555")
    if location is not None:
        monkeypatch.setenv("ARM_LOCATION", location)
    asked: list[str] = []
    monkeypatch.setattr("runner.cli.ui.output.Output.confirm", lambda _, text: asked.append(text))
    assert main(["preview", *words, "-o", "json"]) == (3 if location is None else 4)
    error = json.loads(capsys.readouterr().out)["error"]
    lines = f"{error['what']}\n{error['why']}".splitlines()
    assert len(lines) == len(parts) + 1
    if len(parts) > 1:
        assert f"needs {len(parts)} things" in error["what"]
        lines = lines[1:]
    assert all(part in line for part, line in zip(parts, lines, strict=False))
    assert error["fix"]
    assert asked == []


def test_folder_without_a_project_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["preview", "--offline"]) == 3
    assert "R-PROJECT-MISSING" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("verb", [["ps", "--help"], ["train", "--help"], ["up", "--help"]])
def test_pulumi_is_loaded_by_up_preview_and_down_only(verb: list[str]) -> None:
    script = (
        "import sys; from runner.cli.main import main; code = main(sys.argv[1:]); "
        "loaded = [m for m in sys.modules if m.partition('.')[0] in ('pulumi', 'infra')]; "
        "sys.exit(f'loaded {loaded[:3]}' if loaded else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *verb], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
