"""A report of an installation whose services are down, and the archive."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path

import pytest

from runner.flows.bug_report import (
    MAX_BYTES,
    BugReport,
    ReportFile,
    collect_report,
    write_report,
)
from runner.protocol.errors import RunnerError


def collect(
    folder: Path, reference: str | None = None, **variables: str
) -> tuple[BugReport, dict[str, str]]:
    """Return a report of an installation in the folder, and its files by name."""
    env = {"RUNNER_HOME": str(folder / "home"), "HOME": str(folder), **variables}
    env["RUNNER_CONFIG"] = str(folder / "config.yaml")
    (folder / "config.yaml").touch()
    report = collect_report({}, reference, cwd=folder, env=env)
    return report, {file.name: file.content.decode() for file in report.files}


def test_services_that_are_down_are_a_problem_of_the_report(tmp_path: Path) -> None:
    report, files = collect(tmp_path)
    assert {"versions.json", "settings.json", "environment.json"} <= files.keys()
    assert [problem for problem in report.problems if "runner local up" in problem]


def test_settings_name_the_target(tmp_path: Path) -> None:
    _, files = collect(tmp_path, RUNNER_TARGET="azure", RUNNER_STACK="prod")
    settings = json.loads(files["settings.json"])
    assert (settings["target"], settings["stack"]) == ("azure", "prod")
    assert settings["origins"]["target"] == "RUNNER_TARGET"


def test_run_of_services_that_are_down_is_named_as_missing(tmp_path: Path) -> None:
    report, _ = collect(tmp_path, "mnist-1")
    assert "run mnist-1: the services do not answer" in report.problems


def test_invalid_settings_do_not_prevent_a_report(tmp_path: Path) -> None:
    (tmp_path / "runner.yaml").write_text("target: moon\n")
    report, files = collect(tmp_path)
    assert files["configuration/runner.yaml"] == "target: moon\n"
    assert "settings.json" not in files
    assert [
        problem for problem in report.problems if problem.startswith("settings: R-CONFIG-FIELD")
    ]


def test_secrets_of_variables_keys_and_files_are_masked(tmp_path: Path) -> None:
    local = tmp_path / "home" / "local"
    (local / "logs").mkdir(parents=True)
    (local / "keys.json").write_text(json.dumps({"batch": "batchkey123", "storage": "st/key+45"}))
    (local / "logs" / "batch.log").write_text(
        "signed with batchkey123, storage st%2Fkey%2B45, user said indexpass and hf-secret-1\n"
    )
    (tmp_path / "Pulumi.dev.yaml").write_text("config:\n  a:b:\n    secure: v1:abc:def\n")
    report, files = collect(
        tmp_path,
        RUNNER_TARGET="local",
        PIP_INDEX_URL="https://me:indexpass@host/simple",
        HF_TOKEN="hf-secret-1",
    )
    text = "\n".join(files.values())
    for secret in ("batchkey123", "st%2Fkey", "indexpass", "hf-secret-1", "v1:abc:def"):
        assert secret not in text
    assert files["local/logs/batch.log"].startswith("signed with ***, storage ***, user said ***")
    assert json.loads(files["environment.json"])["RUNNER_TARGET"] == "local"
    assert "local/keys.json" not in files
    masked = {file.name: file.masked for file in report.files}
    assert masked["local/logs/batch.log"] == 4


def test_only_the_end_of_a_long_log_is_kept(tmp_path: Path) -> None:
    logs = tmp_path / "home" / "local" / "logs"
    logs.mkdir(parents=True)
    (logs / "azurite.log").write_text("first\n" + "line\n" * (MAX_BYTES // 4) + "last\n")
    report, files = collect(tmp_path)
    (file,) = (file for file in report.files if file.name == "local/logs/azurite.log")
    assert file.cut
    assert len(file.content) <= MAX_BYTES
    assert files[file.name].startswith("line\n")
    assert files[file.name].endswith("line\nlast\n")


def test_archive_is_private_and_lists_its_files(tmp_path: Path) -> None:
    path = tmp_path / "report.zip"
    write_report(BugReport([ReportFile("a/b.txt", b"text", 2)], ["no services"]), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with zipfile.ZipFile(path) as archive:
        assert archive.read("a/b.txt") == b"text"
        contents = json.loads(archive.read("contents.json"))
    assert contents["problems"] == ["no services"]
    assert contents["files"] == [{"name": "a/b.txt", "size_bytes": 4, "masked": 2, "cut": False}]


@pytest.mark.parametrize("name", ["there.zip", "missing/there.zip"])
def test_archive_replaces_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "there.zip").write_text("mine")
    with pytest.raises(RunnerError) as caught:
        write_report(BugReport(), tmp_path / name)
    assert caught.value.code == "R-REPORT-FILE"
    assert (tmp_path / "there.zip").read_text() == "mine"


@pytest.mark.parametrize("damage", [b"", b"[" * 200_000, b'{"a":' * 9000, b"[1]", b"\xff\0"])
def test_damaged_documents_are_problems_or_files_of_the_report(
    tmp_path: Path, damage: bytes
) -> None:
    local = tmp_path / "home" / "local"
    local.mkdir(parents=True)
    for name in ("keys.json", "state.json", "outputs.json"):
        (local / name).write_bytes(damage)
    report, files = collect(tmp_path, RUNNER_TARGET="local")
    assert {"versions.json", "local/state.json", "local/outputs.json"} <= files.keys()
    assert [each for each in report.problems if each.startswith("keys of the local services")]


def test_variables_and_documents_that_are_no_unicode_are_included(tmp_path: Path) -> None:
    local = tmp_path / "home" / "local"
    local.mkdir(parents=True)
    (local / "keys.json").write_text('{"batch": "batchkey1", "old": "half\\ud800"}')
    (local / "outputs.json").write_text('{"a": "\\ud800", "b": "secret\\ud800", "c": "batchkey1"}')
    _, files = collect(tmp_path, AZURE_X="a\udcffb", MY_TOKEN="secret\udcff99")
    assert json.loads(files["environment.json"])["AZURE_X"] == "a\udcffb"
    assert "batchkey1" not in files["local/outputs.json"]


def test_document_that_is_nested_deeply_is_masked_as_text(tmp_path: Path) -> None:
    local = tmp_path / "home" / "local"
    local.mkdir(parents=True)
    (local / "outputs.json").write_text('{"password":' * 900 + '"hunter22"' + "}" * 900)
    _, files = collect(tmp_path)
    assert "hunter22" not in files["local/outputs.json"]


@pytest.mark.parametrize(
    "secure",
    ["v1:one:cipher", '"v1:one:cipher"', ">-\n      v1:one\n      cipher", "|\n      v1:cipher"],
)
def test_secrets_of_a_stack_are_masked_in_every_form_of_yaml(tmp_path: Path, secure: str) -> None:
    text = f"config:\n  a:b:\n    secure: {secure}\n  a:c: {{secure: v1:cipher}}\n  a:d: kept\n"
    (tmp_path / "Pulumi.dev.yaml").write_text(text)
    _, files = collect(tmp_path)
    shown = files["configuration/Pulumi.dev.yaml"]
    assert "cipher" not in shown
    assert shown.endswith("a:c: {secure: ***}\n  a:d: kept\n")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_interrupted_archive_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:5])
        raise error

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises((RunnerError, KeyboardInterrupt)):
        write_report(BugReport(), tmp_path / "report.zip")
    assert not [*tmp_path.iterdir()]


def test_link_to_a_missing_file_is_neither_followed_nor_deleted(tmp_path: Path) -> None:
    link = tmp_path / "report.zip"
    link.symlink_to(tmp_path / "elsewhere.zip")
    with pytest.raises(RunnerError, match="cannot write"):
        write_report(BugReport(), link)
    assert link.is_symlink()
    assert not (tmp_path / "elsewhere.zip").exists()
