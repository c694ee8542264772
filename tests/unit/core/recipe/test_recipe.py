from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runner.core.recipe.builtin import BUILTIN_FOLDER
from runner.core.recipe.file import list_recipes, load_recipe
from runner.core.recipe.options import RunOptions, with_options
from runner.core.recipe.recipe import Recipe
from runner.protocol.commands import to_text
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import load_text
from tools.recipe_schema import SCHEMA_FILE, submit_schema, train_schema

Load = Callable[[str], Recipe]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return partial(load_text, tmp_path / "demo")


def test_keys_become_typed_fields(load: Load) -> None:
    recipe = load(
        "name: digits\n"
        "command: python train.py --fast\n"
        'python: "3.11"\n'
        "params:\n"
        "  epochs: {type: int, default: 5, min: 1, max: 9, help: passes}\n"
        "outputs: [model.keras, 'plots/*.png']\n"
        "metrics: {primary: acc, goal: min, patterns: {acc: 'acc=([0-9.]+)'}}\n"
        "env: {A: b}\n"
        "timeout: 1h30m\n"
        "retries: 2\n"
        "prepare: |\n  make data\n  ls\n"
    )
    assert recipe.prepare == "make data\nls\n"
    assert recipe.name == "digits"
    assert recipe.source == "folder"
    assert recipe.command == ("python", "train.py", "--fast")
    assert recipe.timeout_s == 5400
    assert recipe.outputs == ("model.keras", "plots/*.png")
    assert (recipe.primary_metric, recipe.goal) == ("acc", "min")
    assert recipe.metric_patterns == {"acc": "acc=([0-9.]+)"}
    (epochs,) = recipe.params
    assert (epochs.name, epochs.type, epochs.default, epochs.min, epochs.max) == (
        "epochs", "int", 5, 1.0, 9.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("1e-3", "float", 0.001),
        ("5", "int", 5),
        ("0.5", "float", 0.5),
        ("true", "bool", True),
        ("adam", "str", "adam"),
        ("yes", "str", "yes"),  # YAML 1.2: not a boolean
    ],
)
def test_short_parameter_has_the_type_of_its_default(
    load: Load, text: str, type_: str, value: object
) -> None:
    (param,) = load(f"params:\n  x: {text}\n").params
    assert (param.type, param.default) == (type_, value)
    assert isinstance(param.default, type(value))
    assert to_text(param.default) == text  # what the script gets


def test_option_adds_packages_to_those_of_the_recipe(load: Load) -> None:
    written = load("packages: [numpy, ' torch>=2,<3 ', 'tiny @ git+https://example.com/x@v1']\n")
    assert written.packages == ("numpy", "torch>=2,<3", "tiny @ git+https://example.com/x@v1")
    changed = with_options(written, RunOptions(packages=("scikit-learn[alldeps]~=1.5",)))
    assert changed.packages == (*written.packages, "scikit-learn[alldeps]~=1.5")
    for refused in ("numpy,six", "--pre", "../x", "", "a b", "nump\ny", "x=1"):
        with pytest.raises(RunnerError, match="--package"):
            with_options(written, RunOptions(packages=(refused,)))


def test_whole_number_default_of_a_float_is_a_float(load: Load) -> None:
    (param,) = load("params:\n  x: {type: float, default: 1, choices: [1, 2]}\n").params
    assert isinstance(param.default, float)
    assert param.choices == (1.0, 2.0)


