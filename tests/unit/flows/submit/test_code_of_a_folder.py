"""Code of a recipe's folder on the machine that submits: when it runs, and what it can read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import runner
from runner.core.home import code_variables
from runner.core.progress import Progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.sweep import SweepFile
from runner.flows.data.datasets import resolve_dataset
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.git import git_revision
from runner.flows.submit.sweep import check_sweep
from runner.protocol.errors import RunnerError

pytestmark = pytest.mark.attack

SECRETS = dict.fromkeys(
    (
        *("AZURE_CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "GITHUB_TOKEN", "RUNNER_KEY"),
        *("AZURE_STORAGE_CONNECTION_STRING", "ARM_CLIENT_SECRET", "PULUMI_CONFIG_PASSPHRASE"),
        *("SSH_AUTH_SOCK", "MY_PASSWORD", "KUBECONFIG", "DOCKER_AUTH_CONFIG", "PGPASSWORD"),
        *("GIT_ASKPASS", "PIP_INDEX_URL", "UV_INDEX_URL", "path_secret", "LD_PRELOAD"),
    ),
    "the-secret",
)
KEEP = "import json, os, pathlib\npathlib.Path({seen!r}).write_text(json.dumps(dict(os.environ)))\n"


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        if name != "LD_PRELOAD":
            monkeypatch.setenv(name, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a recipe whose code keeps its variables in `seen`."""
    made = tmp_path / "recipe"
    made.mkdir()
    code = KEEP.format(seen=str(tmp_path / "seen"))
    (made / "train.py").write_text("")
    (made / "train.yaml").write_text("command: python train.py\ndataset: cars\n")
    (made / "download.py").write_text(
        f"{code}import sys\nif sys.argv[1] == 'fetch': open(sys.argv[2] + '/a', 'w').write('1')\n"
    )
    (made / "trials.py").write_text(f"{code}def make():\n    yield {{'x': 1}}\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1")
    return made


def test_only_variables_that_programs_need_are_kept() -> None:
    kept = {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "https_proxy": "p", "HTTPS_PROXY": "p"}
    assert code_variables({**SECRETS, **kept}) == kept


def test_downloader_of_a_folder_sees_no_secret_and_is_named_before(
    folder: Path, tmp_path: Path
) -> None:
    said: list[Progress] = []
    resolve_dataset("cars", tmp_path / "data", tmp_path, said.append, folder)
    assert "the-secret" not in (tmp_path / "seen").read_text()
    assert str(folder / "download.py") in said[0].message
    (tmp_path / "seen").unlink()
    resolve_dataset("cars", None, tmp_path / "home", said.append, folder)
    assert "the-secret" not in (tmp_path / "seen").read_text()
    assert str(folder / "download.py") in said[1].message


def test_data_is_described_without_running_code(folder: Path, tmp_path: Path) -> None:
    found = resolve_dataset(
        "cars", tmp_path / "data", tmp_path, lambda _: None, folder, runs_code=False
    )
    assert [file.name for file in found.files] == ["a.csv"]
    assert "--run-checks" in (found.notice or "")
    assert not (tmp_path / "seen").exists()


def test_generator_sees_no_secret(folder: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(folder), cwd=tmp_path)
    sweep = SweepFile.model_validate({"generator": "trials.py:make"})
    check_sweep(recipe, sweep, RunOptions())
    assert "the-secret" not in (tmp_path / "seen").read_text()


def test_python_names_a_generator_before_it_runs_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    (folder / "train.yaml").write_text(
        "command: python train.py\nsweep: {generator: 'trials.py:make'}\n"
    )
    said: list[tuple[str, bool]] = []

    def see(update: runner.Update) -> None:
        said.append((update.message, (tmp_path / "seen").exists()))

    with pytest.raises(RunnerError, match="is unknown"):  # no stack to submit to
        runner.sweep(folder, target="azure", on_progress=see)
    text = f"running {folder / 'trials.py'} on this machine to list the trials"
    assert (text, False) in said
    assert (tmp_path / "seen").exists()


@pytest.mark.parametrize(
    "setting",
    [
        ("core.fsmonitor", "{program}"),
        ("filter.x.clean", "{program}"),
        ("filter.x.process", "{program}"),
        ("include.path", "{included}"),
        ("core.hooksPath", "{hooks}"),
    ],
    ids=lambda setting: setting[0],
)
def test_git_starts_no_program_of_the_folder(setting: tuple[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    folder.mkdir()
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho ran >> {tmp_path}/ran\ncat\n")
    program.chmod(0o755)
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "post-index-change").symlink_to(program)
    included = tmp_path / "included"
    included.write_text(f'[filter "x"]\n\tclean = {program}\n\trequired = true\n')

    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True)

    git("init", "-q")
    (folder / "a.txt").write_text("1")
    (folder / ".gitattributes").write_text("*.txt filter=x\n")
    git("add", "-A")
    git("commit", "-qm", "one")
    name, value = setting
    values = {"program": program, "included": included, "hooks": tmp_path / "hooks"}
    git("config", name, value.format(**values))
    (folder / "a.txt").write_text("2")
    os.utime(folder / "a.txt", (1, 1))
    found = git_revision(folder)
    assert not (tmp_path / "ran").exists()
    assert found is not None
    assert found[1]


@pytest.mark.parametrize(
    "options",
    [RunOptions(experiment="x-the-secret"), RunOptions(inputs=("a=https://h/?k=the-secret",))],
    ids=["experiment", "input"],
)
def test_value_of_a_secret_is_no_name(options: RunOptions, folder: Path, tmp_path: Path) -> None:
    (folder / "train.yaml").write_text(
        "command: python train.py\nsecrets: {TOKEN: {env: HF_TOKEN}}\n"
    )
    with pytest.raises(RunnerError) as caught:
        check_run(load_recipe(str(folder), cwd=tmp_path), options)
    assert caught.value.code == "R-SECRET-EXPOSED"
    assert "the-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    [
        "prepare: curl -H the-secret https://host",
        "inputs: {a: {url: 'https://host/x?key=the-secret'}}",
        "image: host/x:the-secret",
        "model: {name: the-secret}",
        "model: {name: m, path: the-secret.bin}",
        "outputs: [the-secret]",
        "metrics: {patterns: {auc: 'the-secret (.*)'}}",
    ],
    ids=lambda setting: setting.partition(":")[0],
)
def test_value_of_a_secret_is_in_no_setting(setting: str, folder: Path, tmp_path: Path) -> None:
    (folder / "train.yaml").write_text(
        f"command: python train.py\nsecrets: {{TOKEN: {{env: HF_TOKEN}}}}\n{setting}\n"
    )
    with pytest.raises(RunnerError) as caught:
        check_run(load_recipe(str(folder), cwd=tmp_path), RunOptions())
    assert caught.value.code == "R-SECRET-EXPOSED"
    assert "the-secret" not in str(caught.value)
