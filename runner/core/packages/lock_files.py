"""Read lock files: uv.lock, poetry.lock, pdm.lock, Pipfile.lock and pylock.toml (PEP 751).

`pin_packages` returns the requirements file that installs exactly the locked packages. Markers are
evaluated for every minor version of Python that the project accepts, on Linux, so that the file has
only markers that a node decides.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit, urlunsplit

from runner.core.packages.python_request import minors, poetry_specifiers
from runner.core.packages.requirements import normalize_name, read_text
from runner.protocol.errors import RunnerError

Table = Mapping[str, Any]
_COMMANDS = {
    "uv.lock": "uv lock",
    "poetry.lock": "poetry lock",
    "pdm.lock": "pdm lock",
    "Pipfile.lock": "pipenv lock",
    "pylock.toml": "uv export -o pylock.toml",
}
_MACHINES = ("x86_64", "aarch64")
_MICRO = 8  # of the versions for which markers are evaluated


@dataclass(frozen=True, slots=True)
class PinnedPackages:
    """The requirements file made of a lock file, the packages in it, and the Python that it needs.

    `python` is a version specifier, or empty.
    """

    text: str
    names: frozenset[str]
    folders: tuple[str, ...]
    python: str = ""


@dataclass(frozen=True, slots=True)
class _Edge:
    """A dependency; `allows` is a version or specifiers."""

    name: str
    marker: str = ""
    extras: tuple[str, ...] = ()
    version: str = ""
    allows: str = ""


@dataclass(slots=True)
class _Locked:
    """A locked package: `pin` is its requirement without marker, or empty if it is not installed.

    `extras` has the dependencies of each extra.
    """

    name: str
    version: str
    pin: str
    hashes: tuple[str, ...] = ()
    folder: str = ""
    index: str = ""
    marker: str = ""
    edges: tuple[_Edge, ...] = ()
    extras: Mapping[str, Sequence[_Edge]] = field(default_factory=dict[str, Sequence[_Edge]])


@dataclass(slots=True)
class _Lock:
    """A lock file: without `roots`, all packages are wanted whose markers apply.

    `expected` are dependencies that it has to contain.
    """

    packages: list[_Locked]
    roots: tuple[_Edge, ...] | None = None
    indexes: tuple[str, ...] = ()  # besides that of the node
    python: str = ""
    expected: tuple[_Edge, ...] = ()


def pin_packages(
    folder: Path, name: str, project: Table, choose_python: Callable[[str], str]
) -> PinnedPackages:
    """Return the packages of a lock file.

    Args:
        folder: the folder of the recipe.
        name: the path of the lock file in it.
        project: pyproject.toml or Pipfile beside it, parsed; empty if there is none.
        choose_python: returns the request for Python, given that of the lock file.

    Raises:
        RunnerError: the file cannot be read, or is older than what it locks.
    """
    kind = name.rpartition("/")[2]
    read = {
        "uv.lock": _read_uv,
        "poetry.lock": _read_poetry,
        "pdm.lock": _read_pdm,
        "Pipfile.lock": _read_pipenv,
    }.get(kind, _read_uv if kind.endswith(".py.lock") else _read_pylock)
    text = read_text(folder, name)
    try:
        document = cast(
            "dict[str, Any]", json.loads(text) if kind == "Pipfile.lock" else tomllib.loads(text)
        )
        lock = read(document, project)
        found = _pin(lock, choose_python(lock.python), name)
    except RunnerError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as err:
        has_conflict = "<<<<<<<" in text
        raise RunnerError(
            "R-LOCKFILE",
            f"cannot read {name}",
            why="it has conflict markers of git" if has_conflict else _explain(err),
            fix=_COMMANDS.get(kind, "write it again"),
        ) from err
    return found


def _explain(err: Exception) -> str:
    if isinstance(err, KeyError):
        return f"it lacks {err}"
    if isinstance(err, ValueError):
        return str(err) or type(err).__name__
    return "an entry has another type than in a file of that program"


# Choice of packages


@cache
def _applies(marker: str, minor: str, machine: str, extra: str = "") -> bool:
    """Return True if a marker applies to a Python of this minor version on Linux."""
    from packaging.markers import Marker  # noqa: PLC0415  15 ms

    environment: dict[str, Any] = {
        "implementation_name": "cpython",
        "implementation_version": f"{minor}.{_MICRO}",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{minor}.{_MICRO}",
        "platform_python_implementation": "CPython",
        "python_version": minor,
        "sys_platform": "linux",
        "extra": extra,
    }
    if "extras" in marker or "dependency_groups" in marker:
        environment |= {"extras": set[str](), "dependency_groups": set[str]()}
        return Marker(marker).evaluate(environment, context="lock_file")
    return Marker(marker).evaluate(environment)


def _pin(lock: _Lock, request: str, name: str) -> PinnedPackages:
    places = [(minor, machine) for minor in minors(request) for machine in _MACHINES]
    _refuse_missing(lock, places, name)
    wanted: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for place in places:
        for package in _select(lock, place):
            wanted[id(package)].append(place)
    chosen = [each for each in lock.packages if id(each) in wanted and each.pin]
    chosen.sort(key=lambda each: (each.name, each.version))
    used = {each.index for each in chosen if each.index}
    lines = [f"# {name}, as a requirements file"]
    lines += [f"--extra-index-url {url}" for url in dict.fromkeys((*lock.indexes, *sorted(used)))]
    for package in chosen:
        marker = _marker_of(wanted[id(package)], places)
        hashes = "".join(f" \\\n    --hash={each}" for each in package.hashes)
        lines.append(f"{package.pin}{f' ; {marker}' if marker else ''}{hashes}")
    return PinnedPackages(
        "\n".join([*lines, ""]),
        frozenset(each.name for each in chosen),
        tuple(each.folder for each in chosen if each.folder),
        lock.python,
    )


def _marker_of(wanted: Sequence[tuple[str, str]], places: Sequence[tuple[str, str]]) -> str:
    """Return the marker for the Pythons and machines that need a package; empty for all."""
    if len(wanted) == len(places):
        return ""
    by_machine = {
        machine: [minor for minor, each in wanted if each == machine] for machine in _MACHINES
    }
    every = [minor for minor, machine in places if machine == _MACHINES[0]]

    def of_python(found: Sequence[str]) -> str:
        if list(found) == every:
            return ""
        return " or ".join(f"python_version == '{minor}'" for minor in found)

    if by_machine[_MACHINES[0]] == by_machine[_MACHINES[1]]:
        return of_python(by_machine[_MACHINES[0]])
    parts: list[str] = []
    for machine, found in by_machine.items():
        if found:
            python = of_python(found)
            parts.append(f"({f'({python}) and ' if python else ''}platform_machine == '{machine}')")
    return " or ".join(parts)


def _select(lock: _Lock, place: tuple[str, str]) -> Iterator[_Locked]:
    """Yield the packages that a Python on a machine needs."""
    fitting = [each for each in lock.packages if not each.marker or _applies(each.marker, *place)]
    if lock.roots is None:
        yield from fitting
        return
    by_name: dict[str, list[_Locked]] = defaultdict(list)
    for package in fitting:
        by_name[package.name].append(package)
    seen: set[tuple[int, str]] = set()
    pending = [edge for edge in lock.roots if _is_active(edge, place)]
    while pending:
        edge = pending.pop()
        package = _choose(by_name.get(edge.name, ()), edge)
        if package is None:
            continue
        for extra in ("", *edge.extras):
            if (id(package), extra) in seen:
                continue
            seen.add((id(package), extra))
            if not extra:
                yield package
            edges = package.extras.get(normalize_name(extra), ()) if extra else package.edges
            pending += [each for each in edges if _is_active(each, place, extra)]


def _is_active(edge: _Edge, place: tuple[str, str], extra: str = "") -> bool:
    return not edge.marker or _applies(edge.marker, *place, extra)


def _choose(packages: Sequence[_Locked], edge: _Edge) -> _Locked | None:
    """Return the locked version that a dependency means."""
    if len(packages) == 1 or not packages:
        return packages[0] if packages else None
    if edge.version:
        return next((each for each in packages if each.version == edge.version), None)
    if edge.allows:
        from packaging.specifiers import SpecifierSet  # noqa: PLC0415

        allowed = SpecifierSet(edge.allows)
        return next((each for each in packages if allowed.contains(each.version, True)), None)
    return packages[-1]


def _refuse_missing(lock: _Lock, places: Sequence[tuple[str, str]], name: str) -> None:
    """Raise RunnerError if the lock file lacks a package that the project lists now."""
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415  15 ms

    known: dict[str, list[str]] = defaultdict(list)
    for package in lock.packages:
        known[package.name].append(package.version)
    for edge in (*(lock.roots or ()), *lock.expected):
        if not any(_is_active(edge, place) for place in places):
            continue
        versions = known.get(edge.name)
        if versions is None:
            raise _outdated(name, f"the project lists {edge.name}, which {name} does not contain")
        allowed = SpecifierSet(edge.allows)
        if not any(not each or allowed.contains(each, True) for each in versions):
            has = ", ".join(sorted(versions))
            why = f"the project wants {edge.name}{edge.allows}, but {name} has {has}"
            raise _outdated(name, why)


def _outdated(name: str, why: str) -> RunnerError:
    kind = name.rpartition("/")[2]
    fix = _COMMANDS.get(kind, f"lock {name.removesuffix('.lock')} again with uv")
    return RunnerError("R-LOCKFILE-OLD", f"{name} is out of date", why=why, fix=fix)


# Formats


def _read_uv(document: Table, project: Table) -> _Lock:
    """Read a lock file of uv, format 1 (docs.astral.sh/uv, "Project structure and files")."""
    if document.get("version") != 1:
        has_one = "version" in document
        raise ValueError(
            f"version {document['version']} is not known" if has_one else "it has no `version`"
        )
    tables: list[Table] = document.get("package", [])
    settings = _table(project, "tool", "uv")
    indexes: list[Table] = settings.get("index", [])
    declared = {str(each.get("url", "")).rstrip("/") for each in indexes}
    packages = [_uv_package(each, declared) for each in tables]
    root = next((each for each in tables if _uv_local(each["source"]) == "."), None)
    if root is not None:
        roots = [*map(_uv_edge, root.get("dependencies", []))]
        for group in settings.get("default-groups", []):
            if isinstance(group, str) and group != "all":
                groups = root.get("dev-dependencies", {})
                roots += map(_uv_edge, groups.get(group, []))
    elif listed := _table(document, "manifest").get("requirements"):  # of a script
        roots = [*map(_uv_edge, listed)]
    else:  # a workspace without a project of its own
        roots = [_Edge(each.name) for each in packages if each.folder]
    python = str(document.get("requires-python", ""))
    sources = {normalize_name(name) for name in _table(settings, "sources")}
    listed = _table(project, "project").get("dependencies", [])
    expected = [_edge_of(str(text)) for text in listed]
    expected = [replace(each, allows="") if each.name in sources else each for each in expected]
    return _Lock(packages, tuple(roots), (), python, tuple(expected))


def _uv_local(source: Table) -> str:
    """Return the folder of a package in the project, or an empty string."""
    for kind in ("virtual", "editable", "directory"):
        if kind in source:
            return str(source[kind])
    return ""


def _uv_edge(table: Table) -> _Edge:
    extras = table.get("extra") or table.get("extras") or ()
    extras = (extras,) if isinstance(extras, str) else tuple(extras)
    return _Edge(
        normalize_name(table["name"]), table.get("marker", ""), extras, table.get("version", "")
    )


def _uv_package(table: Table, declared: set[str]) -> _Locked:
    name, version, source = table["name"], str(table.get("version", "")), table["source"]
    folder, pin, index = "", f"{name}=={version}", ""
    if "git" in source:
        pin = f"{name} @ {_git_url(source['git'])}"
    elif "url" in source:
        pin = f"{name} @ {source['url']}{_subdirectory(source)}"
    elif "path" in source:
        folder, pin = source["path"], f"./{source['path']}"
    elif local := _uv_local(source):
        folder = local if local != "." else ""
        pin = f"./{local}" if folder and "virtual" not in source else ""
    elif str(source.get("registry", "")).rstrip("/") in declared:
        index = source["registry"]
    files = [*([table["sdist"]] if "sdist" in table else ()), *table.get("wheels", ())]
    hashes = _hashes(file.get("hash") for file in files) if pin.endswith(f"=={version}") else ()
    extras = {
        normalize_name(extra): [*map(_uv_edge, edges)]
        for extra, edges in table.get("optional-dependencies", {}).items()
    }
    edges = tuple(map(_uv_edge, table.get("dependencies", ())))
    return _Locked(
        normalize_name(name), version, pin, hashes, folder, index, edges=edges, extras=extras
    )


def _git_url(text: str) -> str:
    """Return the address with the commit for pip: uv writes `URL?rev=main#COMMIT`."""
    parts = urlsplit(text)
    folder = parse_qs(parts.query).get("subdirectory", [""])[0]
    url = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    return _vcs(url, parts.fragment, folder)


def _vcs(url: str, commit: str, folder: str = "") -> str:
    if ssh := re.fullmatch(r"([\w.-]+@[\w.-]+):(?!//)(.+)", url):
        url = f"ssh://{ssh[1]}/{ssh[2]}"
    before = "" if url.startswith("git+") else "git+"
    at = f"@{commit}" if commit else ""
    return f"{before}{url}{at}{f'#subdirectory={folder}' if folder else ''}"


def _subdirectory(table: Table) -> str:
    folder = table.get("subdirectory")
    return f"#subdirectory={folder}" if folder else ""


def _hashes(found: Iterable[str | None]) -> tuple[str, ...]:
    """Return the hashes, or none if one is unknown."""
    listed = list(found)
    return tuple(dict.fromkeys(str(each) for each in listed)) if all(listed) else ()


def _read_poetry(document: Table, project: Table) -> _Lock:
    """Read a lock file of Poetry, formats 1.0 to 2.1."""
    tables: list[Table] = document.get("package", [])
    of_files = _table(_required(document, "metadata"), "files")
    packages = [_poetry_package(each, of_files) for each in tables]
    python = str(_table(document, "metadata").get("python-versions", "")).split("||")[0].strip()
    roots = None
    if not all("groups" in each for each in tables) or project:
        roots = tuple(project_edges(project))
    else:
        main = [each for each, table in zip(packages, tables, strict=True) if _in_main(table)]
        packages = main
    return _Lock(packages, roots, (), "" if python == "*" else poetry_specifiers(python))


def _in_main(table: Table) -> bool:
    return "main" in table["groups"] and not table.get("optional", False)


def _poetry_package(table: Table, of_files: Table) -> _Locked:
    name, version = table["name"], str(table["version"])
    source: Table = table.get("source", {})
    kind, url = source.get("type", ""), source.get("url", "")
    folder, pin, index = "", f"{name}=={version}", ""
    if kind == "git":
        commit = source.get("resolved_reference") or source.get("reference", "")
        pin = f"{name} @ {_vcs(url, commit, source.get('subdirectory', ''))}"
    elif kind == "url":
        pin = f"{name} @ {url}"
    elif kind in ("directory", "file"):
        folder, pin = url, f"./{url}"
    elif kind:  # legacy: another index
        index = url
    files: list[Table] = table.get("files") or of_files.get(name) or []
    hashes = _hashes(file.get("hash") for file in files) if not folder and "@" not in pin else ()
    marker: Any = table.get("markers", "")
    if isinstance(marker, dict):  # one for each group
        marker = cast("dict[str, str]", marker).get("main", "")
    edges: list[_Edge] = []
    optional: dict[str, list[_Edge]] = defaultdict(list)
    for dependency, value in table.get("dependencies", {}).items():
        for each in cast("list[Any]", value if isinstance(value, list) else [value]):
            edge = poetry_edge(dependency, each)
            if isinstance(each, dict) and cast("Table", each).get("optional"):
                optional[edge.name].append(edge)
            else:
                edges.append(edge)
    extras = {
        normalize_name(extra): [
            edge for text in texts for edge in optional[_edge_of(text).name or ""]
        ]
        for extra, texts in table.get("extras", {}).items()
    }
    return _Locked(
        normalize_name(name), version, pin, hashes, folder, index, str(marker), tuple(edges), extras
    )


def poetry_edge(name: str, value: Any) -> _Edge:
    """Return a dependency of Poetry: a constraint, or a table with `version`, `markers`..."""
    table = cast("Table", value if isinstance(value, dict) else {"version": value})
    version = str(table.get("version", "*"))
    allows = "" if "||" in version else poetry_specifiers(version)
    markers = [str(table["markers"])] if table.get("markers") else []
    python = str(table.get("python", ""))
    if python and "||" not in python:
        specifiers = re.finditer(r"([<>=!~]+)([\w.*]+)", poetry_specifiers(python))
        markers += [f"python_version {each[1]} '{each[2]}'" for each in specifiers]
    if platform := table.get("platform"):
        markers.append(f"sys_platform == '{platform}'")
    marker = " and ".join(f"({each})" if " or " in each else each for each in markers)
    return _Edge(normalize_name(name), marker, tuple(table.get("extras", ())), allows=allows)


def project_edges(project: Table) -> Iterator[_Edge]:
    """Yield the main dependencies in pyproject.toml, of PEP 621 or of Poetry."""
    for text in _table(project, "project").get("dependencies", []):
        yield _edge_of(str(text))
    for name, value in _table(project, "tool", "poetry", "dependencies").items():
        if name.lower() == "python":
            continue
        for each in cast("list[Any]", value if isinstance(value, list) else [value]):
            if not (isinstance(each, dict) and cast("Table", each).get("optional")):
                yield poetry_edge(name, each)


def _edge_of(text: str) -> _Edge:
    """Return the dependency of a text in the form of PEP 508; older locks have `name (>=1)`."""
    from packaging.requirements import Requirement  # noqa: PLC0415  15 ms

    found = Requirement(text)
    return _Edge(
        normalize_name(found.name),
        str(found.marker or ""),
        tuple(sorted(found.extras)),
        allows=str(found.specifier),
    )


def _read_pdm(document: Table, project: Table) -> _Lock:
    """Read a lock file of PDM, format 4."""
    tables: list[Table] = document.get("package", [])
    metadata = _required(document, "metadata")
    has_groups = all("groups" in each for each in tables)
    packages: list[_Locked] = []
    for table in tables:
        if has_groups and "default" not in table["groups"]:
            continue
        packages.append(_pdm_package(table))
    sources: list[Table] = _table(project, "tool", "pdm").get("source", [])
    urls = tuple(str(each["url"]) for each in sources if each.get("name") != "pypi")
    targets: list[Table] = metadata.get("targets", [])
    python = str(targets[0].get("requires_python", "")) if targets else ""
    if has_groups:
        unique = {(each.name, each.version, each.marker): each for each in packages}
        return _Lock([*unique.values()], None, urls, python, tuple(project_edges(project)))
    return _Lock(packages, tuple(project_edges(project)), urls, python)


def _pdm_package(table: Table) -> _Locked:
    name, version = table["name"], str(table.get("version", ""))
    folder, pin = "", f"{name}=={version}"
    if "git" in table:
        commit = table.get("revision") or table.get("ref", "")
        pin = f"{name} @ {_vcs(table['git'], commit, table.get('subdirectory', ''))}"
    elif "url" in table:
        pin = f"{name} @ {table['url']}"
    elif "path" in table:
        folder, pin = table["path"], f"./{table['path'].removeprefix('./')}"
    files: list[Table] = table.get("files", [])
    hashes = _hashes(file.get("hash") for file in files) if not folder and "@" not in pin else ()
    edges = tuple(_edge_of(text) for text in table.get("dependencies", ()))
    marker = str(table.get("marker") or "")
    return _Locked(normalize_name(name), version, pin, hashes, folder, "", marker, edges)


def _read_pipenv(document: Table, project: Table) -> _Lock:
    """Read Pipfile.lock, format 6. Packages for development are not installed."""
    meta = _table(document, "_meta")
    sources: list[Table] = meta.get("sources", [])
    urls = {str(each["name"]): str(each["url"]) for each in sources if each.get("name") != "pypi"}
    packages: list[_Locked] = []
    for name, table in _required(document, "default").items():
        extras = ",".join(table.get("extras", ()))
        shown = f"{name}[{extras}]" if extras else name
        version, folder = str(table.get("version", "")), ""
        pin = f"{shown}{version}"
        if "git" in table:
            pin = f"{shown} @ {_vcs(table['git'], table['ref'], table.get('subdirectory', ''))}"
        elif "file" in table and "://" in table["file"]:
            pin = f"{shown} @ {table['file']}"
        elif local := table.get("path") or table.get("file"):
            folder = local.removeprefix("./") or "."
            pin = f"./{folder}"
        hashes = tuple(table.get("hashes", ())) if pin.startswith(f"{shown}=") else ()
        index = urls.get(str(table.get("index", "")), "")
        marker = str(table.get("markers", ""))
        locked = _Locked(normalize_name(name), version, pin, hashes, folder, index, marker)
        packages.append(locked)
    requires = _table(meta, "requires")
    python = str(requires.get("python_full_version") or requires.get("python_version") or "")
    expected = tuple(_Edge(normalize_name(name)) for name in _table(project, "packages"))
    return _Lock(packages, None, (), python, expected)


def _read_pylock(document: Table, project: Table) -> _Lock:
    """Read a lock file of PEP 751 (packaging.python.org, "pylock.toml specification")."""
    if not str(document["lock-version"]).startswith("1."):
        raise ValueError(f"lock-version {document['lock-version']} is not known")
    tables: list[Table] = document.get("packages", [])
    indexes = [str(each["index"]) for each in tables if "index" in each]
    usual = max(set(indexes), key=indexes.count, default="")
    packages = [_pylock_package(each, usual) for each in tables]
    python = str(document.get("requires-python", ""))
    return _Lock(packages, None, (), python, tuple(project_edges(project)))


def _pylock_package(table: Table, usual: str) -> _Locked:
    name, version = table["name"], str(table.get("version", ""))
    folder, pin = "", f"{name}=={version}"
    if vcs := table.get("vcs"):
        where = vcs.get("url") or vcs.get("path")
        pin = f"{name} @ {_vcs(where, vcs['commit-id'], vcs.get('subdirectory', ''))}"
    elif local := table.get("directory"):
        folder, pin = local["path"], f"./{local['path']}"
        if folder == ".":
            folder = pin = ""
    elif archive := table.get("archive"):
        if "url" in archive:
            pin = f"{name} @ {archive['url']}{_subdirectory(archive)}"
        else:
            folder, pin = archive["path"], f"./{archive['path']}"
    files: list[Table] = [*([table["sdist"]] if "sdist" in table else ()), *table.get("wheels", ())]
    known = (each.get("hashes", {}).get("sha256") for each in files)
    listed = [f"sha256:{each}" if each else None for each in known]
    hashes = _hashes(listed) if pin == f"{name}=={version}" else ()
    index = table.get("index", usual)
    return _Locked(
        normalize_name(name),
        version,
        pin,
        hashes,
        folder,
        "" if index == usual else index,
        table.get("marker", ""),
    )


def _required(document: Table, key: str) -> Table:
    """Return a table of a lock file. Raise ValueError if it is missing."""
    if not isinstance(document.get(key), dict):
        raise ValueError(f"it has no `{key}`")
    return cast("Table", document[key])


def _table(document: Table, *keys: str) -> Table:
    """Return a table inside of a document; empty if there is none."""
    found: Any = document
    for key in keys:
        found = cast("Table", found).get(key, {}) if isinstance(found, dict) else {}
    return cast("Table", found) if isinstance(found, dict) else {}
