"""Choose the file that lists the packages of a command, and the Python that the project asks for.

`find_packages` reads all forms that projects have, and returns one description: a file in the code
that the node installs, which may be one that the runner adds.
"""

from __future__ import annotations

import ast
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

from runner.core.packages import python_request
from runner.core.packages.requirements import (
    CODE,
    NONE_LISTED,
    ListedPackages,
    check_lines,
    decode_text,
    normalize_name,
    read_requirements_file,
    read_text,
)
from runner.core.packages.script_file import find_script, parse_python
from runner.core.units import format_count
from runner.protocol.errors import RunnerError

Table = Mapping[str, Any]
_Asked = tuple[str | None, str | None]  # a request for Python, and what asks for it
REQUIREMENTS = "requirements.txt"
PROJECT = "pyproject.toml"
VERSION_FILE = ".python-version"
LOCK_FILES = ("pylock.toml", "uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock")
CONDA_FILES = ("environment.yml", "environment.yaml", "conda.yml", "conda.yaml")
_USED_IN_ANY_FOLDER = (REQUIREMENTS, *LOCK_FILES, PROJECT)
_USED = (*_USED_IN_ANY_FOLDER, "Pipfile", *CONDA_FILES, "setup.cfg", "setup.py")
_METADATA = re.compile(rb"(?m)^# /// script\s*$\s((?:^#(?:| .*)$\s)*?)^# ///\s*$")
UNKNOWN = "R-PACKAGES"  # error code: a file lists packages in a form that cannot be installed
_WITHOUT_CONDA = frozenset({"pip", "python", "setuptools", "wheel", "uv"})
_INSTALL_ALL = "echo . > requirements.txt"  # builds the project, with its dependencies


