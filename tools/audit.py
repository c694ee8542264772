"""Audit the pinned packages and the sources. `make lint` runs it: `python -m tools.audit TOOLS`.

Three checks, each of which fails on what it finds, and says what it could not check:

- the pins of all lock files against `requirements/advisories.json`, recorded advisories, offline;
- the same pins with `pip-audit` and `npm audit`, if the registries answer with advisories;
- the sources with `bandit`: findings of medium and high severity need a reason, beside the line
  (`# noqa: S314 - the reason`; ruff has the same numbers) or in `[tool.audit]` of pyproject.toml.

`python -m tools.audit --record CLONE ...` writes advisories.json from clones of advisory databases
in the OSV format (pypa/advisory-database, github/advisory-database).
"""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "requirements" / "advisories.json"
SOURCES = ("runner", "batch_emulator", "infra", "tools", "bench", "custom_image", "images")
ONLINE_S = 300.0
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)
_REASON = re.compile(r"#\s*noqa:\s*(?P<codes>[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)\s*[-\s]\s*(?P<why>\S.*)")


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """A package in a lock file. `ecosystem` is PyPI or npm."""

    ecosystem: str
    package: str
    version: str


@dataclass(frozen=True, slots=True)
class Advisory:
    """A known vulnerability. Affected are versions from the first of a range to before the second.

    The second is None if no version is fixed.
    """

    id: str
    aliases: tuple[str, ...]
    ecosystem: str
    package: str
    affected: tuple[tuple[str, str | None], ...]

    def affects(self, pin: Pin) -> bool:
        """Return True if the pinned version is affected. A version without an order counts."""
        if (pin.ecosystem, pin.package) != (self.ecosystem, self.package):
            return False
        try:
            version = Version(pin.version)
            return any(
                Version(first) <= version and (fixed is None or version < Version(fixed))
                for first, fixed in self.affected
            )
        except InvalidVersion:
            return True


def normal_name(name: str) -> str:
    """Return the name of a Python package as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path) -> set[Pin]:
    """Return the pins of a `requirements` lock or a `package-lock.json`. Raise ValueError if none.

    Markers do not matter: a package that another system installs counts too.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        packages = cast("dict[str, dict[str, Any]]", json.loads(text)["packages"])
        found = {
            Pin("npm", str(entry.get("name") or key.rpartition("node_modules/")[2]), str(version))
            for key, entry in packages.items()
            if key and (version := entry.get("version"))
        }
    else:
        found = {Pin("PyPI", normal_name(name), version) for name, version in _PIN.findall(text)}
    if not found:
        raise ValueError(f"{path} pins nothing")
    return found


def lock_files(root: Path = ROOT) -> list[Path]:
    """Return the lock files of Python and npm packages."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.lock", "*package-lock.json"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [root / name for name in listed.split("\0") if name]


def read_recorded(path: Path = RECORDED) -> tuple[list[Advisory], str]:
    """Return the recorded advisories, and a text with their sources and dates."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = [
        Advisory(
            each["id"], tuple(each["aliases"]), each["ecosystem"], each["package"],
            tuple((first, fixed) for first, fixed in each["affected"]),
        )
        for each in document["advisories"]
    ]  # fmt: skip
    return found, ", ".join(f"{name} of {date}" for name, date in document["sources"].items())


def find_recorded(pins: Iterable[Pin], advisories: Sequence[Advisory]) -> list[str]:
    """Return a line for each pin that a recorded advisory affects."""
    return [
        f"{pin.package} {pin.version} ({pin.ecosystem}) is affected by {one.id}"
        f"{''.join(f', {alias}' for alias in one.aliases)}; fixed in "
        f"{', '.join(fixed for _, fixed in one.affected if fixed) or 'no version'}"
        for pin in sorted(set(pins))
        for one in advisories
        if one.affects(pin)
    ]


@dataclass(frozen=True, slots=True)
class Online:
    """What a registry said: vulnerable pins, and why others were not checked ("" if all were)."""

    found: tuple[str, ...]
    unchecked: str = ""


