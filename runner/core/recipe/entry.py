"""What a folder or a file runs: Python scripts, modules of packages, shell scripts, and programs
with a `#!` line; and which file lists their packages.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, cast

from runner.core.recipe.notebook import SUFFIX, notebook_command, parsed_code
from runner.core.recipe.recipe import RECIPE_FILE, Recipe
from runner.core.yaml_files import near
from runner.protocol.errors import RunnerError

_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_PROGRAMS = ("train", "main", "__main__")  # names of modules that probably are programs
_LINE_BYTES = 256  # of a `#!` line, as in Linux
# Inline metadata of a script: packaging.python.org/specifications/inline-script-metadata.
_METADATA = re.compile(rb"(?m)^# /// script\s*$(?s:.*?)^# ///\s*$")
_WITH_COMMAND = f"write a {RECIPE_FILE} with its command"
_UNREAD = ("environment.yml", "environment.yaml", "conda.yml", "conda.yaml", "Pipfile", "setup.py")


def folder_command(folder: Path, entry: str | None = None) -> tuple[str, ...]:
    """Return the command of a folder: of its entry, or of the script that its name tells.

    Raises:
        RunnerError: there is no such entry, or nothing tells what to run.
    """
    if entry is None:
        return _command_of(folder, _only_script(folder)) or ()
    path = PurePosixPath(entry)
    fix = _WITH_COMMAND
    if path.is_absolute() or ".." in path.parts:
        why = "an entry is a file in the folder, or a module of a package in it"
    elif (folder / path).is_file():
        if command := _command_of(folder, str(path)):
            return command
        why = "it is neither a Python nor a shell script, and has no line with #!"
    elif has_entry(folder, entry):
        return "python", "-m", entry
    else:
        known = [each.name for each in folder.iterdir() if each.suffix in (".py", ".sh", SUFFIX)]
        why, fix = f"no such file in {folder}", near(entry, known) or "name one of its scripts"
    raise RunnerError("R-RECIPE-ENTRY", f"entry {entry!r} is refused", why=why, fix=fix)


def has_entry(folder: Path, name: str) -> bool:
    """Return True if the folder has this file, or this module of a package."""
    return (folder / name).is_file() or _is_module(folder, name)


def script_command(path: Path) -> tuple[str, ...]:
    """Return the command of a script that is sent without its folder.

    Raises:
        RunnerError: it is no script, or `SENT_ALONE`: it needs files of its folder.
    """
    command = _command_of(path.parent, path.name)
    if command is None:
        raise RunnerError(
            "R-RECIPE-PATH",
            f"{path} is not a script",
            why=f"a recipe is a folder, a {RECIPE_FILE}, a .py, an .ipynb, or a file with a #!",
            fix=f"run `runner submit {shlex.quote(str(path))}` if it has tasks"
            if path.suffix in (".yaml", ".yml")
            else f"{_WITH_COMMAND}, and train the folder",
        )
    root, entry = entry_in_folder(path)
    beside = [*imported_beside(path), *_read_beside(path)]
    if root != path.parent:
        beside.insert(0, f"the package {entry.partition('/')[0]}")
    if beside:
        raise RunnerError(
            "R-RECIPE-ALONE",  # SENT_ALONE, literally for the tests of what is printed
            f"{path.name} uses {', '.join(beside)}, which would be left behind",
            why="a script is sent alone, with the requirements.txt beside it",
            fix=f"runner train {shlex.quote(str(root))} --entry {shlex.quote(entry)}",
        )
    return command


def entry_in_folder(script: Path) -> tuple[Path, str]:
    """Return the folder that a script needs and its path there.

    It is the folder of the script, or, if that imports from its own package, the folder of the
    outermost package.
    """
    root = script.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    if root == script.parent or not _imports_package(script, script.relative_to(root).parts[0]):
        root = script.parent
    return root, script.relative_to(root).as_posix()


def _command_of(folder: Path, name: str) -> tuple[str, ...] | None:
    """Return the command of a script in a folder, or None if it is none."""
    path = folder / name
    if path.suffix == SUFFIX:
        return notebook_command(name)
    if path.suffix == ".py":
        root, entry = entry_in_folder(path)
        module = entry.removesuffix(".py").replace("/", ".")
        if root == folder and _is_module(root, module) and "." in module:
            return "python", "-m", module
        return "python", name
    words = _interpreter(path)
    if words is None:
        return ("bash", name) if path.suffix in (".sh", ".bash") else None
    program = PurePosixPath(words[0]).name
    if re.fullmatch(r"python[\d.]*", program):
        return "python", *words[1:], name
    # A shell is found on PATH; the file may lack the permission to be executed.
    return program if program in _SHELLS else words[0], *words[1:], name


def _interpreter(path: Path) -> list[str] | None:
    """Return the words after `#!`, without `env`; None if the file does not begin with it."""
    try:
        with path.open("rb") as file:
            line = file.readline(_LINE_BYTES)
        words = shlex.split(line[2:].decode()) if line.startswith(b"#!") else []
    except (OSError, ValueError):
        return None
    if words and PurePosixPath(words[0]).name == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return words or None


def _is_module(folder: Path, name: str) -> bool:
    """Return True for a module of a package in the folder that `python -m` can run."""
    if not _MODULE.fullmatch(name):
        return False
    path = folder.joinpath(*name.split("."))
    return ("." in name and path.with_suffix(".py").is_file()) or (path / "__main__.py").is_file()


def _imports_package(script: Path, package: str) -> bool:
    """Return True if a script imports the package that it is in, or relative to itself."""
    for node in ast.walk(_parsed(script)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{package}." if node.level else node.module or ""]
        else:
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if any(name.partition(".")[0] == package for name in names):
            return True
    return False


def imported_beside(script: Path) -> list[str]:
    """Return the files and packages beside a script that it imports, outside of any `try`."""
    names: set[str] = set()
    pending: list[ast.AST] = [_parsed(script)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
        elif not isinstance(node, ast.Try):
            pending.extend(ast.iter_child_nodes(node))
    found = [
        f"{name}.py" if (script.parent / f"{name}.py").is_file() else f"{name}/"
        for name in sorted(names)
        if (script.parent / f"{name}.py").is_file()
        or (script.parent / name / "__init__.py").is_file()
    ]
    return [name for name in found if name != script.name]


def _parsed(script: Path) -> ast.Module:
    if script.suffix == SUFFIX:
        return parsed_code(script)
    try:
        return ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])  # not Python, or Python will say more about it


def _read_beside(script: Path) -> list[str]:
    """Return the files beside a script that it reads by name, unless it checks or tries first."""
    if script.suffix not in (".py", SUFFIX) and not _parsed(script).body:
        return _named_beside(script)
    names: set[str] = set()
    pending: list[ast.AST] = [_parsed(script)]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.If, ast.IfExp, ast.Try)):
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            is_open = called == "open" and not {"w", "a", "x"} & set(str([*texts, "", ""][1]))
            if is_open or re.match("(im|mem)?(load|read)|genfromtxt", called):
                names.update(text for text in texts if isinstance(text, str))
    folder = script.parent
    return sorted(name for name in names if ".." not in name and _is_file_in(folder, name))


def _named_beside(script: Path) -> list[str]:
    """Return the files beside a script of a shell whose names are words of it."""
    words: set[str] = set()
    for line in script.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            words.update(shlex.split(line, comments=True))
    names = {str(PurePosixPath(word)) for word in words if word and "\0" not in word}
    own = {script.name, "requirements.txt"}
    return sorted(name for name in names - own if _is_file_in(script.parent, name))


def _is_file_in(folder: Path, name: str) -> bool:
    try:
        return not Path(name).is_absolute() and (folder / name).is_file()
    except (OSError, ValueError):
        return False


def _only_script(folder: Path) -> str:
    for name in ("train.py", "main.py"):
        if (folder / name).is_file():
            return name
    scripts = sorted(path.name for path in folder.glob("*.py"))
    notebooks = sorted(path.name for path in folder.glob(f"*{SUFFIX}"))
    if len(scripts) == 1:
        return scripts[0]
    if len(notebooks) == 1 and not scripts:
        return notebooks[0]
    imported = {name for script in scripts for name in imported_beside(folder / script)}
    likely = [name for name in scripts if name not in imported] or scripts
    likely += [*_package_programs(folder), *sorted(path.name for path in folder.glob("*.sh"))]
    likely += notebooks
    found = f"it has {', '.join(scripts[:5])}" if scripts else "it has no .py file of its own"
    why = f"no command in a {RECIPE_FILE}, no train.py, no main.py; {found}"
    raise RunnerError(
        "R-RECIPE-COMMAND",
        f"cannot tell what to run in {folder}",
        why=why,
        fix=f"runner train {shlex.quote(str(folder))} --entry {shlex.quote(likely[0])}"
        if likely
        else _WITH_COMMAND,
    )


def _package_programs(folder: Path) -> Iterator[str]:
    """Yield the modules of packages in a folder that probably are programs."""
    for name in _PROGRAMS:
        for path in sorted(folder.glob(f"*/{name}.py")):
            if (path.parent / "__init__.py").is_file():
                module = f"{path.parent.name}.{name}"
                yield path.parent.name if name == "__main__" else module


def packages_file(
    folder: Path, command: tuple[str, ...], *, is_in_image: bool = False
) -> str | None:
    """Return the file of a folder that lists the packages of a command, None if there is none.

    It is `requirements.txt`, the script with inline metadata, or a `pyproject.toml` whose
    dependencies can be read without a build. An image has its packages, so of the others none
    counts for it.
    """
    if (folder / "requirements.txt").is_file():
        return "requirements.txt"
    if is_in_image:
        return None
    script = command[-1] if command else ""
    if script.endswith(".py") and _is_file_in(folder, script):
        with suppress(OSError):
            if _METADATA.search((folder / script).read_bytes()):
                return script
    return "pyproject.toml" if _project(folder).get("dependencies") else None


def _project(folder: Path) -> dict[str, Any]:
    """Return `[project]` of pyproject.toml; empty if there is none that can be read."""
    try:
        found = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    project = found.get("project")
    return cast("dict[str, Any]", project) if isinstance(project, dict) else {}


def unread_packages(recipe: Recipe) -> str | None:
    """Return a warning if only a file that is not read lists the packages of a recipe."""
    if recipe.requirements_file or recipe.image or recipe.source == "builtin":
        return None
    names = [name for name in _UNREAD if (recipe.folder / name).is_file()]
    with suppress(OSError):
        text = (recipe.folder / "pyproject.toml").read_text(encoding="utf-8", errors="replace")
        if re.search(r"(?m)^\[tool\.poetry\.dependencies\]|^dynamic\s*=.*dependencies", text):
            names.append("pyproject.toml")
    if not names:
        return None
    return (
        f"no packages are installed: {names[0]} is not read. List them in a requirements.txt "
        "beside it"
    )