@dataclass(frozen=True, slots=True)
class PackageSource:
    """What a node installs for a command.

    Attributes:
        file: Path in the code of the file that the node installs; None for no packages.
        origin: The file of the project that lists the packages.
        python: A version such as `3.12`, or specifiers such as `>=3.11`; None for any.
        python_from: What asks for that Python, if it is not train.yaml.
        added: Files that are added to the code, as (path, text).
        listed: The packages, as far as they are known.
        not_read: Other files that list packages.
        warnings: What the person should know.
    """

    file: str | None = None
    origin: str | None = None
    python: str | None = None
    python_from: str | None = None
    added: tuple[tuple[str, str], ...] = ()
    listed: ListedPackages = NONE_LISTED
    not_read: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the project that the installation reads."""
        read = (self.file,) if self.file and not self.added else ()
        return tuple(dict.fromkeys((*read, *self.listed.files)))

    def describe(self, more: Sequence[str] = ()) -> str:
        """Return `uv.lock, 38 packages, pinned, numpy; not read: Pipfile`, with `more` packages."""
        if self.origin is None or self.file is None:
            none = "none" if self.python else "none, the Python of the node"
            found = ", ".join(more) or none
        else:
            pinned = ""
            if is_lock_file(self.origin):
                pinned = f", {format_count(self.listed.count, 'package')}, pinned"
            found = ", ".join((f"{self.origin}{pinned}", *more))
        return f"{found}; not read: {', '.join(self.not_read)}" if self.not_read else found


NO_PACKAGES = PackageSource()


def is_lock_file(name: str) -> bool:
    """Return True if a file is a lock file, judged by its name."""
    base = name.rpartition("/")[2]
    # PEP 751: pylock.NAME.toml. uv: the lock file of a script is SCRIPT.py.lock.
    return base in LOCK_FILES or bool(re.fullmatch(r"pylock\.[^.]+\.toml|.+\.py\.lock", base))


def find_packages(
    folder: Path,
    command: Sequence[str],
    named: str | None = None,
    *,
    python: str | None = None,
    is_in_image: bool = False,
    prepares: bool = False,
) -> PackageSource:
    """Return the packages and the Python of a command.

    The file is `requirements` of train.yaml (`named`), or the first in the folder of the script or
    the nearest folder above it: `requirements.txt`, inline metadata, a lock file, `pyproject.toml`;
    in the folder of the recipe also `Pipfile`, `environment.yml`, `setup.cfg` and `setup.py`. An
    image contains its packages: there it is only `named` or `requirements.txt`.

    Args:
        folder: the folder of the recipe.
        command: the command.
        named: a path in the folder.
        python: the version in train.yaml.
        is_in_image: True if the command runs in an image, whose Python it uses.
        prepares: True if `prepare` of train.yaml may install what no file lists plainly.

    Raises:
        RunnerError: the text of a file shows that its packages cannot be installed.
    """
    project = _Project(folder, find_script(folder, command))
    try:
        return project.find(named, python, is_in_image=is_in_image)
    except RunnerError as err:
        if not prepares or named or err.code != UNKNOWN:
            raise
        return replace(
            NO_PACKAGES, python=python, warnings=(f"{err.what}: `prepare` installs them",)
        )


def read_metadata(folder: Path, script: str) -> Table | None:
    """Return the inline metadata of a script, or None. Raise RunnerError if it is no TOML."""
    try:
        data = (folder / script).read_bytes().replace(b"\r\n", b"\n")
    except OSError:
        return None
    found = _METADATA.search(data)
    if found is None:
        _refuse_unclosed(data, script)
        return None
    if len(_METADATA.findall(data)) > 1:
        raise RunnerError(
            CODE,
            f"{script} has more than one block of inline metadata",
            why="PEP 723 allows one block `# /// script` in a file",
            fix="move all dependencies to the first block, and remove the others",
        )
    lines = decode_text(found[1], script, str(folder / script)).splitlines()
    try:
        return tomllib.loads(
            "\n".join(line[2:] if line[1:2] == " " else line[1:] for line in lines)
        )
    except tomllib.TOMLDecodeError as err:
        raise RunnerError(
            CODE,
            f"{script}: the inline metadata is not TOML",
            why=str(err),
            fix="correct the lines between `# /// script` and `# ///`",
        ) from err


def find_in_groups(folder: Path) -> dict[str, str]:
    """Return the packages of pyproject.toml that are not installed, with the table of each."""
    try:
        document = tomllib.loads((folder / PROJECT).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
    tables = {
        "[project.optional-dependencies]": _table(document, "project", "optional-dependencies"),
        "[dependency-groups]": _table(document, "dependency-groups"),
        "[tool.pdm.dev-dependencies]": _table(document, "tool", "pdm", "dev-dependencies"),
        "[tool.poetry.group]": _table(document, "tool", "poetry", "group"),
        "[tool.hatch.envs]": _table(document, "tool", "hatch", "envs"),
        "[tool.flit.metadata]": {"requires": _table(document, "tool", "flit", "metadata")},
    }
    found: dict[str, str] = {}
    for table, groups in tables.items():
        for listed in groups.values():
            names = listed
            if isinstance(listed, dict):  # a group that is a table
                group = cast("Table", listed)
                names = group.get("dependencies") or group.get("requires") or ()
            for each in cast("Iterable[Any]", names if isinstance(names, list | dict) else ()):
                name = re.split(r"[^\w.-]", str(each).strip(), maxsplit=1)[0]
                found.setdefault(normalize_name(name), table)
    return found


def _refuse_unclosed(data: bytes, script: str) -> None:
    """Raise RunnerError for a line `# /// script` that begins no block of metadata."""
    begin = re.search(rb"(?m)^# /// script\s*$", data)
    if begin is None:
        return
    number = data.count(b"\n", 0, begin.start()) + 1
    for line in data[begin.end() :].split(b"\n")[1:]:
        number += 1
        if line.rstrip() == b"# ///" or (line.rstrip() != b"#" and not line.startswith(b"# ")):
            break
    raise RunnerError(
        CODE,
        f"{script}: the inline metadata has no end",
        why=f"line {number} begins neither with `# ` nor is it `# ///`",
        fix=f"write `# ///` before line {number}, or begin the line with `# `",
    )


@dataclass(frozen=True, slots=True)
class _Project:
    folder: Path
    script: str | None

    def find(self, named: str | None, python: str | None, *, is_in_image: bool) -> PackageSource:
        warnings: list[str] = []
        names = self._candidates(is_in_image=is_in_image)
        chosen = named or next(iter(names), None)
        is_decided = is_in_image or python is not None
        request, asked_by = None, None
        with suppress(RunnerError) if is_decided else nullcontext():
            request, asked_by = self._find_python(chosen, warnings, is_in_image=is_in_image)
        found = self._read(chosen, python or request) if chosen else NO_PACKAGES
        of_lock = (found.python, f"requires-python of {chosen}")
        if found.python and request is None:
            request, asked_by = of_lock
        elif found.python and request and not python_request.is_allowed(request, by=found.python):
            if not is_decided:
                raise _exclude_each_other((request, asked_by), of_lock)
            request, asked_by = of_lock
        if python is not None:
            if request and not python_request.is_allowed(python, by=request):
                text = f"Python {python} of train.yaml is used, although {asked_by} is {request}"
                warnings.append(text)
            request, asked_by = python, None
        elif is_in_image and request:
            text = f"the image decides about Python: {asked_by} ({request}) is not checked"
            warnings.append(text)
            request, asked_by = None, None
        read = {chosen, _project_beside(chosen)} if chosen else set[str]()
        others = tuple(name for name in names if name not in read)
        locks = [name for name in others if is_lock_file(name)]
        if locks and chosen and not is_lock_file(chosen):
            warnings.append(
                f"{chosen} is used, not {locks[0]}: write `requirements: {locks[0]}` in train.yaml "
                "for the locked versions"
            )
        return replace(
            found,
            python=request,
            python_from=asked_by,
            not_read=others,
            warnings=(*found.warnings, *warnings),
        )

    def _places(self) -> Iterator[PurePosixPath]:
        """Yield the folders from that of the script up to that of the recipe."""
        path = PurePosixPath(self.script).parent if self.script else PurePosixPath()
        yield path
        if path != PurePosixPath():
            yield from path.parents

    def _candidates(self, *, is_in_image: bool) -> list[str]:
        """Return the files that list packages, in the order of preference."""
        names = (REQUIREMENTS,) if is_in_image else _USED_IN_ANY_FOLDER
        found: list[str] = []
        for place in self._places():
            is_root = place == PurePosixPath()
            for name in _USED if is_root and not is_in_image else names:
                path = str(place / name)
                if (self.folder / path).is_file() and self._lists_packages(path):
                    found.append(path)
                if name == REQUIREMENTS and not is_in_image and self._is_beside(place):
                    found += [self.script] if self.script and self._metadata() is not None else []
        return found

    def _is_beside(self, place: PurePosixPath) -> bool:
        return self.script is not None and PurePosixPath(self.script).parent == place

    def _metadata(self) -> Table | None:
        if self.script is None or not self.script.endswith(".py"):
            return None
        return read_metadata(self.folder, self.script)

    def _lists_packages(self, path: str) -> bool:
        """Return True if a file may list packages, also if it cannot be read."""
        name = PurePosixPath(path).name
        if name == PROJECT:
            project = self._load_toml(path)
            if project is None:
                return True
            listed = _table(project, "project")
            poetry = _table(project, "tool", "poetry", "dependencies")
            dynamic = listed.get("dynamic", ())
            return bool(
                listed.get("dependencies")
                or poetry.keys() - {"python"}
                or "dependencies" in (dynamic if isinstance(dynamic, list) else ())
            )
        if name == "setup.py":
            return b"install_requires" in (self.folder / path).read_bytes()
        if name == "setup.cfg":
            return bool(self._setup_cfg(path).get("install_requires", "").strip())
        if name == "Pipfile":
            pipfile = self._load_toml(path)
            return pipfile is None or bool(_table(pipfile, "packages"))
        return True

    def _load_project(self, path: str) -> Table:
        """Return pyproject.toml; empty if it cannot be read."""
        return self._load_toml(path) or {}

    def _load_toml(self, path: str) -> Table | None:
        """Return a TOML file, which is empty if it is missing; None if it cannot be read."""
        try:
            return tomllib.loads((self.folder / path).read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            return None

    def _toml(self, path: str) -> Table:
        try:
            return tomllib.loads(read_text(self.folder, path))
        except tomllib.TOMLDecodeError as err:
            raise RunnerError(
                CODE, f"{path} is not TOML", why=str(err), fix=f"correct {path}"
            ) from err

    def _setup_cfg(self, path: str) -> Mapping[str, str]:
        import configparser  # noqa: PLC0415  few projects have a setup.cfg

        parser = configparser.ConfigParser(interpolation=None)
        with suppress(configparser.Error):
            parser.read_string(read_text(self.folder, path))
        return dict(parser["options"]) if parser.has_section("options") else {}

    # The packages

    def _read(self, path: str, request: str | None) -> PackageSource:
        """Return the packages of a file."""
        name = PurePosixPath(path).name
        readers = {
            PROJECT: self._read_project,
            "Pipfile": self._read_pipfile,
            "setup.cfg": self._read_setup,
            "setup.py": self._read_setup,
        }
        if path == self.script and name.endswith(".py"):
            return self._read_script(path, request)
        if is_lock_file(path):
            return self._read_lock(path, request)
        if name in readers:
            return readers[name](path)
        if name.endswith((".yml", ".yaml")):
            return self._read_conda(path)
        return PackageSource(path, path, listed=read_requirements_file(self.folder, path))

    def _read_pipfile(self, path: str) -> PackageSource:
        packages = _table(self._toml(path), "packages")
        lines = [(name, _from_table(name, packages[name])) for name in packages]
        return self._generated(path, lines)

    def _read_setup(self, path: str) -> PackageSource:
        if path.endswith(".py"):
            texts = _setup_argument(self.folder / path, "install_requires", path) or []
        else:
            given = self._setup_cfg(path).get("install_requires", "").strip()
            if given.startswith("file:"):  # of setuptools: `file: a.txt, b.txt`
                names = given.removeprefix("file:").replace("\n", ",").split(",")
                given = "\n".join(f"-r {name.strip()}" for name in names if name.strip())
            texts = given.splitlines()
        lines = [("install_requires", text.strip()) for text in texts if text.strip()]
        return self._generated(path, lines)

    def _read_script(self, path: str, request: str | None) -> PackageSource:
        lock = f"{path}.lock"
        if (self.folder / lock).is_file():
            return self._read_lock(lock, request)
        texts = _texts((self._metadata() or {}).get("dependencies", []), f"{path}: `dependencies`")
        listed = check_lines(self.folder, path, [("dependencies", text) for text in texts])
        return PackageSource(path if texts else None, path, listed=listed)

    def _read_lock(self, path: str, request: str | None) -> PackageSource:
        from runner.core.packages.lock_files import pin_packages  # noqa: PLC0415  start-up time

        place = PurePosixPath(path).parent
        project: Table = {}
        if (beside := _project_beside(path)) and (self.folder / beside).is_file():
            project = self._toml(beside)
        found = pin_packages(self.folder, path, project, lambda own: request or own)
        local = check_lines(
            self.folder, path, [("package", f"./{place / each}") for each in found.folders]
        )
        text = "\n".join(_from_folder(line, place) for line in found.text.split("\n"))
        return PackageSource(
            f"{path}.requirements.txt",
            path,
            python=_read(python_request.normalize_request, found.python, path)
            if found.python
            else None,
            added=((f"{path}.requirements.txt", text),),
            listed=replace(local, names=found.names, is_open=False, count=len(found.names)),
        )

    def _read_project(self, path: str) -> PackageSource:
        document = self._toml(path)
        project = _table(document, "project")
        if texts := _texts(project.get("dependencies", []), f"{path}: `dependencies`"):
            listed = check_lines(self.folder, path, [("dependencies", text) for text in texts])
            local = check_lines(self.folder, path, list(_from_uv(document, listed.names)))
            folders = tuple(dict.fromkeys((*listed.folders, *local.folders)))
            listed = replace(
                listed,
                files=(*listed.files, *local.files),
                folders=folders,
                is_open=listed.is_open or local.is_open,
            )
            return PackageSource(path, path, listed=listed)
        if poetry := _table(document, "tool", "poetry", "dependencies"):
            return self._generated(path, list(_from_poetry(poetry)))
        dynamic = _table(document, "tool", "setuptools", "dynamic", "dependencies").get("file", ())
        files = [dynamic] if isinstance(dynamic, str) else list(dynamic)
        if files:
            beside = PurePosixPath(path).parent
            return self._generated(
                path, [("dependencies", f"-r {beside / each}") for each in files]
            )
        raise RunnerError(
            UNKNOWN,
            f"the dependencies in {path} are not known before it is built",
            why="`dynamic` contains `dependencies`",
            fix=_INSTALL_ALL,
        )

    def _generated(self, path: str, lines: Sequence[tuple[str, str]]) -> PackageSource:
        """Return a requirements file of these lines, each given as (place in the file, text)."""
        place = PurePosixPath(path).parent
        lines = [(where, _from_folder(text, place)) for where, text in lines]
        listed = check_lines(self.folder, path, lines)
        if not lines:
            return PackageSource(None, path)
        name = f"{path}.requirements.txt"
        text = "\n".join([f"# {path}, as a requirements file", *(text for _, text in lines), ""])
        return PackageSource(name, path, added=((name, text),), listed=listed)

    def _read_conda(self, path: str) -> PackageSource:
        packages, pip = self._load_conda(path)
        names = {_conda_name(each) for each in packages}
        lines = [("pip", text) for text in pip]
        if names <= _WITHOUT_CONDA:
            return self._generated(path, lines)
        checked = check_lines(self.folder, path, lines)
        return PackageSource(path, path, listed=replace(checked, is_open=True))

    def _load_conda(self, path: str) -> tuple[list[str], list[str]]:
        """Return the packages for conda and those for pip of environment.yml."""
        from ruamel.yaml import YAML  # noqa: PLC0415  few projects use conda
        from ruamel.yaml.error import YAMLError  # noqa: PLC0415

        text = read_text(self.folder, path)
        try:
            document: Any = YAML(typ="safe").load(text)  # pyright: ignore[reportUnknownMemberType]
        except YAMLError as err:
            raise RunnerError(
                CODE, f"{path} is not YAML", why=str(err).partition("\n")[0], fix=f"correct {path}"
            ) from err
        if document is not None and not isinstance(document, dict):
            raise _no_conda_file(path, "it is no mapping")
        listed: Any = cast("Table", document or {}).get("dependencies") or []
        if not isinstance(listed, list):
            raise _no_conda_file(path, f"`dependencies` is {listed!r}, not a list")
        packages: list[str] = []
        pip: list[str] = []
        for each in cast("list[Any]", listed):
            if isinstance(each, dict) and list(cast("Table", each)) == ["pip"]:
                pip += _texts(cast("Table", each)["pip"] or [], f"{path}: `pip`")
            elif isinstance(each, str):
                packages.append(each)
            else:
                raise _no_conda_file(path, f"`dependencies` has {each!r}")
        return packages, pip

    # Python

    def _find_python(
        self, chosen: str | None, warnings: list[str], *, is_in_image: bool
    ) -> tuple[str | None, str | None]:
        """Return the request for Python of the project, and what asks for it."""
        request, asked_by = next(self._requests(chosen, is_in_image=is_in_image), (None, None))
        if request is not None and asked_by and not python_request.minors(request):
            raise _impossible(request, asked_by)
        for place in self._places():
            path = str(place / VERSION_FILE)
            if not (self.folder / path).is_file():
                continue
            text = read_text(self.folder, path)
            version = python_request.read_version_file(text)
            if version is None:
                if text.strip() and text.strip() != "system":
                    warnings.append(f"{path} is not used: it names no version of CPython")
            elif not python_request.minors(version):
                raise _impossible(version, path)
            elif request is None or python_request.is_allowed(version, by=request):
                return version, path
            elif chosen is None or chosen != self.script:
                raise _exclude_each_other((version, path), (request, asked_by))
            break
        return request, asked_by

    def _requests(self, chosen: str | None, *, is_in_image: bool) -> Iterator[tuple[str, str]]:
        """Yield the requests of files for Python, the most important one first."""
        metadata = self._metadata()
        if metadata is not None and "requires-python" in metadata:
            yield self._normalized(metadata["requires-python"], f"requires-python of {self.script}")
        if metadata is not None and chosen == self.script:
            return  # as for `uv run`, a script with metadata is no part of the project around it
        for place in self._places():
            yield from self._of_project(str(place / PROJECT))
        if is_in_image:
            return
        if pipfile := self._load_toml("Pipfile"):
            requires = _table(pipfile, "requires")
            for key in ("python_full_version", "python_version"):
                if requires.get(key):
                    yield self._normalized(requires[key], f"{key} of Pipfile")
        if chosen and chosen.endswith((".yml", ".yaml")):
            yield from self._of_conda(chosen)
        yield from self._of_setup()

    def _of_project(self, path: str) -> Iterator[tuple[str, str]]:
        document = self._load_project(path)
        if required := _table(document, "project").get("requires-python"):
            yield self._normalized(required, f"requires-python of {path}")
        poetry = _table(document, "tool", "poetry", "dependencies").get("python", "*")
        if found := _read(python_request.poetry_request, poetry, f"python of {path}"):
            yield found, f"python of {path}"

    def _of_conda(self, path: str) -> Iterator[tuple[str, str]]:
        packages, _ = self._load_conda(path)
        if not {_conda_name(each) for each in packages} <= _WITHOUT_CONDA:
            return  # conda installs Python
        for each in packages:
            if _conda_name(each) == "python" and (text := _conda_version(each)):
                yield self._normalized(text, f"python of {path}")

    def _of_setup(self) -> Iterator[tuple[str, str]]:
        has_config = (self.folder / "setup.cfg").is_file()
        if has_config and (text := self._setup_cfg("setup.cfg").get("python_requires")):
            yield self._normalized(text, "python_requires of setup.cfg")
        if (self.folder / "setup.py").is_file():
            with suppress(RunnerError):  # it may be computed
                for text in _setup_argument(self.folder / "setup.py", "python_requires", "") or ():
                    yield self._normalized(text, "python_requires of setup.py")

    def _normalized(self, text: object, where: str) -> tuple[str, str]:
        return _read(python_request.normalize_request, text, where), where


def _no_conda_file(path: str, why: str) -> RunnerError:
    return RunnerError(
        CODE,
        f"{path} does not list packages as conda does",
        why=why,
        fix="write a list of texts in `dependencies`, with `pip: [...]` for packages of pip",
    )


def _project_beside(path: str) -> str | None:
    """Return the path of the file whose packages a lock file has; None for another file."""
    if not is_lock_file(path) or path.endswith(".py.lock"):
        return None
    name = "Pipfile" if path.endswith("Pipfile.lock") else PROJECT
    return str(PurePosixPath(path).with_name(name))


def _read(convert: Callable[[str], str], text: object, where: str) -> str:
    if isinstance(text, int | float):  # 3.10 is 3.1
        raise RunnerError(
            "R-PYTHON-VERSION",
            f"{where} is a number, not a text",
            why=f"TOML reads 3.10 as 3.1; the value is {text}",
            fix='write it in quotes, like ">=3.10"',
        )
    try:
        return convert(str(text))
    except ValueError as err:
        raise RunnerError(
            "R-PYTHON-VERSION",
            f"{where}: {str(text)!r} is no version of Python",
            why=str(err),
            fix='write a version or a range, like "3.12" or ">=3.11"',
        ) from err


def _exclude_each_other(one: _Asked, other: _Asked) -> RunnerError:
    """Return the error for two requests for Python, each given as (request, what asks for it)."""
    return RunnerError(
        "R-PYTHON-VERSION",
        f"{one[1]} and {other[1]} exclude each other",
        why=f"{one[1]} is {one[0]}, {other[1]} is {other[0]}",
        fix=f"change {one[1]} to a version that satisfies {other[0]}",
    )


def _impossible(request: str, where: str) -> RunnerError:
    is_old = re.search(r"(^|[^\d.])2(\.|$)|<3(\.0)?(,|$)", request) is not None
    return RunnerError(
        "R-PYTHON-VERSION",
        f"{where}: no Python satisfies {request}",
        why="nodes have CPython 3.7 or newer" if is_old else "no version is in this range",
        fix="use an `image` with that Python in train.yaml" if is_old else "correct the range",
    )


def _texts(value: Any, where: str) -> list[str]:
    """Return a list of texts. Raise RunnerError if it is something else."""
    if isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value)):
        return [str(each).strip() for each in cast("list[Any]", value) if str(each).strip()]
    raise RunnerError(
        CODE,
        f"{where} is not a list of texts",
        why=f"it is {value!r}",
        fix='write a list, like ["numpy", "torch>=2"]',
    )


def _table(document: Table, *keys: str) -> Table:
    """Return a table inside of a document; empty if there is none."""
    found: Any = document
    for key in keys:
        found = cast("Table", found).get(key, {}) if isinstance(found, dict) else {}
    return cast("Table", found) if isinstance(found, dict) else {}


def _from_folder(line: str, place: PurePosixPath) -> str:
    """Return a line whose path begins at the folder of the recipe instead of the file's, `place`.

    pip reads paths in a requirements file from the working directory, programs with a lock file
    from the folder of the project.
    """
    if not line.startswith(("./", "../")) or place == PurePosixPath():
        return line
    path = posixpath.normpath(str(place / line))
    return path if path.startswith("../") else f"./{path}"


def _from_uv(document: Table, names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the paths that `[tool.uv.sources]` gives for some packages."""
    for name, value in _table(document, "tool", "uv", "sources").items():
        for each in cast("list[Any]", value if isinstance(value, list) else [value]):
            path = cast("Table", each).get("path") if isinstance(each, dict) else None
            if isinstance(path, str) and normalize_name(name) in names:
                yield f"tool.uv.sources.{name}", _from_table(name, {"path": path})


