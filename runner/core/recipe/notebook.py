"""Notebooks as scripts: their code and parameters.

The parameters are the variables that the cell with the tag `parameters` sets, as in papermill.
`run_spec.find_notebook` recognises the command of a notebook.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast, get_args

from runner.core.packages.script_file import parse_python
from runner.core.recipe.recipe import Param, ParamType, ParamValue
from runner.protocol.errors import RunnerError

SUFFIX = ".ipynb"
PACKAGES = ("papermill", "ipykernel")  # packages that execute a notebook
# Where Jupyter finds the kernels of a system.
_KERNELS = (Path("/usr/share/jupyter/kernels"), Path("/usr/local/share/jupyter/kernels"))
_KERNEL_PACKAGES = {"bash": "bash-kernel", "octave": "octave-kernel", "scheme": "calysto-scheme"}
_TAG = "parameters"
_PYTHON_MAGICS = ("time", "timeit", "capture", "prun")  # cell magics that run Python code
_MAGIC_LINE = re.compile(r"^([ \t]*)[%!?].*$|^([ \t]*)[\w.]+\?{1,2}[ \t]*$", re.MULTILINE)
_PYLAB = re.compile(r"^([ \t]*)%(?:matplotlib|pylab)\b.*$", re.MULTILINE)  # these import it
_FORMATS = (3, 4)
SERVICE = re.compile(r"(?i)colab|kaggle|binder|paperspace|sagemaker")  # asked for in code
# Loads an extension, which is a module. Those of IPython itself have none of their own.
_EXTENSION = re.compile(
    r"^([ \t]*)%load_ext[ \t]+(?!autoreload\b|storemagic\b)([A-Za-z_][\w.]*)[ \t]*$", re.MULTILINE
)
_HOW_TO_TAG = (
    "add the tag `parameters` to the cell that sets them: in JupyterLab under the gear at the top "
    "right, in VS Code with Add Cell Tag in the menu of the cell"
)


def executed_name(notebook: str) -> str:
    """Return the path of the executed notebook among the outputs."""
    return PurePosixPath(notebook).name


@dataclass(frozen=True, slots=True)
class _Cell:
    source: str
    tags: tuple[str, ...]


def read_params(path: Path) -> tuple[Param, ...]:
    """Return the parameters that the tagged cell of a notebook sets; none without such a cell.

    A parameter has the type of its annotation or value. A computed value has any type and no
    default.

    Raises:
        RunnerError: R-NOTEBOOK, the file is not a Python notebook.
    """
    tagged = next((cell for cell in _code_cells(path) if _TAG in cell.tags), None)
    if tagged is None:
        return ()
    try:
        statements = parse_python(_without_magics(tagged.source)).body
    except (SyntaxError, ValueError) as err:
        line = getattr(err, "lineno", None)
        raise RunnerError(
            "R-NOTEBOOK",
            f"{path.name}: the cell with the tag `{_TAG}` is not valid Python",
            why=f"{err.args[0]}{f' in line {line} of the cell' if line else ''}",
            fix="correct the cell",
        ) from err
    found: dict[str, Param] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, annotation = statement.targets[0], None
        elif isinstance(statement, ast.AnnAssign):
            target, annotation = statement.target, ast.unparse(statement.annotation)
        else:
            continue
        if isinstance(target, ast.Name):
            found[target.id] = _to_param(target.id, annotation, statement.value)
    return tuple(found.values())


def _to_param(name: str, annotation: str | None, value: ast.expr | None) -> Param:
    default: Any = None
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        if value is not None:
            default = ast.literal_eval(value)
            json.dumps(default, allow_nan=False)
    known = Param.of_value(name, default if _is_value(default) else None)
    kind = known.type
    if annotation is not None:
        word = annotation.partition("[")[0].rpartition(".")[2].lower()
        kind = cast("ParamType", word) if word in get_args(ParamType) else "any"
    if kind == "float" and type(known.default) is int:
        return Param(name, kind, float(known.default))
    return Param(name, kind, known.default)


def _is_value(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int | str | bool | list)


def merge_params(path: Path, declared: tuple[Param, ...]) -> tuple[Param, ...]:
    """Return the parameters of a notebook; declarations in train.yaml replace its own.

    Raises:
        RunnerError: R-NOTEBOOK-PARAM, train.yaml declares a parameter that the cell does not set.
    """
    own = {param.name: param for param in read_params(path)}
    for param in declared:
        if param.name not in own:
            raise RunnerError(
                "R-NOTEBOOK-PARAM",
                f"params: {param.name!r} is not a parameter of {path.name}",
                why=_explain_params(path.name, tuple(own)),
                fix=f"set {param.name} in the cell, or remove it from `params`"
                if own
                else _HOW_TO_TAG,
            )
    return tuple((own | {param.name: param for param in declared}).values())


def unknown_param(notebook: str, name: str, known: tuple[str, ...], near: str) -> RunnerError:
    """Return the error for a parameter that the notebook's tagged cell does not set."""
    return RunnerError(
        "R-SET-UNKNOWN",
        f"parameter {name!r} is not a parameter of {notebook}",
        why=_explain_params(notebook, known),
        fix=near if known else _HOW_TO_TAG,
    )


def _explain_params(notebook: str, known: tuple[str, ...]) -> str:
    if not known:
        return f"{notebook} has no cell with the tag `{_TAG}` that sets parameters"
    return f"the cell with the tag `{_TAG}` sets: {', '.join(known)}"


def refuse_arguments(notebook: str, arguments: Sequence[str]) -> None:
    """Raise RunnerError for command-line arguments, which a notebook does not accept."""
    if arguments:
        raise RunnerError(
            "R-NOTEBOOK-ARGS",
            f"unexpected argument {arguments[0]!r}",
            why=f"{notebook} is a notebook, which takes parameters instead of arguments",
            fix="use --set NAME=VALUE",
        )


