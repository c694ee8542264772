"""Lock files of each program become requirements files with the same packages."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.core.packages.lock_files import PinnedPackages, pin_packages
from runner.core.packages.sources import is_lock_file
from runner.protocol.errors import RunnerError

UV = """\
version = 1
revision = 3
requires-python = ">=3.10,<3.13"

[[package]]
name = "Colorama"
version = "0.4.6"
source = { registry = "https://index.test/packages" }

[[package]]
name = "cloned"
version = "1.0"
source = { git = "https://git.test/a/cloned?rev=main&subdirectory=py#c0ffee" }

[[package]]
name = "member"
version = "0.1"
source = { editable = "libs/member" }
dependencies = [{ name = "numpy", version = "2.2", marker = "python_full_version >= '3.11'" }]

[[package]]
name = "numpy"
version = "1.26"
source = { registry = "https://index.test/packages" }
sdist = { url = "https://index.test/numpy-1.26.tar.gz", hash = "sha256:aa" }
wheels = [{ url = "https://index.test/numpy-1.26-cp310.whl", hash = "sha256:ab" }]

[[package]]
name = "numpy"
version = "2.2"
source = { registry = "https://index.test/packages" }
wheels = [{ url = "https://index.test/numpy-2.2-cp311.whl", hash = "sha256:ba" }]

[[package]]
name = "project"
version = "0"
source = { virtual = "." }
dependencies = [
    { name = "cloned" },
    { name = "member" },
    { name = "numpy", version = "1.26", marker = "python_full_version < '3.11'" },
    { name = "numpy", version = "2.2", marker = "python_full_version >= '3.11'" },
    { name = "server", extra = ["fast"] },
    { name = "torch" },
    { name = "wheel-only" },
]