def _from_poetry(dependencies: Table) -> Iterator[tuple[str, str]]:
    """Yield the requirements of `[tool.poetry.dependencies]`."""
    for name, value in dependencies.items():
        if name.lower() == "python":
            continue
        for each in cast("list[Any]", value if isinstance(value, list) else [value]):
            if not (isinstance(each, dict) and cast("Table", each).get("optional")):
                yield name, _from_table(name, each, is_poetry=True)


def _from_table(name: str, value: Any, *, is_poetry: bool = False) -> str:
    """Return the requirement for an entry of Poetry or of a Pipfile."""
    table = cast("Table", value if isinstance(value, dict) else {"version": value})
    extras = table.get("extras") or ()
    shown = f"{name}[{','.join(extras)}]" if extras else name
    marker = str(table.get("markers") or "")
    if repository := table.get("git"):
        at = table.get("rev") or table.get("tag") or table.get("branch") or table.get("ref")
        ssh = re.fullmatch(r"([\w.-]+@[\w.-]+):(?!//)(.+)", repository)
        url = f"ssh://{ssh[1]}/{ssh[2]}" if ssh else repository
        inside = table.get("subdirectory")
        where = f"git+{url}{f'@{at}' if at else ''}{f'#subdirectory={inside}' if inside else ''}"
        text = f"{shown} @ {where}"
    elif url := table.get("url") or (
        table.get("file") if "://" in str(table.get("file")) else None
    ):
        text = f"{shown} @ {url}"
    elif path := table.get("path") or table.get("file"):
        text = path if path.startswith((".", "/")) else f"./{path}"
    else:
        version = str(table.get("version", "*"))
        if is_poetry:
            version = _read(_poetry_versions, version, f"{name} of {PROJECT}")
        text = shown + ("" if version == "*" else version)
        if re.fullmatch(r"\d[\w.*+]*", version):
            text = f"{shown}=={version}"
    if is_poetry and (python := table.get("python")):
        found = re.finditer(r"([<>=!~]+)([\w.*]+)", python_request.poetry_specifiers(python))
        markers = [f"python_version {each[1]} '{each[2]}'" for each in found]
        marker = " and ".join([f"({marker})", *markers] if marker else markers)
    return f"{text} ; {marker}" if marker else text


