"""Find the command of a folder or file.

A command runs a Python or shell script, a notebook, a module of a package, or a program with a `#!`
line.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import decode_source
from pathlib import Path, PurePosixPath
from typing import Any, cast

from runner.core.packages.script_file import (
    SOURCES,
    find_module,
    find_script,
    is_file_in,
    parse_python,
)
from runner.core.recipe.builtin import RECIPE_FILE
from runner.core.recipe.local_code import (
    LocalCode,
    called_name,
    read_source,
    shell_words,
)
from runner.core.recipe.notebook import SUFFIX
from runner.core.yaml_files import did_you_mean
from runner.protocol.commands import ParamsAs, find_notebook, notebook_command
from runner.protocol.errors import RunnerError

_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_USUAL = ("train.py", "main.py")
_ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*\s*:\s*[A-Za-z_][\w.]*\s*(?:\[.*\])?")
_NOTHING, _CALLS, _PROGRAM = range(3)  # what a file does when it is run
# Calls that only prepare a module.
_SETUP_CALLS = frozenset(
    {
        *("basicConfig", "setLevel", "filterwarnings", "simplefilter", "seed", "manual_seed"),
        *("set_seed", "insert", "append", "use", "load_dotenv", "setdefault", "update"),
        *("install", "set_start_method", "register", "set_option", "set_printoptions", "add"),
    }
)
# Files of other tools, which do something when they are run, but do not train.
_TOOL_FILES = re.compile(r"(setup|conftest|noxfile|fabfile|versioneer|test_.*|.*_test|_.*)\.py")
_PROGRAM_NAME = re.compile(r"(?<![a-z])(train|main|run)(?![a-z])")  # in the name of a program
_PROGRAM_MODULES = ("train", "main", "__main__")  # usual names of modules that are programs
# Programs that run other files, by suffix or name.
_OTHER_PROGRAMS = {
    **{".R": "Rscript", ".r": "Rscript", ".jl": "julia", ".js": "node", ".m": "octave"},
    **{".pl": "perl", ".rb": "ruby", ".lua": "lua", ".pyw": "python"},
}
_OTHER_CODE = re.compile(r"\..*|__.*|venv|node_modules|build|dist|test.*|docs")
_MOST_ENTRIES = 2_000  # of the folder, that are searched for programs
_MOST_LEVELS = 3
_MOST_CANDIDATES = 100  # files in folders below, that are read for a fix
_LINE_BYTES = 256  # maximum length of a `#!` line on Linux
NEEDS_FOLDER = "R-RECIPE-ALONE"  # error code: the script uses files of its folder
_FIX_COMMAND = f"write a {RECIPE_FILE} with a `command`"


def folder_command(folder: Path, entry: str | None = None) -> tuple[str, ...]:
    """Return the command that runs `entry`, or the script of the folder with a usual name.

    Raises:
        RunnerError: the entry does not exist, or no file shows what to run.
    """
    if entry is None:
        name = _find_script(folder)
        return _script_program(folder, name) or _find_command(folder, name) or ()
    path = PurePosixPath(entry)
    fix = _FIX_COMMAND
    if path.is_absolute() or ".." in path.parts:
        why = "an entry is a file in the folder, or a module of a package in it"
        here = Path(os.path.normpath(folder.resolve() / path))
        if os.path.isfile(here) and here.is_relative_to(folder.resolve()):  # noqa: PTH113
            fix = f"--entry {shlex.quote(here.relative_to(folder.resolve()).as_posix())}"
    elif is_file_in(folder, entry):
        if command := _find_command(folder, str(path)):
            return command
        why = "the file is not a Python or shell script, and does not begin with #!"
        if program := _OTHER_PROGRAMS.get(path.suffix):
            fix = f"write a {RECIPE_FILE} with `command: {program} {shlex.quote(entry)}`"
    elif is_module(folder, entry):
        return "python", "-m", entry
    elif command := _script_program(folder, entry):
        return command
    else:
        why, fix = f"no such file in {folder}", _correct_entry(folder, entry)
    raise RunnerError("R-RECIPE-ENTRY", f"invalid entry {entry!r}", why=why, fix=fix)


def _correct_entry(folder: Path, entry: str) -> str:
    """Return what to write instead of an entry that does not exist."""
    words: list[str] = []
    with suppress(ValueError):
        words = shlex.split(entry)
    if words[:1] in (["python"], ["python3"]):
        words = words[1:]
    if words and words != [entry] and is_file_in(folder, words[0]):
        after = f" -- {shlex.join(words[1:])}" if words[1:] else ""
        return f"--entry {shlex.quote(words[0])}{after}"
    module, colon, _ = entry.partition(":")
    if colon and is_module(folder, module):
        return f"--entry {module}"
    programs = _find_programs(folder)
    near = did_you_mean(entry, programs)
    if not near and "." in entry:
        near = did_you_mean(f"{entry.replace('.', '/')}.py", programs)
    return near or (
        f"use one of its scripts: {', '.join(programs[:5])}"
        if programs
        else f"add a script to {folder}, or {_FIX_COMMAND}"
    )


def has_entry(folder: Path, name: str) -> bool:
    """Return True if the folder has this file, module of a package, or script of the project."""
    is_here = is_file_in(folder, name) or is_module(folder, name)
    return is_here or _script_program(folder, name) is not None


def script_command(path: Path) -> tuple[str, ...]:
    """Return the command of a script that is uploaded without its folder.

    Raises:
        RunnerError: the file is not a script, or it needs files of its folder (`NEEDS_FOLDER`).
    """
    command = _find_command(path.parent, path.name)
    if command is None:
        raise RunnerError(
            "R-RECIPE-PATH",
            f"{path} is not a script",
            why=f"expected a folder, a {RECIPE_FILE}, a .py or .ipynb file, or one with a #! line",
            fix=f"run `runner submit {shlex.quote(str(path))}` if it has tasks"
            if path.suffix in (".yaml", ".yml")
            else f"{_FIX_COMMAND}, and train the folder",
        )
    root, entry = entry_in_folder(path)
    code = LocalCode(path.parent, {path: None})
    beside = [*_local_imports(code, path), *_find_read_files(path)]
    if root != path.parent:
        beside.insert(0, f"the package {entry.partition('/')[0]}")
    if beside:
        raise RunnerError(
            "R-RECIPE-ALONE",  # NEEDS_FOLDER; a literal, because tests search for codes
            f"{path.name} uses {', '.join(beside)}, which would not be uploaded",
            why="only the script and the requirements.txt in its folder are uploaded",
            fix=f"runner train {shlex.quote(str(root))} --entry {shlex.quote(entry)}",
        )
    return command


def entry_in_folder(script: Path) -> tuple[Path, str]:
    """Return the folder that a script needs, and the path of the script in that folder.

    It is the folder of the script or, if the script imports from its own package, the folder that
    contains the outermost package.
    """
    root = script.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    if root == script.parent or not _imports_package(script, script.relative_to(root).parts[0]):
        root = script.parent
    return root, script.relative_to(root).as_posix()


def _find_command(folder: Path, name: str) -> tuple[str, ...] | None:
    """Return the command of a script in a folder, or None if the file is not a script."""
    path = folder / name
    if name.startswith("-"):  # the interpreter would read options
        name = f"./{name}"
    if path.suffix == SUFFIX:
        return notebook_command(name)
    if path.suffix == ".py":
        root, entry = entry_in_folder(path)
        module = entry.removesuffix(".py").replace("/", ".")
        if root == folder and is_module(root, module) and "." in module:
            return "python", "-m", module
        return "python", name
    words = _interpreter(path)
    if words is None:
        return ("bash", name) if path.suffix in (".sh", ".bash") else None
    program = PurePosixPath(words[0]).name
    if re.fullmatch(r"python[\d.]*", program):
        return "python", *words[1:], name
    # Call the interpreter from PATH, because the file may lack the permission to be executed.
    return program if program in _SHELLS else words[0], *words[1:], name


def _interpreter(path: Path) -> list[str] | None:
    """Return the words after `#!`, without `env`; None if the file does not begin with `#!`."""
    try:
        with path.open("rb") as file:
            line = file.readline(_LINE_BYTES)
        words = shlex.split(line[2:].decode()) if line.startswith(b"#!") else []
    except (OSError, ValueError):
        return None
    if words and PurePosixPath(words[0]).name == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return words or None


def is_module(folder: Path, name: str) -> bool:
    """Return True if `python -m NAME` can run a module of a package in the folder, or in `src`."""
    found = find_module(folder, name)
    return found is not None and ("." in name or found[0].name == "__main__.py")


def _imports_package(script: Path, package: str) -> bool:
    """Return True if a script imports its own package, or uses a relative import."""
    return any(each.level or each.top == package for each in read_source(script).imports)


def detect_params_as(code: LocalCode) -> ParamsAs:
    """Return how the script of a program gets its parameters, judged by its code.

    A script that also imports argparse may pass only some of its arguments to OmegaConf.
    """
    if code.script is None or code.script.suffix == SUFFIX:
        return "flags"
    hydra, imported, used = {"hydra"}, set[str](), set[str]()
    for node in ast.walk(read_source(code.script).tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
            hydra.update(a.asname for a in node.names if a.name == "hydra" and a.asname)
        elif isinstance(node, ast.ImportFrom):
            used.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            used.add(f"hydra.{node.attr}" if owner in hydra else node.attr)
    if used & {"hydra.main", "hydra_main"} or ("from_cli" in used and "argparse" not in imported):
        return "hydra"
    return "flags"


def _local_imports(code: LocalCode, script: Path) -> list[str]:
    """Return the files and folders of the code that a script imports outside of `try`."""
    tops = {
        file.relative_to(code.folder).parts[0]
        for each in read_source(script).imports
        if each.top and not each.is_guarded
        for file in code.files_of(each, script)
    }
    return sorted(n if n.endswith(".py") else f"{n}/" for n in tops if n != script.name)


def _find_read_files(script: Path) -> list[str]:
    """Return the files in its folder that a script reads by name, outside of `if` and `try`."""
    tree = read_source(script).tree
    if script.suffix not in (".py", SUFFIX) and not tree.body:
        return _find_named_files(script)
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.If, ast.IfExp, ast.Try)):
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            called = called_name(node)
            texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            if called == "main" and (config := _hydra_config(node)):
                names.add(config)
            mode = str(texts[1]) if len(texts) > 1 else ""
            is_open = called == "open" and not set("wax") & set(mode)
            if is_open or re.match("(im|mem)?(load|read)|genfromtxt", called):
                names.update(text for text in texts if isinstance(text, str))
    folder = script.parent
    return sorted(name for name in names if ".." not in name and is_file_in(folder, name))


def _hydra_config(call: ast.Call) -> str | None:
    """Return the configuration file that a call of `hydra.main` names, or None."""
    given = dict(zip(("config_path", "config_name"), call.args, strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg}
    texts = {
        key: node.value
        for key, node in given.items()
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    name = texts.get("config_name")
    if name is None:
        return None
    path = PurePosixPath(texts.get("config_path", ""), name)
    return str(path if path.suffix in (".yaml", ".yml") else path.with_name(f"{path.name}.yaml"))


def _find_named_files(script: Path) -> list[str]:
    """Return the files in the folder of a shell script whose names are words of the script."""
    words = shell_words(script)
    names = {str(PurePosixPath(word)) for word in words if word and "\0" not in word}
    own = {script.name, "requirements.txt"}
    return sorted(name for name in names - own if is_file_in(script.parent, name))


def _find_script(folder: Path) -> str:
    scripts = sorted(path.name for path in folder.glob("*.py"))
    notebooks = sorted(path.name for path in folder.glob(f"*{SUFFIX}"))
    usual = [name for name in _USUAL if name in scripts]
    # Often, a notebook imports the only script.
    is_notebook = len(notebooks) == 1 and not any(_activity(folder / each) for each in scripts)
    if is_notebook:
        return notebooks[0]
    if len(scripts) == 1 and not _TOOL_FILES.fullmatch(scripts[0]):
        return scripts[0]
    activity = {name: _activity(folder / name) for name in usual}
    if script := next((name for name in usual if activity[name] == _PROGRAM), None):
        return script
    imported: set[str] = set()
    code = LocalCode(folder, {})
    for name in scripts:  # each is parsed once, because there may be thousands
        imported.update(_local_imports(code, folder / name))
        if not _TOOL_FILES.fullmatch(name):
            activity[name] = _activity(folder / name)
    others = [name for name in activity if name not in imported]
    if script := _choose_script(usual, others, activity):
        return script
    commands = sorted(_project_scripts(folder))
    if len(commands) == 1:
        return commands[0]
    own = [n for n in scripts if not _TOOL_FILES.fullmatch(n) and _activity(folder / n) == _PROGRAM]
    likely = [*commands, *sorted(own, key=lambda name: not _PROGRAM_NAME.search(name))]
    likely += [*_package_programs(folder), *sorted(path.name for path in folder.glob("*.sh"))]
    likely += [*(each for each in _find_programs(folder) if "/" in each), *notebooks]
    likely += sorted(others, key=lambda name: -activity[name])
    shown = ", ".join(scripts[:5] or likely[:5])
    found = f"it has {shown}" if shown else "it has no .py file"
    if not likely and (folder / "Makefile").is_file():
        found, fix = "it has a Makefile", f"write a {RECIPE_FILE} with `command: make TARGET`"
    else:
        fix = _FIX_COMMAND
    why = f"the folder has no {RECIPE_FILE} with a command, no train.py and no main.py; {found}"
    raise RunnerError(
        "R-RECIPE-COMMAND",
        f"cannot tell what to run in {folder}",
        why=why,
        fix=f"runner train {shlex.quote(str(folder))} --entry {shlex.quote(likely[0])}"
        if likely
        else fix,
    )


def _choose_script(
    usual: Sequence[str], others: Sequence[str], activity: Mapping[str, int]
) -> str | None:
    """Return the script that is most probably the program of a folder, or None.

    It is one with a usual name that does something when it is run, else the only other one that
    does, else one with a usual name.
    """
    for least in (_PROGRAM, _CALLS):
        if found := next((name for name in usual if activity[name] >= least), None):
            return found
        programs = [name for name in others if activity[name] >= least]
        if len(programs) == 1:
            return programs[0]
    return usual[0] if usual else None


def explain_entry(code: LocalCode, command: Sequence[str], *, is_chosen: bool) -> tuple[str, ...]:
    """Return what is worth knowing about the script of a program, for the plan of a run.

    Args:
        code: the code of the program.
        command: the command that starts it.
        is_chosen: True if the runner chose the script from the files of the folder.
    """
    if is_chosen and (notebook := find_notebook(command)):
        others = sorted(path.name for path in code.folder.glob("*.py"))
        return tuple(_passed_over(notebook, other) for other in others[:1])
    script, folder = code.script, code.folder
    if script is None or script.suffix != ".py" or "-c" in command:  # -c calls a function of it
        return ()
    name = script.relative_to(folder).as_posix()
    if _activity(script) == _NOTHING:
        with suppress(OSError):  # packing the code names a file that cannot be read
            return (_explain_idle(name, is_empty=not script.read_bytes().strip()),)
        return ()
    preferred = _USUAL[: _USUAL.index(name)] if name in _USUAL else _USUAL
    idle = [each for each in preferred if is_chosen and is_file_in(folder, each)]
    if not idle:
        return ()
    return (_passed_over(name, idle[0]),)


def explain_syntax(folder: Path, command: Sequence[str]) -> tuple[str, ...]:
    """Return a warning about a script that this Python cannot parse."""
    name = find_script(folder, command)
    if name is None or not name.endswith(".py"):
        return ()
    try:
        data = (folder / name).read_bytes()
        if b"\0" in data:
            return (f"{name} is not UTF-8 text, but probably UTF-16",)
        parse_python(decode_source(data))
    except UnicodeDecodeError as err:
        line = err.object.count(b"\n", 0, err.start) + 1
        byte = err.object[err.start]
        return (f"{name} is not {err.encoding} text: line {line} has the byte 0x{byte:02x}",)
    except SyntaxError as err:
        place = f"line {err.lineno}: " if err.lineno else ""
        version = platform.python_version()
        return (f"{name} is not valid Python {version}: {place}{err.msg}",)
    except (OSError, ValueError, RecursionError, MemoryError):
        pass
    return ()


def correct_program(folder: Path, command: Sequence[str]) -> str:
    """Return what to do about a file of the folder that cannot be started as a program.

    Empty if the command starts something else, or a file that can be started.
    """
    name = command[0]
    if not is_file_in(folder, name) or PurePosixPath(name).suffix not in (".py", ".sh", ".bash"):
        return ""
    with suppress(OSError):
        data = (folder / name).read_bytes()
        if b"\r" in data or data.startswith(b"\xef\xbb\xbf"):
            return ""  # another check reports it
    has_line = _interpreter(folder / name) is not None
    if "/" in name and has_line and os.access(folder / name, os.X_OK):
        return ""
    script = str(PurePosixPath(name))
    found = _find_command(folder, script) or ()
    return f"command: {shlex.join((*found, *command[1:]))}"


def _explain_idle(name: str, *, is_empty: bool) -> str:
    if is_empty:
        return f"{name} is empty, so the run will do nothing: choose another script with --entry"
    return (
        f"{name} only defines functions and classes, so the run will do nothing: call them in it, "
        "or choose another script with --entry"
    )


def _passed_over(name: str, other: str) -> str:
    return (
        f"{name} runs, not {other}, which only defines things that others import; to run it: "
        f"--entry {other}"
    )


def _activity(script: Path) -> int:
    """Return whether a Python file does something when it is run: no, only in calls, or yes."""
    source = read_source(script)
    if not source.is_valid:
        return _PROGRAM  # the run reports a syntax error better
    with suppress(RecursionError):  # an expression with hundreds of parts
        return max(map(_activity_of, source.tree.body), default=_NOTHING)
    return _PROGRAM


def _activity_of(statement: ast.stmt) -> int:
    """Return the activity of a statement of a module."""
    if isinstance(statement, ast.Expr):
        called = statement.value
        if not isinstance(called, ast.Call | ast.Await):
            return _NOTHING
        name = called_name(called) if isinstance(called, ast.Call) else ""
        return _NOTHING if name in _SETUP_CALLS else _PROGRAM
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        has_call = any(isinstance(each, ast.Call) for each in ast.walk(statement))
        return _CALLS if has_call else _NOTHING
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        return _PROGRAM
    if isinstance(statement, ast.If | ast.Try):
        last = statement.finalbody if isinstance(statement, ast.Try) else ()
        inner = (*statement.body, *statement.orelse, *last)
        return max(map(_activity_of, inner), default=_NOTHING)
    is_loop = isinstance(statement, ast.For | ast.While | ast.With | ast.Raise | ast.Match)
    return _PROGRAM if is_loop else _NOTHING


def _project_scripts(folder: Path) -> dict[str, str]:
    """Return `[project.scripts]` of pyproject.toml: `package.module:function` by command."""
    found = _load_project(folder).get("scripts")
    scripts = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return {
        name: target
        for name, target in scripts.items()
        if isinstance(target, str) and _ENTRY_POINT.fullmatch(target.strip())
    }


def _load_project(folder: Path) -> dict[str, Any]:
    """Return `[project]` of pyproject.toml; empty if it is missing or cannot be read."""
    try:
        found = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    project = found.get("project")
    return cast("dict[str, Any]", project) if isinstance(project, dict) else {}


def _script_program(folder: Path, name: str) -> tuple[str, ...] | None:
    """Return the command of one of `[project.scripts]`, or None if its module is not here."""
    target = _project_scripts(folder).get(name, "").split("[")[0].strip()
    module, _, function = target.partition(":")
    if not module or find_module(folder, module, is_run=False) is None:
        return None
    first = function.partition(".")[0]
    code = (
        f"import sys; from {module} import {first}; sys.argv[0] = {name!r}; sys.exit({function}())"
    )
    return "python", "-c", code


def _find_programs(folder: Path) -> list[str]:
    """Return the scripts and notebooks in a folder and below that do something when they run.

    Usual names come first, and modules of packages last.
    """
    found: list[tuple[bool, bool, int, Path]] = []
    entries = 0
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(each for each in folders if not _OTHER_CODE.fullmatch(each))
        if depth >= _MOST_LEVELS:
            folders.clear()
        entries += len(names)
        if entries > _MOST_ENTRIES:
            break
        is_package = "__init__.py" in names
        for name in names:
            path = Path(place, name)
            if path.suffix in (".py", ".sh", SUFFIX) and not _TOOL_FILES.fullmatch(name):
                found.append((is_package, path.stem not in _PROGRAM_MODULES, depth, path))
    return [
        path.relative_to(folder).as_posix()
        for _, _, _, path in sorted(found)[:_MOST_CANDIDATES]
        if path.suffix != ".py" or _activity(path) == _PROGRAM
    ]


def _package_programs(folder: Path) -> Iterator[str]:
    """Yield the modules of packages in a folder that are probably programs."""
    for name in _PROGRAM_MODULES:
        found = (*folder.glob(f"*/{name}.py"), *folder.glob(f"{SOURCES}/*/{name}.py"))
        for path in sorted(found):
            if (path.parent / "__init__.py").is_file():
                module = f"{path.parent.name}.{name}"
                yield path.parent.name if name == "__main__" else module