@pytest.mark.parametrize(
    ("text", "line", "field", "said"),
    [
        ("parms: {}\n", 1, "parms", "'params'"),
        ("name: a\nparams:\n  lr:\n    default: 1\n    maxx: 3\n", 5, "params.lr.maxx", "'max'"),
        ("metrics:\n  gaol: min\n", 2, "metrics.gaol", "'goal'"),
        ("params:\n  e: {type: integer, default: 3}\n", 2, "params.e.type", "'float'"),
        ("params:\n  e: {help: no type}\n", 2, "params.e.type", "missing"),
        ("params:\n  e: {type: int, default: 2.5}\n", 2, "params.e", "not of type int"),
        ("params:\n  e: {type: int, default: 3, max: 2}\n", 2, "params.e", "above max 2"),
        (
            "params:\n  e: {type: int, default: 4294967296, max: 4294967295}\n",
            *(2, "params.e", "4294967296 is above max 4294967295"),
        ),
        ("params:\n  e: {type: int, min: 3, max: 2}\n", 2, "params.e", "min 3 is above max 2"),
        ("params:\n  e: {type: str, default: c, choices: [a, b]}\n", 2, "params.e", "choices"),
        ("params:\n  e: .inf\n", 2, "params.e", "finite"),
        ("python: 3.10\n", 1, "python", "quote"),
        ("retries: '3'\n", 1, "retries", "whole number"),
        (
            "env: {RUNNER_RUN_ID: x}\n",
            1,
            "env.RUNNER_RUN_ID",
            "RUNNER_RUN_ID is reserved for runner",
        ),
        ("env:\n  az_batch_x: x\n", 2, "env.az_batch_x", "az_batch_x is reserved for Batch"),
        ("env: {A: 3}\n", 1, "env.A", "text"),
        ('env: {A: "a\\0b"}\n', 1, "env.A", "the value has a NUL character"),
        ("command: python a.py | tee x\n", 1, "command", "shell"),
        ("command: []\n", 1, "command", "it is empty"),
        ("timeout: soon\n", 1, "timeout", "90m"),
        ("timeout: 0\n", 1, "timeout", "less than 1s"),
        ("name: has space\n", 1, "name", "is not a name"),
        ("metrics:\n  patterns:\n    a: '(('\n", 3, "metrics.patterns.a", "regular expression"),
        ("metrics:\n  patterns:\n    a: 'x'\n", 3, "metrics.patterns.a", "0 groups"),
        ("metrics:\n  patterns:\n    a: '(x)(y)'\n", 3, "metrics.patterns.a", "2 groups"),
        ("outputs: [ok, /etc/passwd]\n", 1, "outputs.1", "leaves the folder"),
        ("outputs: ['../x']\n", 1, "outputs.0", "leaves the folder"),
        ("requirements: ../r.txt\n", 1, "requirements", "leaves the folder"),
        ("requirements: [six]\n", 1, "requirements", "use the key `packages`"),
        ("packages: ['-r x.txt']\n", 1, "packages.0", "is not the name of a package"),
        ("packages: [numpy, ./a.whl]\n", 1, "packages.1", "paths and options go into"),
        ("packages: ['numpy, six']\n", 1, "packages.0", "give each of them by itself"),
        ("packages: numpy\n", 1, "packages", "list"),
        ("\n\nrequirements: r.txt\n", 3, "requirements", "no file"),
        ("dataset: ../mnist\n", 1, "dataset", "lower-case letters"),
    ],
)
def test_unknown_key_names_file_line_field_and_similar_keys(
    load: Load, tmp_path: Path, text: str, line: int, field: str, said: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        load(text)
    error = caught.value
    assert error.code == "R-RECIPE-FIELD"
    assert error.what.startswith(f"{tmp_path / 'demo' / 'train.yaml'}:{line}: {field}: ")
    assert said in str(error)
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: [\n", "train.yaml:2"),
        ("name: a\nname: b\n", "train.yaml:2"),
        ("- a\n", "train.yaml"),
        ("a: !!python/object:os.system x\n", "train.yaml:1"),
    ],
)
def test_file_other_than_a_yaml_mapping_is_refused(load: Load, text: str, where: str) -> None:
    with pytest.raises(RunnerError) as caught:
        load(text)
    assert caught.value.code in {"R-RECIPE-SYNTAX", "R-RECIPE-FIELD"}
    assert where in caught.value.what


def test_pattern_can_have_named_groups(load: Load) -> None:
    pattern = "epoch (?P<step>[0-9]+) acc (?P<value>[0-9.]+)"
    loaded = load(f"metrics:\n  patterns:\n    acc: '{pattern}'\n")
    assert loaded.metric_patterns == {"acc": pattern}


def test_missing_script_is_refused_before_submission(load: Load, tmp_path: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        load("name: demo\ncommand: python trian.py\n")
    assert caught.value.what.endswith(
        f"train.yaml:2: command: no file 'trian.py' in {tmp_path / 'demo'}"
    )
    assert caught.value.fix == "did you mean 'train.py'?"
    for other in ("python /opt/x.py", "python -m x", "torchrun x.py", "python3 train.py"):
        load(f"command: {other}\n")


def test_several_problems_are_counted_and_the_first_is_shown(load: Load) -> None:
    with pytest.raises(RunnerError) as caught:
        load("retries: x\nzz: 1\nyy: 2\n")
    assert ":1: retries" in caught.value.what
    assert "the file has 2 more problems" in caught.value.why


def test_requirements_link_out_of_the_folder_is_refused(load: Load, tmp_path: Path) -> None:
    load("")
    (tmp_path / "outside.txt").write_text("keras\n")
    (tmp_path / "demo" / "r.txt").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(RunnerError, match="leaves the recipe folder"):
        load("requirements: r.txt\n")


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["train.py", "main.py", "x.py"], ("python", "train.py")),
        (["main.py", "x.py"], ("python", "main.py")),
        (["only.py"], ("python", "only.py")),
    ],
)
def test_folder_without_a_recipe_file_runs_its_script(
    tmp_path: Path, files: list[str], command: tuple[str, ...]
) -> None:
    for name in [*files, "requirements.txt"]:
        (tmp_path / name).touch()
    recipe = load_recipe(str(tmp_path), cwd=tmp_path)
    assert recipe.command == command
    assert recipe.requirements_file == "requirements.txt"
    assert recipe.files is None


