"""The Python environment of a run in a container: built with the venv and pip of the image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
BASE = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
# Runs in the image's interpreter, as the agent does.
ENSURE = """
import json, sys
from pathlib import Path
from runner.node.failures import StageFailedError
from runner.node.environment.image_env import ImageEnvironment
shared, code, file = sys.argv[1:]
reported, check = [], lambda: None
try:
    builder = ImageEnvironment(Path(shared), "image:1", lambda *a: reported.append(a[0]), check)
    print(json.dumps([str(builder.ensure(Path(code), file or None, "c" * 64)), reported]))
except StageFailedError as err:
    print(json.dumps([err.code, err.message]))
"""


def has(python: Path, *modules: str) -> bool:
    words = [str(python), "-c", f"import {', '.join(modules)}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not BASE.exists() or not has(BASE, "pip", "venv"), reason="the Python below has no pip"
)


def put_wheel(folder: Path) -> None:
    """Build a wheel of a package with a module and a command."""
    folder.mkdir()
    info = "demo-1.0.dist-info"
    files = {
        "demo.py": "def main():\n    print('it is', __name__)\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ndemo-command = demo:main\n",
    }
    with zipfile.ZipFile(folder / "demo-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
        wheel.writestr(f"{info}/RECORD", record)


def image_with_packages(folder: Path) -> Path:
    """Return the interpreter of an image whose Python is a virtual environment with a package."""
    options = ["--without-pip", "--system-site-packages"]
    subprocess.run([BASE, "-m", "venv", *options, folder], check=True, timeout=120)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "of_the_image.py").write_text("")
    return folder / "bin" / "python"


def put_uv(folder: Path) -> None:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv is not installed")
    folder.mkdir(parents=True)
    (folder / "uv").symlink_to(uv)


def ensure(
    tmp_path: Path, python: Path, file: str = "", image_python: str | None = None
) -> list[object]:
    """Ask an agent that `python` runs; `image_python` is the image's own, where that is too old."""
    (tmp_path / "no-uv").mkdir(exist_ok=True)
    words = [str(python), "-c", ENSURE, str(tmp_path / "shared"), str(tmp_path / "task/code"), file]
    environment = {"PATH": str(tmp_path / "no-uv"), "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    if image_python is not None:
        environment["RUNNER_IMAGE_PYTHON"] = image_python
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "task" / "code"
    folder.mkdir(parents=True)
    put_wheel(folder / "wheels")
    (folder / "requirements.txt").write_text("--no-index\n--find-links wheels\ndemo==1.0\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_packages_are_installed_on_top_of_the_image(tmp_path: Path, code: Path, tool: str) -> None:
    if tool == "uv":
        put_uv(tmp_path / "shared/runner/bin")
    python = image_with_packages(tmp_path / "image")
    found, reported = ensure(tmp_path, python, "requirements.txt")
    assert isinstance(reported, list)
    assert "installing" in reported
    environment = Path(str(found))
    assert environment.parent == tmp_path / "shared/runner/envs"
    assert has(environment / "bin/python", "demo", "of_the_image")
    done = subprocess.run([environment / "bin/demo-command"], capture_output=True, check=True)
    assert done.stdout == b"it is demo\n"
    assert not has(python, "demo"), "the image stays as it is"
    assert ensure(tmp_path, python, "requirements.txt") == [found, ["environment is cached"]]
    assert [path.name for path in environment.parent.iterdir()] == [environment.name]


@pytest.mark.slow
def test_error_of_pip_is_in_the_message(tmp_path: Path, code: Path) -> None:
    (code / "requirements.txt").write_text("--no-index\nno-such-package-anywhere\n")
    error, message = ensure(tmp_path, BASE, "requirements.txt")
    assert error == "EnvironmentFailed"
    assert "no-such-package-anywhere" in str(message)
    assert not list((tmp_path / "shared/runner/envs").iterdir())


@pytest.mark.slow
def test_image_without_venv_fails_with_its_error(tmp_path: Path, code: Path) -> None:
    python = image_with_packages(tmp_path / "image")
    [packages] = (tmp_path / "image").glob("lib/python*/site-packages")
    (packages / "sitecustomize.py").write_text(
        "import sys\nif 'venv' in sys.orig_argv: print('install python3-venv first'); sys.exit(1)\n"
    )
    error, message = ensure(tmp_path, python, "requirements.txt")
    assert error == "EnvironmentFailed"
    assert "install python3-venv first" in str(message)


@pytest.mark.slow
def test_image_python_is_used_without_requirements(tmp_path: Path, code: Path) -> None:
    python = image_with_packages(tmp_path / "image")
    for image, module in ((python, "of_the_image"), (BASE, "pip")):
        found, reported = ensure(tmp_path, image)
        assert reported == ["the image's Python"]
        assert has(Path(str(found)) / "bin/python", module)


@pytest.mark.slow
@pytest.mark.feature(23)
def test_script_uses_the_python_of_the_image_not_of_the_agent(tmp_path: Path, code: Path) -> None:
    python = image_with_packages(tmp_path / "image")
    found, reported = ensure(tmp_path, BASE, image_python=str(python))
    assert (found, reported) == (str(tmp_path / "image"), ["the image's Python"])
    found, _ = ensure(tmp_path, BASE, "requirements.txt", str(python))
    assert has(Path(str(found)) / "bin/python", "demo", "of_the_image")


@pytest.mark.slow
def test_image_without_python_runs_commands_but_installs_nothing(
    tmp_path: Path, code: Path
) -> None:
    found, reported = ensure(tmp_path, BASE, image_python="")
    assert reported == ["the image has no Python"]
    assert not (Path(str(found)) / "bin" / "python").exists()
    error, message = ensure(tmp_path, BASE, "requirements.txt", "")
    assert (error, "no Python to install requirements.txt for" in str(message)) == (
        "EnvironmentFailed",
        True,
    )


def test_broken_python_of_an_image_fails_with_its_error(tmp_path: Path, code: Path) -> None:
    error, message = ensure(tmp_path, BASE, image_python="/bin/false")
    assert (error, "cannot query /bin/false of the image" in str(message)) == (
        "EnvironmentFailed",
        True,
    )
