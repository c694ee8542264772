"""Each kind of installation works in an empty environment, without a clone or beside others."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.page.assets import LICENCES, SCRIPTS
from runner.protocol.errors import ExitCode

pytestmark = pytest.mark.slow
_ROOT = Path(__file__).parents[2]
_RUN = "import sys; from runner.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the wheels of both source distributions, by the name of the distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    scripts = [sys.executable, "-m", "tools.page_scripts"]  # as `make dist` does
    done = subprocess.run(scripts, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for source in (_ROOT, _ROOT / "batch_emulator"):
        _uv("build", "--quiet", "--no-build-isolation", "--out-dir", folder, source)
    built = {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}
    assert built.keys() == {"azure_batch_runner", "batch_emulator"}
    return built


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the unpacked wheels, without the clone."""
    folder = tmp_path_factory.mktemp("installed")
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
    return folder


def _uv(*words: str | Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    kept["VIRTUAL_ENV"] = sys.prefix  # where `uv build` finds the build backend
    done = subprocess.run([uv, *words], env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# How people install it: the options of `uv pip install`.
_SHAPES = {
    "wheel": ("{azure_batch_runner}", "{batch_emulator}"),
    "local": ("{azure_batch_runner}[local]", "{batch_emulator}"),
    "infra": ("{azure_batch_runner}[infra]", "{batch_emulator}"),
    "ui": ("{azure_batch_runner}[ui]", "{batch_emulator}"),
    "clone": ("-e", f"{_ROOT}[local]", "-e", f"{_ROOT}/batch_emulator"),
    "emulator": ("{batch_emulator}",),
}


class Shape:
    """One kind of installation in an empty environment, with an empty HOME."""

    def __init__(self, name: str, wheels: dict[str, Path], folder: Path) -> None:
        self.name, self.folder = name, folder
        self.python = folder / "venv/bin/python"
        _uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
        words = [word.format(**wheels) for word in _SHAPES[name]]
        _uv("pip", "install", "--quiet", "--python", self.python, *words)
        (folder / "home").mkdir()

    def run(self, *words: str, cwd: Path, limit_s: float = 900) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with nothing else on PATH but the system's."""
        environment = {
            "PATH": f"{self.python.parent}:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "AZURE_TOKEN_CREDENTIALS": "AzureCliCredential",
            "ARM_SUBSCRIPTION_ID": "00000000-0000-0000-0000-000000000001",
            "ARM_LOCATION": "westeurope",
            "EVERY_VERB_LIMIT_S": "60",
            **{k: v for k, v in os.environ.items() if k in _FROM_OUTSIDE},
        }
        return subprocess.run(
            words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=limit_s, check=False,
        )  # fmt: skip


# Which registry and certificates pip, uv and npm use.
_FROM_OUTSIDE = frozenset(
    name
    for name in os.environ
    if name.startswith(("PIP_", "UV_", "SSL_", "NPM_", "npm_")) or name == "REQUESTS_CA_BUNDLE"
)


@pytest.fixture
def shape(
    request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path: Path
) -> Iterator[Shape]:
    """Yield the installation that the test names, and stop its services afterwards."""
    found = Shape(request.param, wheels, tmp_path)
    yield found
    if found.name != "emulator":
        found.run("runner", "local", "down", cwd=tmp_path)


@pytest.mark.parametrize("shape", ["wheel", "local", "infra", "clone"], indirect=True)
def test_no_verb_ends_in_a_bug(shape: Shape, project: Path) -> None:
    done = shape.run(str(shape.python), str(Path(__file__).with_name("every_verb.py")), cwd=project)
    assert done.returncode == 0, done.stderr
    calls = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(calls) > 170
    assert not [
        each
        for each in calls
        if each["code"] in (ExitCode.BUG, 1) or each["code"] < 0 or "Traceback" in each["shown"]
    ]
    helps = [each for each in calls if each["words"][-1] == "--help"]
    assert all(each["code"] == 0 and "Usage:" in each["shown"] for each in helps)
    missing = [each["words"][0] for each in calls if "R-INFRA-MISSING" in each["shown"]]
    assert set(missing) >= (set() if shape.name == "infra" else {"up", "preview"})


@pytest.mark.parametrize("shape", ["ui"], indirect=True)
def test_page_of_a_wheel_has_its_scripts_and_needs_no_npm(shape: Shape, tmp_path: Path) -> None:
    modules = shape.python.parents[1].glob("lib/*/site-packages/runner/page/static/vendor/*")
    assert {path.name for path in modules} >= {*SCRIPTS, *LICENCES}
    environment = {"PATH": str(shape.python.parent), "HOME": str(shape.folder / "home")}
    process = subprocess.Popen(
        [shape.python.with_name("runner"), "ui", "--no-open", "--port", "0"],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    cookies = urllib.request.HTTPCookieProcessor()
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)
    with pytest.raises(urllib.error.HTTPError) as raised:  # no services run
        browser.open(link)
    text = raised.value.read().decode()
    assert "runner local up" in text
    script = re.search(r'src="(/static/page\.js\?v=\w+)"', text)
    assert script is not None
    with browser.open(link.partition("/?")[0] + script[1]) as answer:
        assert b"htmx" in answer.read()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert "installing" not in said


@pytest.mark.parametrize("shape", ["wheel"], indirect=True)
def test_page_without_its_extra_says_how_to_install_it(shape: Shape, tmp_path: Path) -> None:
    done = shape.run("runner", "ui", "--no-open", cwd=tmp_path)
    assert done.returncode == ExitCode.PREFLIGHT
    assert "error[R-EXTRA-MISSING]: jinja2 is not installed" in done.stderr
    assert "'azure-batch-runner[ui]'" in done.stderr


@pytest.mark.parametrize("shape", ["emulator"], indirect=True)
@pytest.mark.parametrize("words", ["batch-emulator", "python -m batch_emulator"])
def test_emulator_alone_runs(shape: Shape, tmp_path: Path, words: str) -> None:
    done = shape.run(*words.split(), "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = {path.name for path in shape.python.parents[1].glob("lib/*/site-packages/*")}
    assert "batch_emulator" in names
    assert not names & {"runner", "runner_infra", "azure", "pydantic", "typer"}


_NAMES = ("infra", "custom_image", "batch_emulator", "runner", "tools", "tests", "json_tools")


@pytest.mark.parametrize("shape", ["local", "clone"], indirect=True)
def test_project_with_modules_of_our_names_and_runner_both_work(
    shape: Shape, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    for name in _NAMES[:3]:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("mine = 1")
    for name in _NAMES[4:]:  # folders without __init__.py
        (project / name).mkdir()
        (project / name / "part.py").write_text("mine = 1")
    (project / "runner.py").write_text("mine = 1")
    (project / "queue.py").write_text("mine = 1")
    imports = [f"import {name}; assert {name}.mine" for name in (*_NAMES[:4], "queue")]
    imports += [f"import {name}.part; assert {name}.part.mine" for name in _NAMES[4:]]
    (project / "train.py").write_text("\n".join([*imports, "print('all mine')"]))
    alone = shape.run("python", "train.py", cwd=project)
    assert (alone.stdout, alone.stderr) == ("all mine\n", "")
    trained = shape.run(
        *("runner", "train", ".", "--entry", "train.py", "--no-download"), cwd=project
    )
    assert trained.returncode == 0, trained.stderr
    assert "all mine" in trained.stdout + trained.stderr


@pytest.mark.parametrize("shape", ["wheel"], indirect=True)
def test_removed_emulator_is_one_error_with_a_fix(shape: Shape, tmp_path: Path) -> None:
    _uv("pip", "uninstall", "--quiet", "--python", shape.python, "batch-emulator")
    assert shape.run("runner", "recipe", "ls", cwd=tmp_path).returncode == 0
    done = shape.run("runner", "local", "up", cwd=tmp_path)
    assert (done.returncode, "install" in done.stderr) == (3, True)
    assert "batch_emulator" in done.stderr


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


# Files that distributions and images are built from.
_TO_BUILD = (
    *("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"),
    *("Containerfile", "image.lock", ".dockerignore"),
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
    } - {Path(name) for name in _TO_BUILD}
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