def parse_text(raw: str) -> ParamValue:
    """Return the value of a text that is JSON or a Python literal, else the text itself."""
    with suppress(ValueError, RecursionError):
        return json.loads(raw, parse_constant=_refuse_constant)
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value: Any = ast.literal_eval(raw.strip())
        return json.loads(json.dumps(value, allow_nan=False))  # converts tuples to lists
    return raw


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def parse_code(path: Path) -> ast.Module:
    """Return the code of all cells that are valid Python; empty if the file is not a notebook."""
    body: list[ast.stmt] = []
    with suppress(RunnerError):
        for cell in _code_cells(path):
            with suppress(SyntaxError, ValueError, RecursionError):
                body += parse_python(_without_magics(cell.source)).body
    return ast.Module(body, [])


def shell_lines(path: Path) -> list[str]:
    """Return the lines of a notebook that are commands of a shell, or magics such as `%pip`.

    Those of cells for a notebook service are left out, because they do nothing elsewhere.
    """
    with suppress(RunnerError):
        cells = [c.source for c in _code_cells(path) if not SERVICE.search(c.source)]
        lines = (line.strip() for source in cells for line in source.splitlines())
        return [line for line in lines if line.startswith(("!", "%"))]
    return []


def _without_magics(source: str) -> str:
    """Return the code of a cell in plain Python, with the same number of lines."""
    if source.lstrip().startswith("%%"):
        first, _, rest = source.lstrip().partition("\n")
        if first[2:].split(" ")[0] not in _PYTHON_MAGICS:
            return ""
        source = f"\n{rest}"
    source = _PYLAB.sub(r"\1import matplotlib", source)
    return _MAGIC_LINE.sub(r"\1\2pass", _EXTENSION.sub(r"\1import \2", source))


def _cells_of(raw: dict[str, Any]) -> list[Any]:
    """Return the cells of a notebook; those of format 3 and earlier are in worksheets."""
    sheets: Any = raw.get("worksheets")
    if "cells" not in raw and isinstance(sheets, list) and sheets:
        return [cell for sheet in cast("list[Any]", sheets) for cell in sheet.get("cells", ())]
    cells: Any = raw["cells"]
    if not isinstance(cells, list) or not all(
        isinstance(cell, dict) for cell in cast("list[Any]", cells)
    ):
        raise TypeError("`cells` is not a list of cells")
    return cast("list[Any]", cells)


def check_kernel(path: Path, packages: str) -> str | None:
    """Return a warning if a notebook uses a kernel of this machine, which other nodes may not have.

    Args:
        path: the notebook.
        packages: what installs packages: their names, and commands.

    Raises:
        RunnerError: R-NOTEBOOK, nothing installs a kernel for its language.
    """
    name, language = _kernel(path)
    if language.lower() == "python" or re.search(r"(?i)(?<!ipy)kernel|xeus", packages):
        return None
    if any((folder / name).is_dir() for folder in _KERNELS):
        return f"{path.name} uses the kernel {name} of this machine: it has to be on the nodes, too"
    package = _KERNEL_PACKAGES.get(language.lower())
    option = f"add --package {package}" if package else "add the package of one with --package"
    raise RunnerError(
        "R-NOTEBOOK",
        f"{path.name} is a notebook of {language}",
        why="only the kernel of Python is installed, and no requirement has another one",
        fix=f"{option}, list it in requirements.txt, or use an `image` that has a kernel of "
        f"{language}",
    )


def _kernel(path: Path) -> tuple[str, str]:
    """Return the name and the language of the kernel of a notebook."""
    raw: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    metadata: dict[str, Any] = raw.get("metadata") or {}
    kernel: dict[str, Any] = metadata.get("kernelspec") or {}
    about: dict[str, Any] = metadata.get("language_info") or {}
    language = kernel.get("language") or about.get("name") or "python"
    return str(kernel.get("name") or language), str(language)


def _why_no_notebook(err: Exception) -> str:
    if isinstance(err, OSError):
        return err.strerror or str(err)
    if isinstance(err, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(err, json.JSONDecodeError):
        is_conflict = err.doc.lstrip("{ \n").startswith(("<<<<<<<", "=======", ">>>>>>>"))
        has_conflict = is_conflict or "\n<<<<<<< " in err.doc
        return "it has conflict markers of git" if has_conflict else f"it is no JSON: {err}"
    return "it has no list of cells, as notebooks have"


def _code_cells(path: Path) -> Iterator[_Cell]:
    """Yield the code cells of a notebook in Python. Raise RunnerError if it is no notebook."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        raw: Any = json.loads(text)
        cells = _cells_of(raw)
        _, language = _kernel(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise RunnerError(
            "R-NOTEBOOK",
            f"{path.name} is not a notebook",
            why=_why_no_notebook(err),
            fix="open the file in Jupyter and save it again",
        ) from err
    version = raw.get("nbformat", 4)
    if version not in _FORMATS:
        raise RunnerError(
            "R-NOTEBOOK",
            f"{path.name} is a notebook of format {version}",
            why="nbclient executes the formats 3 and 4",
            fix="open the file in Jupyter and save it again",
        )
    if language.lower() != "python":
        return
    for cell in cells:
        if isinstance(cell, dict) and cast("dict[str, Any]", cell).get("cell_type") == "code":
            found = cast("dict[str, Any]", cell)
            source = found.get("source") or found.get("input") or ""
            own: dict[str, Any] = found.get("metadata") or {}
            tags: Any = own.get("tags") or ()
            text = source if isinstance(source, str) else "".join(map(str, source))
            yield _Cell(text, tuple(map(str, tags)))
