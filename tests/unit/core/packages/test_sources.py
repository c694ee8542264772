"""Which file lists the packages, which Python a project asks for, and what is refused."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.core.recipe.code_archive import pack_code
from runner.core.recipe.file import load_recipe
from runner.core.recipe.imports import package_warnings
from runner.core.recipe.recipe import Recipe
from runner.protocol.errors import RunnerError

UV_LOCK = """\
version = 1
requires-python = ">=3.12"
[[package]]
name = "numpy"
version = "2.2"
source = { registry = "https://index.test/packages" }
[[package]]
name = "x"
version = "0"
source = { virtual = "." }
dependencies = [{ name = "numpy" }]
"""
PROJECT = '[project]\nname = "x"\nrequires-python = ">=3.12"\ndependencies = ["numpy"]\n'
INLINE = '# /// script\n# requires-python = ">=3.13"\n# dependencies = ["scipy"]\n# ///\n'
POETRY = '[tool.poetry.dependencies]\npython = "^3.11"\nnumpy = "^2.0"\n'


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, and an empty `train.py` unless it is among them."""
    for name, text in {"train.py": "", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def load(folder: Path, files: Mapping[str, str], entry: str | None = None) -> Recipe:
    """Return the recipe of a folder with these files."""
    write(folder, files)
    return load_recipe(".", cwd=folder, entry=entry)


def added(recipe: Recipe) -> list[str]:
    """Return the lines of the requirements file that the runner adds, without its comment."""
    [(_, text)] = recipe.package_source.added
    return text.splitlines()[1:]


@pytest.mark.parametrize(
    ("files", "file", "not_read"),
    [
        ({"requirements.txt": "a\n", "pyproject.toml": PROJECT}, "requirements.txt", 1),
        ({"pyproject.toml": PROJECT, "uv.lock": UV_LOCK}, "uv.lock.requirements.txt", 0),
        ({"train.py": INLINE, "uv.lock": UV_LOCK}, "train.py", 1),
        ({"pyproject.toml": PROJECT, "environment.yml": ""}, "pyproject.toml", 1),
        ({"pyproject.toml": POETRY}, "pyproject.toml.requirements.txt", 0),
        ({"Pipfile": '[packages]\nnumpy = "*"\n'}, "Pipfile.requirements.txt", 0),
        ({"Pipfile": "[packages]\n"}, None, 0),
        ({"setup.py": "from setuptools import setup\nsetup(name='x')\n"}, None, 0),
        ({"setup.cfg": "[flake8]\nmax-line-length = 100\n"}, None, 0),
        ({"pyproject.toml": "[tool.ruff]\n"}, None, 0),
        ({"environment.yml": "dependencies: [numpy]\n"}, "environment.yml", 0),
        ({"conda.yml": "dependencies: [pip, {pip: [a]}]\n"}, "conda.yml.requirements.txt", 0),
        ({"requirements.txt": "", "setup.py": "setup(install_requires=f())"},
         "requirements.txt", 1),
        ({"train.yaml": "requirements: uv.lock\n", "requirements.txt": "", "uv.lock": UV_LOCK},
         "uv.lock.requirements.txt", 1),
        ({"train.yaml": "requirements: e.yml\n", "e.yml": "dependencies: [a]\n"}, "e.yml", 0),
    ],
)  # fmt: skip
def test_first_file_in_order_is_used(
    tmp_path: Path, files: dict[str, str], file: str | None, not_read: int
) -> None:
    recipe = load(tmp_path, files)
    assert recipe.requirements_file == file
    assert len(recipe.package_source.not_read) == not_read


@pytest.mark.parametrize(
    ("files", "lines"),
    [
        ({"pyproject.toml": POETRY}, ["numpy>=2.0,<3"]),
        ({"pyproject.toml": '[tool.poetry.dependencies]\na = "*"\nb = {git = "https://h.test/b.git",'
                            ' tag = "v1"}\nc = {version = "1.2", extras = ["x"], markers = "python_'
                            'version < \'3.12\'"}\nd = [{version = "<2", python = "<3.12"}]\n'
                            'e = {version = "*", optional = true}\nf = {path = "lib"}\n',
          "lib/setup.py": ""},
         ["a", "b @ git+https://h.test/b.git@v1", "c[x]==1.2 ; python_version < '3.12'",
          "d<2 ; python_version < '3.12'", "./lib"]),
        ({"Pipfile": '[packages]\na = "~=1.0"\nb = {version = ">=2", markers = "os_name == '
                     "'posix'\"}\n[dev-packages]\nc = '*'\n"},
         ["a~=1.0", "b>=2 ; os_name == 'posix'"]),
        ({"setup.cfg": "[options]\npython_requires = >=3.8\ninstall_requires =\n  a>=1\n  b\n"},
         ["a>=1", "b"]),
        ({"setup.py": "import setuptools\nNEEDS = ['a', 'b>=1']\n"
                      "setuptools.setup(install_requires=NEEDS)\n"}, ["a", "b>=1"]),
        ({"environment.yml": "channels: [defaults]\ndependencies:\n- python=3.12\n- pip\n- pip:\n"
                             "  - a==1\n  - -r more.txt\n", "more.txt": "b\n"},
         ["a==1", "-r more.txt"]),
        ({"pyproject.toml": '[project]\nname = "x"\ndynamic = ["dependencies"]\n[tool.setuptools.'
                            'dynamic]\ndependencies = {file = ["needs.txt"]}\n',
          "needs.txt": "a\n"}, ["-r needs.txt"]),
    ],
)  # fmt: skip
def test_other_forms_become_a_requirements_file(
    tmp_path: Path, files: dict[str, str], lines: list[str]
) -> None:
    recipe = load(tmp_path, files)
    assert added(recipe) == lines
    assert recipe.requirements_file in pack_names(recipe)


def pack_names(recipe: Recipe) -> list[str]:
    """Return the names of the files in the packed code."""
    with tarfile.open(fileobj=io.BytesIO(pack_code(recipe).data)) as archive:
        return archive.getnames()


@pytest.mark.parametrize(
    ("files", "code", "fix"),
    [
        ({"setup.py": "setup(install_requires=read('r.in'))"}, "R-PACKAGES", "echo . >"),
        ({"pyproject.toml": '[project]\nname = "x"\ndynamic = ["dependencies"]\n'}, "R-PACKAGES",
         "echo . >"),
        ({"pyproject.toml": '[project]\nname = "x"\ndependencies = "numpy"\n'}, "R-REQUIREMENTS",
         "write a list"),
        ({"pyproject.toml": '[project]\nname = "x"\ndependencies = ["numpy=1"]\n'},
         "R-REQUIREMENTS", "numpy==1"),
        ({"train.py": "# /// script\n# dependencies = [numpy]\n# ///\n"}, "R-REQUIREMENTS",
         "correct the lines"),
        ({"train.py": "# /// script\n# dependencies = ['../x']\n# ///\n"}, "R-REQUIREMENTS",
         "copy it"),
        ({"environment.yml": "dependencies: [\n"}, "R-REQUIREMENTS", "correct environment.yml"),
        ({"environment.yml": "- a\n- b\n"}, "R-REQUIREMENTS", "write a list"),
        ({"environment.yml": "dependencies: {a: 1}\n"}, "R-REQUIREMENTS", "write a list"),
        ({"environment.yml": "dependencies: [a, {pop: [b]}]\n"}, "R-REQUIREMENTS", "write a list"),
        ({"environment.yml": "dependencies: [{pip: [-e ../x]}]\n"}, "R-REQUIREMENTS", "copy it"),
        ({"Pipfile": "[packages\n"}, "R-REQUIREMENTS", "correct Pipfile"),
        ({"pyproject.toml": "[project\n"}, "R-REQUIREMENTS", "correct pyproject.toml"),
        ({"Pipfile": '[packages]\na = {path = "../a"}\n'}, "R-REQUIREMENTS", "copy it"),
        ({"pyproject.toml": '[tool.poetry.dependencies]\na = {path = "../a"}\n'}, "R-REQUIREMENTS",
         "copy it"),
        ({"pyproject.toml": '[tool.poetry.dependencies]\na = "one"\n'}, "R-PYTHON-VERSION", ""),
        ({"uv.lock": UV_LOCK.replace('virtual = "."', 'editable = "../x"')}, "R-REQUIREMENTS",
         "copy it"),
        ({"uv.lock": "<<<<<<< HEAD\n"}, "R-LOCKFILE", "uv lock"),
        ({"pyproject.toml": PROJECT.replace("numpy", "pandas"), "uv.lock": UV_LOCK},
         "R-LOCKFILE-OLD", "uv lock"),
    ],
)  # fmt: skip
def test_what_cannot_be_installed_is_refused(
    tmp_path: Path, files: dict[str, str], code: str, fix: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        load(tmp_path, files)
    assert caught.value.code == code
    assert fix in (caught.value.fix or "")


@pytest.mark.parametrize("name", ["setup.py", "environment.yml", "Pipfile", "uv.lock"])
def test_empty_requirements_file_replaces_a_broken_one(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, {name: "<<<<<<<", "requirements.txt": ""}).requirements_file


@pytest.mark.parametrize(
    ("files", "python", "asked_by"),
    [
        ({"pyproject.toml": PROJECT}, ">=3.12", "requires-python of pyproject.toml"),
        ({"pyproject.toml": PROJECT, ".python-version": "3.13\n"}, "3.13", ".python-version"),
        ({".python-version": "3.12.4\n"}, "3.12.4", ".python-version"),
        ({"train.py": INLINE, "pyproject.toml": PROJECT}, ">=3.13", "requires-python of train.py"),
        ({"train.py": "# /// script\n# dependencies = []\n# ///\n", "pyproject.toml": PROJECT},
         None, None),
        ({"uv.lock": UV_LOCK}, ">=3.12", "requires-python of uv.lock"),
        ({"uv.lock": UV_LOCK, ".python-version": "3.12"}, "3.12", ".python-version"),
        ({"Pipfile.lock": '{"_meta": {"requires": {"python_version": "3.12"}}, "default": {}}'},
         "3.12", "requires-python of Pipfile.lock"),
        ({".python-version": "2.7", "train.yaml": 'python: "3.12"\n'}, "3.12", None),
        ({".python-version": "2.7", "train.yaml": "image: a/b\n"}, None, None),
        ({"train.py": INLINE, ".python-version": "3.12\n"}, ">=3.13",
         "requires-python of train.py"),
        ({"train.py": INLINE, ".python-version": "3.14\n"}, "3.14", ".python-version"),
        ({"pyproject.toml": POETRY}, ">=3.11,<4", "python of pyproject.toml"),
        ({"Pipfile": '[requires]\npython_version = "3.12"\n'}, "3.12", "python_version of Pipfile"),
        ({"environment.yml": "dependencies: [python=3.12.*, pip]\n"}, "3.12",
         "python of environment.yml"),
        ({"environment.yml": "dependencies: ['python>=3.11, <3.13']\n"}, ">=3.11,<3.13",
         "python of environment.yml"),
        ({"environment.yml": "dependencies: [python=3.12, numpy]\n"}, None, None),
        ({"setup.cfg": "[options]\npython_requires = ~=3.11\n"}, "~=3.11",
         "python_requires of setup.cfg"),
        ({"setup.py": "setup(python_requires='>=3.9')"}, ">=3.9", "python_requires of setup.py"),
        ({"pyproject.toml": PROJECT, "train.yaml": 'python: "3.13"\n'}, "3.13", None),
        ({"pyproject.toml": PROJECT, "train.yaml": "image: a/b\n"}, None, None),
        ({".python-version": "my-env\n"}, None, None),
        ({}, None, None),
    ],
)  # fmt: skip
def test_python_of_a_project(
    tmp_path: Path, files: dict[str, str], python: str | None, asked_by: str | None
) -> None:
    recipe = load(tmp_path, files)
    assert (recipe.python, recipe.python_from) == (python, asked_by)


@pytest.mark.parametrize(
    ("files", "what", "fix"),
    [
        ({"pyproject.toml": PROJECT, ".python-version": "3.10\n"}, "exclude each other", ">=3.12"),
        ({"pyproject.toml": PROJECT.replace(">=3.12", ">=3.12,<3.11")}, "no Python satisfies",
         "correct the range"),
        ({"pyproject.toml": PROJECT.replace(">=3.12", ">=2.7,<3")}, "no Python satisfies", "image"),
        ({".python-version": "2.7.18\n"}, "no Python satisfies 2.7.18", "image"),
        ({".python-version": "3.10\n", "uv.lock": UV_LOCK}, "exclude each other", ">=3.12"),
        ({"pyproject.toml": PROJECT.replace(">=3.12", "three")}, "'three' is no version", ">=3.11"),
        ({"pyproject.toml": POETRY.replace("^3.11", "^x")}, "'^x' is no version", ">=3.11"),
        ({"train.py": INLINE.replace(">=3.13", "<3")}, "requires-python of train.py", "image"),
        ({"Pipfile": '[requires]\npython_version = "2.7"\n'}, "python_version of Pipfile", "image"),
    ],
)  # fmt: skip
def test_impossible_python_is_refused(
    tmp_path: Path, files: dict[str, str], what: str, fix: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        load(tmp_path, files)
    assert caught.value.code == "R-PYTHON-VERSION"
    assert what in caught.value.what
    assert fix in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("files", "warning"),
    [
        ({"requirements.txt": "", "uv.lock": UV_LOCK}, "requirements.txt is used, not uv.lock"),
        ({".python-version": "my-env\n"}, ".python-version is not used"),
        ({"setup.py": "setup(install_requires=f())", "train.yaml": "prepare: pip install -e .\n"},
         "`prepare` installs them"),
        ({"pyproject.toml": PROJECT, "train.yaml": "image: a/b\n"}, "the image decides"),
        ({"pyproject.toml": PROJECT, "train.yaml": 'python: "3.11"\n'},
         "Python 3.11 of train.yaml"),
    ],
)  # fmt: skip
def test_what_is_not_used_is_said(tmp_path: Path, files: dict[str, str], warning: str) -> None:
    assert any(warning in text for text in package_warnings(load(tmp_path, files)))


def test_requirements_beside_the_entry_are_used(tmp_path: Path) -> None:
    files = {
        "requirements.txt": "root\n",
        "examples/mnist/main.py": "",
        "examples/mnist/requirements.txt": "near\n",
        "examples/other.py": "",
        "pkg/__init__.py": "",
        "pkg/train.py": "from . import x\n",
        "pkg/pyproject.toml": PROJECT,
    }
    near = load(tmp_path, files, entry="examples/mnist/main.py")
    assert near.requirements_file == "examples/mnist/requirements.txt"
    assert near.package_source.not_read == ("requirements.txt",)
    assert "not read: requirements.txt" in near.package_source.describe()
    assert load(tmp_path, {}, entry="examples/other.py").requirements_file == "requirements.txt"
    assert load(tmp_path, {}, entry="pkg.train").requirements_file == "pkg/pyproject.toml"
    assert load(tmp_path, {}).requirements_file == "requirements.txt"


def test_script_alone_is_sent_with_the_files_of_its_packages(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "requirements.txt": "-r more/base.txt\n-c pins.txt\n./one-1-py3-none-any.whl\n",
            "more/base.txt": "a\n",
            "pins.txt": "a<2\n",
            "one-1-py3-none-any.whl": "",
            "unrelated.txt": "",
        },
    )
    alone = load_recipe("./train.py", cwd=tmp_path)
    sent = {"train.py", "requirements.txt", "more/base.txt", "pins.txt", "one-1-py3-none-any.whl"}
    assert set(pack_names(alone)) == sent


def test_lock_file_beside_a_script_alone_is_sent_as_requirements(tmp_path: Path) -> None:
    write(tmp_path, {"uv.lock": UV_LOCK, "pyproject.toml": PROJECT})
    alone = load_recipe("./train.py", cwd=tmp_path)
    assert set(pack_names(alone)) == {"train.py", "uv.lock.requirements.txt"}
    assert alone.python == ">=3.12"


def test_script_alone_cannot_install_its_folder(tmp_path: Path) -> None:
    write(tmp_path, {"requirements.txt": "-e .\n", "pyproject.toml": PROJECT})
    with pytest.raises(RunnerError, match="would not be uploaded") as caught:
        load_recipe("./train.py", cwd=tmp_path)
    assert caught.value.fix == f"runner train {tmp_path} --entry train.py"


def test_crlf_in_inline_metadata(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(INLINE.replace("\n", "\r\n").encode())
    recipe = load_recipe(".", cwd=tmp_path)
    assert (recipe.requirements_file, recipe.python) == ("train.py", ">=3.13")


@pytest.mark.parametrize("kind", ["uv.lock", "pyproject.toml"])
def test_paths_in_a_nested_project_begin_at_its_folder(tmp_path: Path, kind: str) -> None:
    lock = UV_LOCK.replace(
        'registry = "https://index.test/packages"', 'path = "one-1-py3-none-any.whl"'
    )
    poetry = '[tool.poetry.dependencies]\none = {path = "one-1-py3-none-any.whl"}\n'
    files = {
        f"near/{kind}": lock if kind == "uv.lock" else poetry,
        "near/one-1-py3-none-any.whl": "",
        "near/main.py": "",
    }
    recipe = load(tmp_path, files, entry="near/main.py")
    assert added(recipe) == ["./near/one-1-py3-none-any.whl"]
    assert recipe.package_source.files == ("near/one-1-py3-none-any.whl",)
    alone = load_recipe("near/main.py", cwd=tmp_path)
    assert set(pack_names(alone)) == {
        "main.py",
        f"{kind}.requirements.txt",
        "one-1-py3-none-any.whl",
    }
    with pytest.raises(RunnerError, match="outside of the folder"):
        load(
            tmp_path,
            {
                f"near/{kind}": (tmp_path / "near" / kind)
                .read_text()
                .replace('"one-1', '"../../one-1')
            },
            entry="near/main.py",
        )


SETUP = "from setuptools import setup\n"


@pytest.mark.parametrize(
    "code",
    [
        "R = ['six']\nR.append('numpy')\n",
        "R = ['six']\nR += ['numpy']\n",
        "R = ['six']\nif True:\n    R = ['numpy']\n",
        "R = ['six']\nR[0] = 'numpy'\n",
    ],
)
def test_dependencies_that_setup_py_changes_are_not_read(tmp_path: Path, code: str) -> None:
    with pytest.raises(RunnerError, match="not known before it is built"):
        load(tmp_path, {"setup.py": f"{SETUP}{code}setup(install_requires=R)\n"})


def test_setup_cfg_names_files_of_requirements(tmp_path: Path) -> None:
    config = "[options]\ninstall_requires = file: deps/a.txt, b.txt\n"
    files = {"setup.cfg": config, "deps/a.txt": "six\n", "b.txt": "numpy\n"}
    recipe = load(tmp_path, files)
    assert added(recipe) == ["-r deps/a.txt", "-r b.txt"]
    assert recipe.package_source.listed.names == {"six", "numpy"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("# /// script\n# dependencies = ['six']\nimport six\n", "has no end"),
        ("# /// script\n#dependencies = ['six']\n# ///\n", "has no end"),
        ("x = 1\n# /// script\n# dependencies = ['six']", "has no end"),
        ("# /// script\n# ///\n\n# /// script\n# dependencies = []\n# ///\n", "more than one"),
    ],
)
def test_inline_metadata_that_uv_would_refuse_is_refused(
    tmp_path: Path, text: str, what: str
) -> None:
    with pytest.raises(RunnerError, match=what):
        load(tmp_path, {"train.py": text})


def test_number_as_requires_python_is_refused(tmp_path: Path) -> None:
    project = '[project]\nname = "x"\nrequires-python = 3.10\n'
    with pytest.raises(RunnerError, match="is a number"):
        load(tmp_path, {"pyproject.toml": project})


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ('[project.optional-dependencies]\ntrain = ["six", "numpy>=1"]', "optional-dependencies"),
        ('[dependency-groups]\ndev = [{include-group = "x"}, "numpy"]', "dependency-groups"),
        ('[tool.poetry.group.ml.dependencies]\nnumpy = "^1"', "tool.poetry.group"),
        ('[tool.hatch.envs.default]\ndependencies = ["NumPy"]', "tool.hatch.envs"),
        ('[tool.flit.metadata]\nrequires = ["numpy"]', "tool.flit.metadata"),
    ],
)
def test_reason_names_the_group_that_lists_a_package(
    tmp_path: Path, table: str, named: str
) -> None:
    files = {"train.py": "import numpy\nprint(1)\n", "pyproject.toml": f"{table}\n"}
    recipe = load(tmp_path, files)
    with pytest.raises(RunnerError) as caught:
        package_warnings(recipe)
    assert named in (caught.value.why or "")
    assert "groups are not installed" in (caught.value.why or "")


