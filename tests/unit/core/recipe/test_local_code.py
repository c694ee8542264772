"""Which files of a folder a program executes, and what is found in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.packages.script_file import find_script
from runner.core.recipe.file import load_recipe
from runner.core.recipe.imports import package_warnings
from runner.core.recipe.local_code import (
    MAX_BYTES,
    MAX_FILES,
    LocalCode,
    read_source,
)
from runner.core.recipe.read_paths import SentCode, find_unsent
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import ExcludedPath

FLAG = "import argparse\nargparse.ArgumentParser().add_argument('--amp', action='store_true')\n"
RUN = ("python", "train.py")


def fill(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def names(code: LocalCode, *, only_certain: bool = False) -> list[str]:
    sources = code.sources(only_certain=only_certain)
    return [each.path.relative_to(code.folder).as_posix() for each in sources]


@pytest.mark.parametrize(
    ("command", "files", "expected"),
    [
        pytest.param(
            RUN,
            {"train.py": "import a.b.c", "a/__init__.py": "", "a/b/__init__.py": "",
             "a/b/c.py": "", "a/d.py": ""},
            ["train.py", "a/__init__.py", "a/b/__init__.py", "a/b/c.py"],
            id="packages before the module",
        ),
        pytest.param(
            ("python", "-m", "a.b.run", "--lr", "1"),
            {"a/__init__.py": "import x", "a/b/__init__.py": "", "a/b/run.py": "", "x.py": ""},
            ["a/b/run.py", "a/__init__.py", "a/b/__init__.py", "x.py"],
            id="module and its packages",
        ),
        pytest.param(
            ("python", "-m", "a"),
            {"a/__init__.py": "", "a/__main__.py": "from . import run", "a/run.py": ""},
            ["a/__main__.py", "a/__init__.py", "a/run.py"],
            id="main module of a package",
        ),
        pytest.param(
            ("python", "-m", "a.run"),
            {"a/__init__.py": "", "a/run.py": "import utils", "a/utils.py": "", "utils.py": ""},
            ["a/run.py", "a/__init__.py", "utils.py"],
            id="module is not searched beside a module",
        ),
        pytest.param(
            ("torchrun", "--nproc-per-node", "2", "a/run.py"),
            {"a/run.py": "import utils", "a/utils.py": "", "utils.py": ""},
            ["a/run.py", "a/utils.py"],
            id="module is searched beside a script",
        ),
        pytest.param(
            ("python", "-m", "torch.distributed.run", "train.py", "other.py"),
            {"train.py": "import a", "a.py": "", "other.py": ""},
            ["train.py", "a.py"],
            id="launcher",
        ),
        pytest.param(
            ("python", "-m", "churn.train"),
            {"src/churn/__init__.py": "", "src/churn/train.py": "from .net import Net",
             "src/churn/net.py": ""},
            ["src/churn/train.py", "src/churn/__init__.py", "src/churn/net.py"],
            id="module in src",
        ),
        pytest.param(
            RUN,
            {"train.py": "from a.b import (\n  c,  # one\n  d,\n)\nimport e; import f",
             "a/__init__.py": "", "a/b/__init__.py": "from .. import g\nfrom ..h import x",
             "a/b/c.py": "", "a/b/d.py": "from ... import outside", "a/g.py": "", "a/h.py": "",
             "e.py": "", "f.py": ""},
            ["train.py", "a/__init__.py", "a/b/__init__.py", "a/b/c.py", "a/b/d.py", "e.py", "f.py",
             "a/g.py", "a/h.py"],
            id="relative imports, and lists of names",
        ),
        pytest.param(
            RUN,
            {"train.py": "import a, data, part.one, part.two", "a.py": "", "a/__init__.py": "",
             "data/x.csv": "", "src/data/__init__.py": "", "part/one.py": "",
             "src/part/two.py": ""},
            ["train.py", "a/__init__.py", "src/data/__init__.py", "part/one.py", "src/part/two.py"],
            id="packages before modules, and folders without __init__ after both",
        ),
        pytest.param(
            RUN,
            {"train.py": "import a", "a.py": "import b", "b.py": "import a, train"},
            ["train.py", "a.py", "b.py"],
            id="circle",
        ),
        pytest.param(
            RUN,
            {"train.py": b"# -*- coding: latin-1 -*-\nimport a  # \xe9\n",
             "a.py": b"\xef\xbb\xbfimport b\n", "b.py": "# coding: cp1252\nimport c",
             "c.py": "print 'Python 2'\nimport d\nfrom e import (f)", "d.py": b"\xff\xfei\0",
             "e/f.py": "type Row = list[int]\nimport g", "g.py": "match = 1\ntry:\n  import h\n"
             "except* OSError:\n  pass", "h.py": "\tx = (\nimport i", "i.py": ""},
            ["train.py", "a.py", "b.py", "c.py", "d.py", "e/f.py", "g.py", "h.py", "i.py"],
            id="encodings, byte order marks and code of other versions",
        ),
        pytest.param(
            RUN,
            {"train.py": "import typing\nif typing.TYPE_CHECKING:\n  import a\nelse:\n  import b\n"
             "import c.x", "a.py": "", "b.py": "", "c": "no folder"},
            ["train.py", "b.py"],
            id="type checkers, and a file with the name of a package",
        ),
        pytest.param(("python", "gone.py"), {"train.py": ""}, [], id="no script"),
        pytest.param(("python", "-m", "../x"), {"x.py": ""}, [], id="no module"),
    ],
)  # fmt: skip
def test_files_that_a_program_executes_are_found(
    tmp_path: Path, command: tuple[str, ...], files: dict[str, str | bytes], expected: list[str]
) -> None:
    folder = tmp_path / "code"
    fill(folder, files)
    fill(tmp_path, {"outside.py": ""})
    assert names(LocalCode.of_command(folder, command)) == expected


def test_only_certain_imports_are_followed_if_asked(tmp_path: Path) -> None:
    text = (
        "import a\ntry:\n  import b\nexcept ImportError:\n  import c\nif x:\n  import d\n"
        "def f():\n  import e\nwith suppress(ImportError):\n  import g\n"
        "if __name__ == '__main__':\n  import h\nclass K:\n  import i\n"
        "for _ in ():\n  match x:\n    case 1:\n      import j\n"
    )
    fill(tmp_path, {"train.py": text, "a.py": "def f():\n  import k\n"})
    fill(tmp_path, {f"{name}.py": "" for name in "bcdeghijk"})
    code = LocalCode.of_command(tmp_path, RUN)
    everything = ["train.py", *(f"{name}.py" for name in "abcdeghijk")]
    assert names(code) == everything
    certain = [name for name in everything if name[0] not in "bcdgk"]
    assert names(code, only_certain=True) == certain


def test_large_code_is_read_within_limits(tmp_path: Path) -> None:
    table = "import b\nROWS = [" + "0," * MAX_BYTES + "]\n"
    fill(tmp_path, {"train.py": "import a, c", "a.py": table, "b.py": "", "c.py": ""})
    code = LocalCode.of_command(tmp_path, RUN)
    assert names(code) == ["train.py", "a.py"], "the limit of the program"
    large = read_source(tmp_path / "a.py")
    assert (large.is_valid, [each.module for each in large.imports]) == (False, ["b"])
    chain = {f"m{n}.py": f"import m{n + 1}" for n in range(2 * MAX_FILES)}
    fill(tmp_path, {"train.py": "import m0", **chain})
    assert len(names(code)) == MAX_FILES
    branches = "".join(f"elif x == {n}:\n  pass\n" for n in range(2_000))
    fill(tmp_path, {"train.py": f"if x:\n  pass\n{branches}else:\n  import c\n"})
    assert names(code) == ["train.py", "c.py"]


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    for name in "abab":
        fill(tmp_path, {"train.py": f"import {name}", "a.py": "", "b.py": ""})
        assert names(LocalCode.of_command(tmp_path, RUN)) == ["train.py", f"{name}.py"]


def test_programs_of_a_shell_script_are_found(tmp_path: Path) -> None:
    text = 'set -e\npython prepare.py && python -m net.train "$@"\necho \'never closed\n'
    fill(tmp_path, {"run.sh": text, "prepare.py": "import a", "a.py": "", "net/train.py": ""})
    code = LocalCode.of_shell_script(tmp_path, tmp_path / "run.sh")
    assert names(code) == ["prepare.py", "net/train.py", "a.py"]


@pytest.mark.parametrize(
    ("entry", "files"),
    [
        (
            "train.py",
            {
                "train.py": "from net.sub import options\noptions.run()",
                "net/__init__.py": "",
                "net/sub/options.py": "from ..flags import parser",
                "net/flags.py": FLAG,
            },
        ),
        ("train.py", {"train.py": "import churn.flags\nprint(1)", "src/churn/flags.py": FLAG}),
        (
            "churn.train",
            {
                "src/churn/__init__.py": "from .flags import parser",
                "src/churn/flags.py": FLAG,
                "src/churn/train.py": "print(1)",
            },
        ),
        (
            "fit",
            {
                "pyproject.toml": "[project]\nname = 'churn'\nscripts = {fit = 'churn.cli:main'}",
                "src/churn/cli.py": FLAG + "def main(): ...\n",
            },
        ),
        (
            "scripts/train.py",
            {
                "scripts/train.py": "import flags\nprint(1)",
                "scripts/flags.py": FLAG,
                "flags.py": "parser.add_argument('--amp')",
            },
        ),
    ],
)
def test_flags_are_found_in_all_modules(
    tmp_path: Path, entry: str, files: dict[str, str | bytes]
) -> None:
    fill(tmp_path, files)
    recipe = load_recipe(".", cwd=tmp_path, entry=entry)
    assert recipe.switches == {"amp": ("--amp", "")}
    assert recipe.notes == (), "it does something"


@pytest.mark.parametrize(
    ("files", "needs"),
    [
        ({"train.py": "import helper", "helper.py": "import churn", "src/churn.py": ""}, True),
        ({"train.py": "import churn", "src/churn/net.py": "", "churn/weights.bin": ""}, False),
        ({"train.py": "import churn.net", "src/churn/net.py": "", "churn/weights.bin": ""}, True),
        ({"train.py": "import src.churn", "src/churn.py": ""}, False),
        ({"train.py": "import churn", "src/churn.py": "", "churn.py": ""}, False),
        ({"train.py": "import churn", "src/other.py": ""}, False),
    ],
)
def test_folder_src_is_in_the_path_if_the_code_needs_it(
    tmp_path: Path, files: dict[str, str | bytes], needs: bool
) -> None:
    fill(tmp_path, {**files, "x.py": "import train"})
    env = load_recipe(".", cwd=tmp_path, entry="train.py").env
    assert env == ({"PYTHONPATH": "src"} if needs else {})


def test_path_that_a_module_in_src_reads_is_found(tmp_path: Path) -> None:
    fill(tmp_path, {"train.py": "import churn.data", "src/churn/data.py": "open('big.csv')"})
    fill(tmp_path, {"big.csv": ""})
    (found,) = find_unsent(SentCode(tmp_path, ("train.py",), alone="train.py"), RUN, (), {})
    assert (found.where, found.path) == ("src/churn/data.py:1", "big.csv")


def test_folder_without_code_provides_no_module(tmp_path: Path) -> None:
    """Such as `wandb`, in which the package of this name writes its logs."""
    fill(tmp_path, {"train.py": "import wandb, tools.x, kept", "wandb/run-1/log.txt": ""})
    fill(tmp_path, {"lib/tools/x.py": "", "deep/kept/more/y.py": ""})
    with pytest.raises(RunnerError, match=r"train\.py imports wandb, which nothing installs"):
        package_warnings(load_recipe(".", cwd=tmp_path))
    fill(tmp_path, {"wandb/offline.py": ""})
    assert package_warnings(load_recipe(".", cwd=tmp_path)) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import parts.net", "parts/"),
        ("from parts import net", "parts/"),
        ("def f():\n  import parts.net", "parts/"),
        ("import churn", "src/"),
        ("import parts", None),
        ("try:\n  import parts.net\nexcept ImportError: pass", None),
        ("with suppress(ImportError):\n  import parts.net", None),
        ("if TYPE_CHECKING:\n  import parts.net", None),
    ],
)
def test_script_that_is_sent_alone_lacks_its_modules(
    tmp_path: Path, text: str, said: str | None
) -> None:
    fill(tmp_path, {"train.py": text, "parts/net.py": "", "src/churn/__init__.py": ""})
    if said is None:
        assert load_recipe("./train.py", cwd=tmp_path).command == RUN
        return
    with pytest.raises(RunnerError, match=f"uses {said}, which would not be uploaded"):
        load_recipe("./train.py", cwd=tmp_path)


def test_generated_list_of_imports_is_read_within_limits(tmp_path: Path) -> None:
    fill(tmp_path, {"train.py": "print 1\nimport " + "a, " * 300_000 + "b"})
    assert [each.module for each in read_source(tmp_path / "train.py").imports] == ["a"]
    many = "".join(f"import m{number}\n" for number in range(10_000))
    fill(tmp_path, {"train.py": many, "m0.py": ""})
    assert names(LocalCode.of_command(tmp_path, RUN)) == ["train.py", "m0.py"]
    (warning,) = package_warnings(load_recipe(".", cwd=tmp_path, entry="train.py"))
    assert warning.startswith("train.py imports m1, m2, m3, m4, m5 and 4994 more, but no file")
    assert len(warning) < 1_000, "it names some of the packages"


SUM = " + ".join(["'a'"] * 1500)
CHAIN = "x" + ".a()" * 400  # `ast` cannot print it again


@pytest.mark.parametrize(
    "text", [f"X = {SUM}", f"{CHAIN}", f"y = 'install'\n{CHAIN}", f"if {SUM}:\n    import other"]
)
def test_deeply_nested_expression_is_no_failure(tmp_path: Path, text: str) -> None:
    fill(tmp_path, {"train.py": f"{text}\nopen('data.csv')\n", "data.csv": "1"})
    recipe = load_recipe(".", cwd=tmp_path)
    assert recipe.command == RUN
    assert package_warnings(recipe) == ()
    excluded = (ExcludedPath("data.csv", "*.csv"),)
    (unsent,) = find_unsent(SentCode(tmp_path, ["train.py"], excluded), RUN, (), {})
    assert unsent.path == "data.csv"
    with pytest.raises(RunnerError, match=r"uses data\.csv, which would not be uploaded"):
        load_recipe("./train.py", cwd=tmp_path)


@pytest.mark.parametrize(
    ("path", "command", "expected"),
    [
        ("train.py", ["python", "train.py"], "train.py"),
        ("run.sh", ["bash", "run.sh", "train.py"], "run.sh"),
        ("a/b.py", ["python", "-m", "a.b"], "a/b.py"),
        ("src/a/__main__.py", ["python", "-m", "a"], "src/a/__main__.py"),
        ("src/a/b.py", ["python", "-m", "a.b", "--x"], "src/a/b.py"),
        ("a.py", ["python", "-m", "b"], None),
        ("a.py", ["python", "../a.py"], None),
    ],
)
def test_script_of_a_command_is_found_in_the_folder_and_its_src(
    tmp_path: Path, path: str, command: list[str], expected: str | None
) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    assert find_script(tmp_path, command) == expected