def _poetry_versions(text: str) -> str:
    return "" if "||" in text else python_request.poetry_specifiers(text)


def _conda_name(text: str) -> str:
    """Return the name in a match specification of conda: `channel::name[version=1]`, `name=1`."""
    return re.split(r"[\s=<>!~\[]", text.rpartition("::")[2].strip(), maxsplit=1)[0].lower()


def _conda_version(text: str) -> str:
    """Return the versions in a match specification of conda, as specifiers; empty for any."""
    version = re.sub(r"^[\w.-]+\s*", "", text.rpartition("::")[2].strip())
    if exact := re.fullmatch(r"={1,2}\s*([\d.]+)(\.\*|\*)?(=\S+)?", version):
        return exact[1].rstrip(".")
    return version.replace(" ", "")


def _setup_argument(path: Path, name: str, shown: str) -> list[str] | None:
    """Return the texts of an argument of `setup()` in setup.py; None if it is not given.

    Raises:
        RunnerError: the value is computed.
    """
    try:
        tree = parse_python(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    values = _constants(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] != "setup":
            continue
        for keyword in node.keywords:
            if keyword.arg != name:
                continue
            found: Any = None
            with suppress(ValueError, TypeError):
                found = ast.literal_eval(keyword.value)
            if found is None and isinstance(keyword.value, ast.Name):
                found = values.get(keyword.value.id)
            texts = [found] if isinstance(found, str) else found
            if isinstance(texts, list | tuple):
                lines = (
                    line for text in cast("Iterable[Any]", texts) for line in str(text).splitlines()
                )
                return [line.strip() for line in lines if line.strip()]
            raise RunnerError(
                UNKNOWN,
                f"the dependencies in {shown} are not known before it is built",
                why=f"`{name}` is computed: {ast.unparse(keyword.value)[:60]}",
                fix=_INSTALL_ALL,
            )
    return None


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Return the values of names that are assigned once, plainly, and used in no other way than
    as a value: `extend`, `+=` and an index could change them.
    """
    values: dict[str, Any] = {}
    changed: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in values:
                changed.add(name)
            with suppress(ValueError, TypeError):
                values[name] = ast.literal_eval(node.value)
        elif isinstance(node, ast.AugAssign | ast.Attribute | ast.Subscript):
            used = node.target if isinstance(node, ast.AugAssign) else node.value
            changed |= {used.id} if isinstance(used, ast.Name) else set[str]()
    return {name: value for name, value in values.items() if name not in changed}