def of_uv(source: str) -> dict[str, str]:
    """Return a project whose package `one` is a folder, in the words of uv."""
    text = f"{PROJECT.replace('numpy', 'One>=1')}[tool.uv.sources]\none = {source}\n"
    return {"pyproject.toml": text, "lib/pyproject.toml": '[project]\nname = "one"\n'}


@pytest.mark.parametrize(
    "source", ['{ path = "lib" }', '{ path = "./lib", editable = true }', '[{ path = "lib" }]']
)
def test_folder_of_a_source_of_uv_is_sent_with_the_project_only(
    tmp_path: Path, source: str
) -> None:
    assert load(tmp_path, of_uv(source)).package_source.listed.folders == ("lib",)
    with pytest.raises(RunnerError, match="installs the folder lib, which would not be uploaded"):
        load_recipe("train.py", cwd=tmp_path)


@pytest.mark.parametrize(
    ("source", "problem"),
    [('{ path = "../lib" }', "outside of the folder"), ('{ path = "lob" }', "no file or folder")],
)
def test_source_of_uv_that_the_node_cannot_have_is_refused(
    tmp_path: Path, source: str, problem: str
) -> None:
    with pytest.raises(RunnerError, match=problem):
        load(tmp_path, of_uv(source))


def test_sources_of_uv_for_other_packages_are_ignored(tmp_path: Path) -> None:
    files = {"pyproject.toml": f'{PROJECT}[tool.uv.sources]\none = {{ path = "../lib" }}\n'}
    assert load(tmp_path, files).package_source.listed.folders == ()