def parse_pip_audit(output: str, errors: str, count: int) -> Online:
    """Read the JSON of `pip-audit`.

    It exits with 0 if the index has no advisories for a package: such a package was not checked.
    """
    try:
        entries = cast("list[dict[str, Any]]", json.loads(output)["dependencies"])
    except (ValueError, KeyError, TypeError):
        said = errors.strip().splitlines()
        return Online((), f"pip-audit: {said[-1][:200] if said else 'no answer'}")
    found = [
        f"{each['name']} {each['version']} (PyPI) is affected by {one['id']}; fixed in "
        f"{', '.join(one['fix_versions']) or 'no version'}"
        for each in entries
        for one in each.get("vulns") or ()
    ]
    checked = sum("vulns" in each for each in entries)
    missing = max(count - checked, 0)
    why = f"the index has no advisories for {missing} of {count} packages" if missing else ""
    return Online(tuple(found), why)


def parse_npm_audit(output: str) -> Online:
    """Read the JSON of `npm audit`."""
    try:
        document = cast("dict[str, Any]", json.loads(output))
        if "vulnerabilities" not in document:
            return Online((), f"npm audit: {str(document.get('message') or 'no answer')[:200]}")
        affected = cast("dict[str, dict[str, Any]]", document["vulnerabilities"])
        return Online(
            tuple(
                f"{name} {each.get('range', '')} (npm) is affected by {via['url']}"
                for name, each in affected.items()
                for via in cast("list[dict[str, Any] | str]", each.get("via") or [])
                if not isinstance(via, str)
            )
        )
    except (ValueError, AttributeError, KeyError, TypeError):
        return Online((), "npm audit: no answer")


def run_pip_audit(program: Path, pins: Iterable[Pin]) -> Online:
    """Ask the index that pip-audit uses; about one package first, because many have no answer."""
    left = sorted(pin for pin in pins if pin.ecosystem == "PyPI")
    answer = _pip_audit(program, left[:1])
    if answer.unchecked:
        return answer
    found: list[str] = []
    unchecked: list[str] = []
    while left:  # one call may name a package once
        names = {pin.package: pin for pin in left}
        left = [pin for pin in left if names[pin.package] != pin]
        answer = _pip_audit(program, list(names.values()))
        found += answer.found
        unchecked += [answer.unchecked] if answer.unchecked else []
    return Online(tuple(found), "; ".join(unchecked))


def _pip_audit(program: Path, pins: Sequence[Pin]) -> Online:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "requirements.txt")
        lines = [f"{pin.package}=={pin.version}\n" for pin in pins]
        file.write_text("".join(lines), encoding="utf-8")
        command = [str(program), "--disable-pip", "--no-deps", "--progress-spinner", "off"]
        output, errors = _ask([*command, "--timeout", "10", "-f", "json", "-r", str(file)])
    return parse_pip_audit(output, errors, len(pins))


def run_npm_audit(folder: Path) -> Online:
    """Ask the registry that npm is configured for about a folder with a package-lock.json."""
    npm = shutil.which("npm")
    if npm is None:
        return Online((), "npm is not installed")
    options = ["--package-lock-only", "--json", "--fetch-retries", "0", "--prefix", str(folder)]
    output, _ = _ask([npm, "audit", *options])
    return parse_npm_audit(output)


def _ask(command: Sequence[str]) -> tuple[str, str]:
    """Return what a program printed on stdout and stderr; its exit code says nothing more."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ONLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return "", str(err)
    return done.stdout, done.stderr


def accepted_findings() -> Mapping[str, str]:
    """Return the table `[tool.audit]` of pyproject.toml: the reason by `TEST PATH-PATTERN`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return cast("dict[str, str]", settings["tool"]["audit"]["accepted"])


def judge_bandit(
    results: Iterable[Mapping[str, Any]], root: Path, accepted: Mapping[str, str]
) -> list[str]:
    """Return a line for each finding without a reason, and for each entry without a finding."""
    lines: list[str] = []
    used: set[str] = set()
    for each in results:
        name = str(each["filename"]).removeprefix("./")
        source = (root / name).read_text(encoding="utf-8").splitlines()
        first, last = min(each["line_range"]), max(each["line_range"])
        code = f"S{str(each['test_id'])[1:]}"
        notes = [_REASON.search(line) for line in source[first - 1 : last]]
        if any(note and code in re.split(r",\s*", note["codes"]) for note in notes):
            continue
        keys = [
            key
            for key in accepted
            if key.split()[0] == each["test_id"] and fnmatch.fnmatch(name, key.split()[1])
        ]
        used.update(keys)
        if not keys:
            lines.append(f"{name}:{first}: {each['test_id']} {each['issue_text']}")
    lines += [f"pyproject.toml: no finding for {key!r}" for key in accepted if key not in used]
    return lines