@pytest.mark.parametrize("files", [[], ["a.py", "b.py"]])
def test_folder_without_a_unique_script_is_refused(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(RunnerError) as caught:
        load_recipe(".", cwd=tmp_path)
    assert caught.value.code == "R-RECIPE-COMMAND"


def test_single_script_is_packed_without_other_files(tmp_path: Path) -> None:
    (tmp_path / "my script.py").touch()
    (tmp_path / "big.bin").touch()
    recipe = load_recipe("my script.py", cwd=tmp_path)
    assert (recipe.name, recipe.source) == ("my-script", "script")
    assert recipe.files == ("my script.py",)
    assert recipe.command == ("python", "my script.py")


def test_unknown_recipe_names_similar_and_all_recipes(tmp_path: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        load_recipe("mnits", cwd=tmp_path)
    assert caught.value.code == "R-RECIPE-UNKNOWN"
    assert "'mnist'" in caught.value.fix
    assert "mnist" in caught.value.why


TOO_LONG = [
    "x" * 5000,
    "./" + "x" * 300,
    "x/" * 3000,
    "a" * 300 + ":small",
    "\ud800",
    "./\udfff.py",
]


@pytest.mark.parametrize("ref", ["", "../nowhere", "a\0b", "~nobody-here/x", "x.py", *TOO_LONG])
def test_reference_to_a_missing_recipe_is_an_error(tmp_path: Path, ref: str) -> None:
    with pytest.raises(RunnerError):
        load_recipe(ref, cwd=tmp_path)


def test_built_in_name_cannot_leave_the_recipes_folder(tmp_path: Path) -> None:
    with pytest.raises(RunnerError):
        load_recipe("mnist/../../cli", cwd=tmp_path)


def test_file_other_than_a_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2\n")
    with pytest.raises(RunnerError, match="not a script"):
        load_recipe("./data.csv", cwd=tmp_path)
    with pytest.raises(RunnerError, match=r"invalid entry 'data\.csv'"):
        load_recipe(".", cwd=tmp_path, entry="data.csv")


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("run.sh", "echo 1\n", ("bash", "run.sh")),
        ("run.sh", "#!/bin/sh -e\n", ("sh", "-e", "run.sh")),
        ("go", "#!/usr/bin/env bash\n", ("bash", "go")),
        ("-x.py", "print(1)\n", ("python", "./-x.py")),
        ("-x.sh", "echo 1\n", ("bash", "./-x.sh")),
        ("train me", "#!/usr/bin/env python3\r\nprint(1)\r\n", ("python", "train me")),
        ("go", "#!/usr/bin/env -S python3.9 -u\n", ("python", "-u", "go")),
        ("fit.R", "#!/usr/bin/Rscript\n", ("/usr/bin/Rscript", "fit.R")),
        ("train.py", "#!/usr/bin/python2\n", ("python", "train.py")),
    ],
)
def test_script_starts_with_its_interpreter(
    tmp_path: Path, name: str, text: str, command: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    alone = load_recipe(f"./{name}", cwd=tmp_path)
    assert (alone.command, alone.files, alone.source) == (command, (name,), "script")
    assert load_recipe(".", cwd=tmp_path, entry=name).command == command
    (tmp_path / "train.yaml").write_text(f"entry: {name}\n")
    assert load_recipe(".", cwd=tmp_path).command == command


def test_shell_script_that_uses_sibling_files_is_refused_alone(tmp_path: Path) -> None:
    (tmp_path / "fit.py").touch()
    (tmp_path / "run.sh").write_text("# see notes.txt\npip freeze\npython ./fit.py --lr 1\n")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunnerError, match=r"run\.sh uses fit\.py, which") as caught:
        load_recipe("./run.sh", cwd=tmp_path)
    assert caught.value.fix == f"runner train {tmp_path} --entry run.sh"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with a package whose modules import one another."""
    (tmp_path / "pkg").mkdir()
    for name, text in {
        "__init__": "", "__main__": "", "util": "", "alone": "import os\n",
        "train": "from pkg.util import f\n", "relative": "from . import util\n",
    }.items():  # fmt: skip
        (tmp_path / f"pkg/{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("entry", "command"),
    [
        ("pkg.train", ("python", "-m", "pkg.train")),
        ("pkg/train.py", ("python", "-m", "pkg.train")),
        ("pkg/relative.py", ("python", "-m", "pkg.relative")),
        ("pkg", ("python", "-m", "pkg")),
        ("pkg/alone.py", ("python", "pkg/alone.py")),
    ],
)
def test_module_of_a_package_is_an_entry(
    package: Path, entry: str, command: tuple[str, ...]
) -> None:
    assert load_recipe(".", cwd=package, entry=entry).command == command


@pytest.mark.parametrize("name", ["train", "relative"])
def test_script_of_a_package_is_refused_alone(package: Path, name: str) -> None:
    with pytest.raises(RunnerError, match="uses the package pkg") as caught:
        load_recipe(f"pkg/{name}.py", cwd=package)
    assert caught.value.fix == f"runner train {package} --entry pkg/{name}.py"


@pytest.mark.parametrize("entry", ["pkg.nothing", "../x.py", "/x.py", "pkg..train", "no.py"])
def test_missing_entry_is_refused(package: Path, entry: str) -> None:
    with pytest.raises(RunnerError) as caught:
        load_recipe(".", cwd=package, entry=entry)
    assert caught.value.code == "R-RECIPE-ENTRY"


PROJECT = '[project]\nname = "a"\ndependencies = ["numpy>=1"]\n'
INLINE = '# /// script\n# dependencies = ["numpy"]\n# ///\nprint(1)\n'


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"requirements.txt": "", "pyproject.toml": PROJECT}, "requirements.txt"),
        ({"pyproject.toml": PROJECT, "train.py": INLINE}, "train.py"),
        ({"pyproject.toml": PROJECT}, "pyproject.toml"),
        ({"pyproject.toml": "[tool.ruff]\n"}, None),
        ({"requirements.txt": "", "pyproject.toml": "[project\n"}, "requirements.txt"),
        ({"pyproject.toml": '[project]\nname = "a"\ndependencies = []\n'}, None),
    ],
)
def test_requirements_file_is_detected(
    tmp_path: Path, files: dict[str, str], found: str | None
) -> None:
    for name, text in {"train.py": "", **files}.items():
        (tmp_path / name).write_text(text)
    assert load_recipe(".", cwd=tmp_path).requirements_file == found
    alone = load_recipe("./train.py", cwd=tmp_path)
    assert alone.requirements_file == found
    assert set(alone.files or ()) == {"train.py", *([found] if found else [])}


def test_only_requirements_of_a_container_are_installed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    recipe = load_text(tmp_path, "command: python -V\nimage: a/b\n")
    assert recipe.requirements_file is None
    assert recipe.package_source.warnings == ()


def test_every_built_in_recipe_loads_and_the_template_is_not_listed() -> None:
    names = [recipe.name for recipe in list_recipes()]
    assert "mnist" in names
    assert "template" not in names
    assert all((BUILTIN_FOLDER / name).is_dir() for name in names)


@pytest.mark.feature(26)
def test_generated_schema_is_current() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == train_schema(), (
        "run: python -m tools.recipe_schema"
    )


@pytest.mark.parametrize("text", [train_schema(), submit_schema()], ids=["train", "submit"])
def test_schema_rejects_names_that_the_loader_refuses(text: str) -> None:
    maps: list[dict[str, Any]] = []

    def collect(node: dict[str, Any]) -> dict[str, Any]:
        if "patternProperties" in node:
            maps.append(node)
        return node

    json.loads(text, object_hook=collect)
    assert len(maps) >= 4
    assert all(each["additionalProperties"] is False for each in maps)


def test_schema_accepts_the_short_forms() -> None:
    schema = json.loads(train_schema())
    assert schema["additionalProperties"] is False
    params = json.dumps(schema["properties"]["params"])
    assert "#/$defs/ParamFile" in params
    assert '"integer"' in params
    assert '"array"' in json.dumps(schema["properties"]["command"])
    assert '"string"' in json.dumps(schema["properties"]["command"])


def folder_with(tmp_path: Path, **scripts: str) -> Path:
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    return tmp_path


def test_folder_of_a_package_is_refused_with_the_command_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/train.py").touch()
    with pytest.raises(RunnerError) as caught:
        load_recipe(".", cwd=tmp_path)
    assert caught.value.fix == f"runner train {tmp_path} --entry package.train"


def test_entry_chooses_the_script_of_a_folder(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, run="", helpers="")
    recipe = load_recipe(str(folder), cwd=tmp_path, entry="run.py")
    assert (recipe.command, recipe.files, recipe.source) == (("python", "run.py"), None, "folder")


def test_entry_of_train_yaml_is_overridden_by_the_option(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, run="", other="")
    (folder / "train.yaml").write_text("entry: run.py\nparams: {epochs: 5}\n")
    assert load_recipe(str(folder), cwd=tmp_path).command == ("python", "run.py")
    chosen = load_recipe(str(folder), cwd=tmp_path, entry="other.py")
    assert (chosen.command, len(chosen.params)) == (("python", "other.py"), 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("entry: rum.py\n", "did you mean 'run.py'?"),
        ("entry: run.py\ncommand: python run.py\n", "`entry` and `command` exclude each other"),
    ],
)
def test_invalid_entry_in_train_yaml_is_refused_with_its_line(
    tmp_path: Path, text: str, problem: str
) -> None:
    (folder_with(tmp_path, run="") / "train.yaml").write_text(text)
    with pytest.raises(RunnerError) as caught:
        load_recipe(str(tmp_path), cwd=tmp_path)
    assert problem in str(caught.value) + caught.value.fix
    assert ":1" in str(caught.value)


@pytest.mark.parametrize("entry", ["rum.py", "../run.py", "/run.py", "run.sh"])
def test_invalid_entry_option_is_refused(tmp_path: Path, entry: str) -> None:
    with pytest.raises(RunnerError) as caught:
        load_recipe(str(folder_with(tmp_path, run="")), cwd=tmp_path, entry=entry)
    assert caught.value.code == "R-RECIPE-ENTRY"


@pytest.mark.parametrize(
    "text", ["import helpers\n", "from helpers.part import x\n", "def f():\n    import helpers\n"]
)
def test_script_that_imports_a_sibling_module_is_refused_alone(tmp_path: Path, text: str) -> None:
    folder = folder_with(tmp_path, run=text, helpers="")
    with pytest.raises(RunnerError) as caught:
        load_recipe(str(folder / "run.py"), cwd=tmp_path)
    assert caught.value.what == "run.py uses helpers.py, which would not be uploaded"
    assert caught.value.fix == f"runner train {folder} --entry run.py"


@pytest.mark.parametrize(
    "line", ["open('a.csv')", "load(abspath('a.csv'))", "pd.read_csv('a.csv', sep=',')"]
)
def test_script_that_reads_a_sibling_file_is_refused_alone(tmp_path: Path, line: str) -> None:
    folder = folder_with(tmp_path, run=line)
    (folder / "a.csv").write_text("1")
    with pytest.raises(RunnerError) as caught:
        load_recipe(str(folder / "run.py"), cwd=tmp_path)
    assert caught.value.what == "run.py uses a.csv, which would not be uploaded"


@pytest.mark.parametrize(
    "line",
    [
        "open('a.csv', 'w')",
        "save('a.csv')",
        "if exists('a.csv'): load('a.csv')",
        "try:\n    load('a.csv')\nexcept OSError: pass",
        "load('b.csv', '/a.csv', '../a.csv', 'a\\0', ',', '')",
    ],
)
def test_sibling_file_that_is_only_written_or_checked_is_not_needed(
    tmp_path: Path, line: str
) -> None:
    folder = folder_with(tmp_path, run=line)
    (folder / "a.csv").write_text("1")
    assert load_recipe(str(folder / "run.py"), cwd=tmp_path).files == ("run.py",)


@pytest.mark.parametrize(
    "text",
    [
        "import json, run\n",
        "try:\n    import helpers\nexcept ImportError:\n    helpers = None\n",
        "this is no Python\n",
    ],
)
def test_script_without_sibling_files_is_sent_alone(tmp_path: Path, text: str) -> None:
    folder = folder_with(tmp_path, run=text, helpers="")
    assert load_recipe(str(folder / "run.py"), cwd=tmp_path).files == ("run.py",)
