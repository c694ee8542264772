"""An installed `azure-batch-runner[infra]` works without a clone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
_ROOT = Path(__file__).parents[2]
_RUN = "import sys; from runner.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked wheel of the source distribution, in a folder without the clone."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv is not here")
    folder = tmp_path_factory.mktemp("installed")
    command = [uv, "build", "--quiet", "--out-dir", str(folder / "dist"), str(_ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip(f"the build backend cannot be downloaded: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with only the two files of a stack."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("Pulumi.yaml", "Pulumi.dev.yaml"):
        shutil.copy(_ROOT / name, folder)
    stack = folder / "Pulumi.dev.yaml"
    subscription = "00000000-0000-0000-0000-000000000001"
    stack.write_text(
        f"{stack.read_text()}  runner:image: {{}}\n  runner:registry: true\n"
        f"  azure-native:location: westeurope\n  azure-native:subscriptionId: {subscription}\n"
    )
    return folder


def run(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the wheel, without a terminal, a sign-in, or programs on PATH."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder.parent),
        "RUNNER_HOME": str(folder.parent / "home"),
        "PYTHONPATH": str(installed),
        "AZURE_TOKEN_CREDENTIALS": "AzureCliCredential",
    }
    command = [sys.executable, "-P", "-c", _RUN, *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("runner", "runner"),
        ("infra/runner_infra", "runner_infra"),
        ("batch_emulator", "batch_emulator"),
        ("custom_image", "runner_infra/custom_image"),
    ],
)
def test_every_file_of_a_package_is_packed(installed: Path, source: str, target: str) -> None:
    ours = {
        path.relative_to(_ROOT / source)
        for path in (_ROOT / source).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } - {Path("pyproject.toml")}
    folder = installed / target
    packed = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert ours
    assert ours <= packed


def test_distribution_installs_no_common_names(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert not names & {"infra", "custom_image", "images", "tests", "tools", "bench"}


def test_preview_declares_everything_with_the_packed_files(installed: Path, project: Path) -> None:
    done = run(installed, project, "preview", "--offline", "-o", "json")
    assert done.returncode == 0, done.stderr
    kinds = {row["type"] for row in json.loads(done.stdout)["resources"]}
    assert {"batch:Pool", "virtualmachineimages:VirtualMachineImageTemplate"} <= kinds


@pytest.mark.parametrize("words", [("check",), ("up",), ("up", "--no-check")])
def test_missing_extra_is_one_error_with_a_fix(
    installed: Path, project: Path, words: tuple[str, ...]
) -> None:
    done = run(installed, project, *words)
    assert done.returncode in (3, 4), done.stderr
    assert "Traceback" not in done.stderr
    assert "fix" in done.stderr + done.stdout
    wanted = "CLI" if words[-1] == "--no-check" else "sign"
    assert wanted in done.stderr + done.stdout


def test_down_reports_a_missing_deployment_without_the_extra(
    installed: Path, project: Path
) -> None:
    done = run(installed, project, "down")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "stack 'dev' is not deployed\n"