def run_bandit(program: Path) -> list[str]:
    """Return the findings of medium and high severity without a reason. Raise ValueError."""
    done = subprocess.run(
        # Its own comments would hide a finding without a reason.
        [str(program), "-r", "-ll", "-q", "--ignore-nosec", "-f", "json", *SOURCES],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        document = json.loads(done.stdout)
    except ValueError as err:
        raise ValueError(f"bandit failed: {done.stderr.strip()[-300:]}") from err
    failed = [f"{each['filename']}: {each['reason']}" for each in document["errors"]]
    return [*failed, *judge_bandit(document["results"], ROOT, accepted_findings())]


def find_advisories(clone: Path, pins: Iterable[Pin]) -> Iterator[Advisory]:
    """Yield the advisories about pinned packages in a clone of a database in the OSV format."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - only to record

    wanted = {(pin.ecosystem, pin.package) for pin in pins}
    names = re.compile("|".join(re.escape(name) for _, name in sorted(wanted)), re.IGNORECASE)
    for path in sorted(
        (*clone.rglob("vulns/**/*.yaml"), *clone.rglob("advisories/**/GHSA-*.json"))
    ):
        text = path.read_text(encoding="utf-8")
        if not names.search(text):
            continue
        yaml: Any = YAML(typ="safe", pure=True)
        document: dict[str, Any] = json.loads(text) if path.suffix == ".json" else yaml.load(text)
        if document.get("withdrawn"):
            continue
        for each in document.get("affected") or ():
            kind, name = str(each["package"]["ecosystem"]), str(each["package"]["name"])
            name = normal_name(name) if kind == "PyPI" else name
            ranges = tuple(_ranges(each))
            if (kind, name) in wanted and ranges:
                aliases = tuple(sorted(document.get("aliases") or ()))
                yield Advisory(str(document["id"]), aliases, kind, name, ranges)


def _ranges(affected: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for each in affected.get("ranges") or ():
        if each["type"] == "GIT":
            continue
        first: str | None = None
        for event in each["events"]:
            if "introduced" in event:
                if first is not None:
                    yield first, None
                first = str(event["introduced"])
            elif first is not None:
                # The version after the last affected one is not known: the next post-release.
                last = event.get("last_affected")
                yield first, str(event["fixed"]) if last is None else f"{last}.post1"
                first = None
        if first is not None:
            yield first, None


def record(clones: Iterable[Path], path: Path = RECORDED) -> int:
    """Write the advisories of the clones about all pinned packages. Other entries are kept."""
    pins = {pin for lock in lock_files() for pin in read_pins(lock)}
    old, _ = read_recorded(path)
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = {(one.id, one.package): one for one in old}
    for clone in clones:
        command = ["git", "-C", str(clone), "log", "-1", "--format=%cs"]
        date = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        found |= {(one.id, one.package): one for one in find_advisories(clone, pins)}
        document["sources"][clone.resolve().name] = date
    kept = [json.dumps(asdict(found[key])) for key in sorted(found)]
    sources = json.dumps(document["sources"])
    body = ",\n".join(kept)
    path.write_text(f'{{"sources": {sources},\n"advisories": [\n{body}\n]}}\n', encoding="utf-8")
    return len(kept)


def main(arguments: Sequence[str]) -> int:
    """Run all checks with the programs in a folder. Return the exit code."""
    if arguments[:1] == ["--record"]:
        print(f"recorded {record(map(Path, arguments[1:]))} advisories")
        return 0
    began = time.monotonic()
    locks = lock_files()
    pins = {pin for lock in locks for pin in read_pins(lock)}
    advisories, sources = read_recorded()
    problems = find_recorded(pins, advisories)
    programs = Path(arguments[0]) / "bin"
    answers: list[Online] = []
    if programs.is_dir():
        problems += run_bandit(programs / "bandit")
        answers.append(run_pip_audit(programs / "pip-audit", pins))
    else:
        answers.append(Online((), "bandit and pip-audit are not installed (see above)"))
    answers += [run_npm_audit(lock.parent) for lock in locks if lock.suffix == ".json"]
    for answer in answers:
        problems += answer.found
        if answer.unchecked:
            say(f"not checked online: {answer.unchecked}")
    say(
        f"{len(pins)} pins compared with {len(advisories)} recorded advisories ({sources}), "
        f"{time.monotonic() - began:.0f} s"
    )
    for problem in dict.fromkeys(problems):
        say(f"error: {problem}")
    return 1 if problems else 0


def say(text: str) -> None:
    """Print a line on stderr."""
    print(f"[audit] {text}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