[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "pytest"
version = "8.0"
source = { registry = "https://index.test/packages" }

[[package]]
name = "server"
version = "3.0"
source = { registry = "https://index.test/packages" }
dependencies = [{ name = "colorama", marker = "sys_platform == 'win32'" }]

[package.optional-dependencies]
fast = [{ name = "uvloop" }]
slow = [{ name = "pytest" }]

[[package]]
name = "torch"
version = "2.5.1+cpu"
source = { registry = "https://torch.test/cpu" }
dependencies = [{ name = "triton", marker = "platform_machine == 'x86_64'" }, { name = "torch" }]
wheels = [{ url = "https://a.test/1.whl", hash = "sha256:c" }, { url = "https://a.test/2.whl" }]

[[package]]
name = "triton"
version = "3.1"
source = { registry = "https://index.test/packages" }

[[package]]
name = "uvloop"
version = "0.2"
source = { registry = "https://index.test/packages" }

[[package]]
name = "wheel-only"
version = "1"
source = { url = "https://files.test/wheel_only-1-py3-none-any.whl" }
"""
PROJECT = """\
[project]
name = "project"
dependencies = ["cloned", "member", "numpy>1", "server[fast]>=2", "torch", "wheel-only"]

[tool.uv]
index = [{ name = "torch", url = "https://torch.test/cpu", explicit = true }]
"""


def pin(
    folder: Path, name: str, text: str, project: str | Mapping[str, Any] = "", python: str = ""
) -> PinnedPackages:
    """Write a lock file, and return what it pins."""
    (folder / name).write_text(text)
    table = tomllib.loads(project) if isinstance(project, str) else project
    return pin_packages(folder, name, table, lambda own: python or own)


def lines_of(pinned: PinnedPackages) -> list[str]:
    """Return the logical lines without the comment at the top."""
    return pinned.text.replace(" \\\n   ", "").splitlines()[1:]


def test_uv_lock_keeps_versions_markers_hashes_and_sources(tmp_path: Path) -> None:
    found = pin(tmp_path, "uv.lock", UV, PROJECT)
    assert lines_of(found) == [
        "--extra-index-url https://torch.test/cpu",
        "cloned @ git+https://git.test/a/cloned@c0ffee#subdirectory=py",
        "./libs/member",
        "numpy==1.26 ; python_version == '3.10' --hash=sha256:aa --hash=sha256:ab",
        "numpy==2.2 ; python_version == '3.11' or python_version == '3.12' --hash=sha256:ba",
        "server==3.0",
        "torch==2.5.1+cpu",  # one hash is unknown
        "triton==3.1 ; (platform_machine == 'x86_64')",
        "uvloop==0.2",
        "wheel-only @ https://files.test/wheel_only-1-py3-none-any.whl",
    ]
    assert found.python == ">=3.10,<3.13"
    assert found.folders == ("libs/member",)


def test_request_for_python_leaves_one_version(tmp_path: Path) -> None:
    lines = lines_of(pin(tmp_path, "uv.lock", UV, PROJECT, python="3.10.4"))
    assert [line for line in lines if "numpy" in line] == [
        "numpy==1.26 --hash=sha256:aa --hash=sha256:ab"
    ]


def test_default_groups_of_uv_are_installed(tmp_path: Path) -> None:
    project = PROJECT + 'default-groups = ["dev"]\n'
    assert "pytest==8.0" in lines_of(pin(tmp_path, "uv.lock", UV, project))


def test_lock_file_of_a_script(tmp_path: Path) -> None:
    text = UV[: UV.index('[[package]]\nname = "project"')] + (
        '[manifest]\nrequirements = [{ name = "numpy", specifier = ">=2" }]\n'
    )
    text = (
        text[: text.index('[[package]]\nname = "numpy"\nversion = "1.26"')]
        + text[text.index('[[package]]\nname = "numpy"\nversion = "2.2"') :]
    )
    assert lines_of(pin(tmp_path, "train.py.lock", text)) == ["numpy==2.2 --hash=sha256:ba"]


@pytest.mark.parametrize(
    ("dependency", "why"),
    [
        ("pandas", "the project lists pandas, which uv.lock does not contain"),
        ("server>=4", "the project wants server>=4, but uv.lock has 3.0"),
    ],
)
def test_uv_lock_older_than_the_project_is_refused(
    tmp_path: Path, dependency: str, why: str
) -> None:
    project = PROJECT.replace('"torch"', f'"torch", "{dependency}"', 1)
    with pytest.raises(RunnerError) as caught:
        pin(tmp_path, "uv.lock", UV, project)
    assert (caught.value.code, caught.value.why, caught.value.fix) == (
        "R-LOCKFILE-OLD",
        why,
        "uv lock",
    )


def test_dependency_of_another_system_may_be_missing(tmp_path: Path) -> None:
    project = PROJECT.replace('"torch"', '"torch", "pywin32; sys_platform == \'win32\'"', 1)
    assert pin(tmp_path, "uv.lock", UV, project).names


POETRY_PROJECT = """\
[tool.poetry.dependencies]
python = "^3.10"
Tqdm = "^4.60"
rich = {version = ">=13", python = "<3.12"}
numpy = [{version = "<2", python = "<3.11"}, {version = ">=2", python = ">=3.11"}]
server = {version = "*", extras = ["fast"]}
unused = {version = "*", optional = true}
cloned = {git = "git@git.test:a/cloned.git", branch = "main"}

[tool.poetry.group.dev.dependencies]
pytest = "*"
"""
POETRY = """\
[[package]]
name = "cloned"
version = "1"
optional = false
python-versions = "*"

[package.source]
type = "git"
url = "git@git.test:a/cloned.git"
reference = "main"
resolved_reference = "c0ffee"

[[package]]
name = "numpy"
version = "1.26"
files = [{file = "numpy-1.26.whl", hash = "sha256:aa"}]

[[package]]
name = "numpy"
version = "2.2"
files = [{file = "numpy-2.2.whl", hash = "sha256:ba"}]

[[package]]
name = "pytest"
version = "8.0"

[[package]]
name = "rich"
version = "13.1"

[package.dependencies]
pygments = ">=2,<3"
typing-extensions = {version = "^4", markers = "python_version < \\"3.11\\""}

[[package]]
name = "pygments"
version = "2.1"
source = {type = "legacy", url = "https://other.test/packages", reference = "other"}

[[package]]
name = "server"
version = "3.0"

[package.dependencies]
uvloop = {version = "*", optional = true}
pytest = {version = "*", optional = true}

[package.extras]
fast = ["uvloop (>=0.1)"]
test = ["pytest"]

[[package]]
name = "tqdm"
version = "4.66"

[package.dependencies]
colorama = {version = "*", markers = "platform_system == \\"Windows\\""}

[[package]]
name = "typing-extensions"
version = "4.1"

[[package]]
name = "uvloop"
version = "0.2"

[[package]]
name = "unused"
version = "1"

[metadata]
lock-version = "2.0"
python-versions = "^3.10"
"""
POETRY_LINES = [
    "--extra-index-url https://other.test/packages",
    "cloned @ git+ssh://git@git.test/a/cloned.git@c0ffee",
    "numpy==1.26 ; python_version == '3.10' --hash=sha256:aa",
    "numpy==2.2 ; python_version == '3.11' or python_version == '3.12' --hash=sha256:ba",
    "pygments==2.1 ; python_version == '3.10' or python_version == '3.11'",
    "rich==13.1 ; python_version == '3.10' or python_version == '3.11'",
    "server==3.0",
    "tqdm==4.66",
    "typing-extensions==4.1 ; python_version == '3.10'",
    "uvloop==0.2",
]


def test_poetry_lock_follows_the_dependencies_of_the_project(tmp_path: Path) -> None:
    found = pin(tmp_path, "poetry.lock", POETRY, POETRY_PROJECT, python=">=3.10,<3.13")
    assert lines_of(found) == POETRY_LINES
    assert found.python == ">=3.10,<4"


def test_old_poetry_lock_has_hashes_at_the_end(tmp_path: Path) -> None:
    text = (
        '[[package]]\nname = "tqdm"\nversion = "4.66"\ncategory = "main"\noptional = false\n'
        '[[package]]\nname = "black"\nversion = "1"\ncategory = "dev"\noptional = false\n'
        '[metadata]\nlock-version = "1.1"\npython-versions = ">=3.8"\n'
        '[metadata.files]\ntqdm = [{file = "tqdm.whl", hash = "sha256:aa"}]\nblack = []\n'
    )
    project = '[tool.poetry.dependencies]\npython = ">=3.8"\ntqdm = "*"\n'
    assert lines_of(pin(tmp_path, "poetry.lock", text, project)) == ["tqdm==4.66 --hash=sha256:aa"]


def test_poetry_lock_without_the_project_uses_groups_and_markers(tmp_path: Path) -> None:
    text = """\
[[package]]
name = "a"
version = "1"
groups = ["main", "dev"]
markers = {main = "python_version < '3.11'", dev = "python_version >= '3.11'"}
[[package]]
name = "b"
version = "2"
groups = ["dev"]
[[package]]
name = "c"
version = "3"
groups = ["main"]
markers = "sys_platform == 'win32'"
[[package]]
name = "d"
version = "4"
optional = true
groups = ["main"]
[metadata]
lock-version = "2.1"
python-versions = ">=3.10,<3.12"
"""
    assert lines_of(pin(tmp_path, "poetry.lock", text)) == ["a==1 ; python_version == '3.10'"]


PDM = """\
[metadata]
groups = ["default", "dev"]
strategy = ["cross_platform", "inherit_metadata"]
lock_version = "4.5.0"

[[metadata.targets]]
requires_python = ">=3.10,<3.12"

[[package]]
name = "rich"
version = "13.1"
groups = ["default"]
marker = "python_version < \\"3.11\\""
files = [{file = "rich.whl", hash = "sha256:aa"}]

[[package]]
name = "server"
version = "3.0"
groups = ["default", "dev"]
dependencies = ["uvloop; sys_platform != 'win32'"]

[[package]]
name = "server"
version = "3.0"
extras = ["fast"]
groups = ["default"]

[[package]]
name = "uvloop"
version = "0.2"
groups = ["default"]

[[package]]
name = "cloned"
version = "1"
git = "https://git.test/a/cloned.git"
ref = "main"
revision = "c0ffee"
groups = ["default"]

[[package]]
name = "pytest"
version = "8"
groups = ["dev"]
"""
PDM_PROJECT = """\
[project]
name = "x"
dependencies = ["rich; python_version < '3.11'", "server[fast]>=3", "cloned"]
[[tool.pdm.source]]
name = "torch"
url = "https://torch.test/cpu"
"""
PDM_LINES = [
    "--extra-index-url https://torch.test/cpu",
    "cloned @ git+https://git.test/a/cloned.git@c0ffee",
    "rich==13.1 ; python_version == '3.10' --hash=sha256:aa",
    "server==3.0",
    "uvloop==0.2",
]


def test_pdm_lock_with_groups(tmp_path: Path) -> None:
    assert lines_of(pin(tmp_path, "pdm.lock", PDM, PDM_PROJECT)) == PDM_LINES


def test_pdm_lock_without_groups_follows_dependencies(tmp_path: Path) -> None:
    lines = [
        line
        for line in PDM.splitlines()
        if not line.startswith(("groups =", "marker =")) or 'default", "dev"]' in line
    ]
    text = "\n".join(line for line in lines if not line.startswith("groups"))
    assert lines_of(pin(tmp_path, "pdm.lock", text, PDM_PROJECT)) == PDM_LINES


def test_pipfile_lock(tmp_path: Path) -> None:
    text = json.dumps({
        "_meta": {
            "requires": {"python_version": "3.11"},
            "sources": [
                {"name": "pypi", "url": "https://index.test/packages"},
                {"name": "torch", "url": "https://torch.test/cpu"},
            ],
        },
        "default": {
            "numpy": {"version": "==2.2", "hashes": ["sha256:aa", "sha256:ab"], "index": "pypi"},
            "torch": {"version": "==2.5.1+cpu", "index": "torch"},
            "requests": {"version": "==2", "extras": ["socks"], "markers": "python_version >= '3'"},
            "pywin32": {"version": "==1", "markers": "sys_platform == 'win32'"},
            "cloned": {"git": "https://git.test/a/cloned.git", "ref": "c0ffee"},
            "mine": {"path": "./libs/mine", "editable": True},
        },
        "develop": {"pytest": {"version": "==8"}},
    })  # fmt: skip
    found = pin(tmp_path, "Pipfile.lock", text, {"packages": {"Numpy": "*", "torch": "*"}})
    assert lines_of(found) == [
        "--extra-index-url https://torch.test/cpu",
        "cloned @ git+https://git.test/a/cloned.git@c0ffee",
        "./libs/mine",
        "numpy==2.2 --hash=sha256:aa --hash=sha256:ab",
        "requests[socks]==2",
        "torch==2.5.1+cpu",
    ]
    assert found.python == "3.11"
    with pytest.raises(RunnerError, match=r"Pipfile\.lock is out of date"):
        pin(tmp_path, "Pipfile.lock", text, {"packages": {"pandas": "*"}})


def test_pylock(tmp_path: Path) -> None:
    text = """\
lock-version = "1.0"
requires-python = ">=3.10,<3.12"
created-by = "a test"

[[packages]]
name = "numpy"
version = "2.2"
marker = "python_version >= '3.11'"
index = "https://index.test/packages"
wheels = [{ url = "https://index.test/numpy.whl", hashes = { sha256 = "aa" } }]

[[packages]]
name = "only-dev"
version = "1"
marker = "'dev' in dependency_groups"

[[packages]]
name = "cloned"
vcs = { type = "git", url = "https://git.test/a/cloned", commit-id = "c0ffee" }

[[packages]]
name = "mine"
directory = { path = "libs/mine", editable = true }

[[packages]]
name = "project"
directory = { path = "." }

[[packages]]
name = "packed"
archive = { url = "https://files.test/packed-1.tar.gz", hashes = { sha256 = "bb" } }
"""
    assert lines_of(pin(tmp_path, "pylock.toml", text)) == [
        "cloned @ git+https://git.test/a/cloned@c0ffee",
        "./libs/mine",
        "numpy==2.2 ; python_version == '3.11' --hash=sha256:aa",
        "packed @ https://files.test/packed-1.tar.gz",
    ]
    with pytest.raises(RunnerError, match=r"lock-version 2\.0 is not known"):
        pin(tmp_path, "pylock.toml", text.replace('"1.0"', '"2.0"'))


@pytest.mark.parametrize(
    "name", ["uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pylock.toml", "a.py.lock"]
)
@pytest.mark.parametrize(
    "text",
    [
        "<<<<<<< HEAD\n",
        "[[package]]\n",
        "[[package]]\nname = 1\nsource = 2\n",
        "package = 3\n",
        "{",
    ],
)
def test_damaged_lock_file_is_refused(tmp_path: Path, name: str, text: str) -> None:
    if name == "pylock.toml" and text == "package = 3\n":
        text = "packages = 3\n"
    with pytest.raises(RunnerError, match=f"cannot read {name}") as caught:
        pin(tmp_path, name, text)
    assert caught.value.code == "R-LOCKFILE"
    assert ("conflict markers" in (caught.value.why or "")) == ("<<<" in text)


def test_names_of_lock_files() -> None:
    assert all(map(is_lock_file, ("uv.lock", "a/poetry.lock", "pylock.gpu.toml", "t.py.lock")))
    assert not any(map(is_lock_file, ("Cargo.lock", "yarn.lock", "pylock.txt", "lock")))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("uv.lock", "version = 2\n", "version 2 is not known"),
        ("Pipfile.lock", '{"_meta": {}, "default": {"six": "x"}}', "an entry has another type"),
        ("Pipfile.lock", "[]", "an entry has another type"),
        ("poetry.lock", "package = 3\n[metadata]\n", "an entry has another type"),
    ],
)
def test_reason_for_a_damaged_lock_file_is_no_text_of_python(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RunnerError) as caught:
        pin_packages(tmp_path, name, {}, lambda own: own)
    assert str(caught.value.why).startswith(why)


def test_uv_lock_without_packages_is_older_than_the_project(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text('version = 1\nrequires-python = ">=3.9"\n')
    project = {"project": {"name": "x", "dependencies": ["six"]}}
    with pytest.raises(RunnerError, match="out of date"):
        pin_packages(tmp_path, "uv.lock", project, lambda own: own)
