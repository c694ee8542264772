"""Collect what an issue needs in one archive, without secrets: `runner bug-report`.

Each part is collected on its own. A part that cannot be read, such as the states of services that
are down, becomes a line of `problems` and does not prevent the others.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from runner.core.home import HomePaths, existing_folder, runner_home
from runner.core.masking import Mask, find_document_secrets
from runner.core.settings import PROJECT_FILE, Settings, load_settings, user_config_file
from runner.flows.extras import DISTRIBUTION
from runner.protocol.codec import parse_json
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.protocol.run_spec import RunSpec

T = TypeVar("T")
MAX_BYTES = 1 << 20  # of one file; of a longer one, the end is kept
_MAX_BLOBS = 200  # documents and logs of one run
_MAX_LISTED = 10_000  # blobs whose names are listed
# Results of the script, and their copies: files of any content and size.
_LEFT_OUT = re.compile(r"^(?:checkpoints/|output/|(?:nodes/\d+/)?attempts/\d+/output/)")
_VARIABLES = re.compile(
    r"^(?:RUNNER_|AZURE_|ARM_|AZ_BATCH|PULUMI_|PIP_|UV_|PYTHON|CUDA_|VIRTUAL_ENV|CONDA_PREFIX"
    r"|(?:HTTPS?|ALL|NO)_PROXY|LANG|LC_|TERM$|SHELL$|PATH$|TMPDIR$|XDG_)",
    re.IGNORECASE,
)
# A value in the line of its key, or a block below it.
_PULUMI_SECRET = re.compile(
    r"^(?P<key>(?P<indent>[ ]*)secure:)[ \t]*[>|][^\n]*\n(?:(?P=indent)[ ]+[^\n]*\n?|[ ]*\n)+"
    r"|(?P<flow>secure[\"']?:)\s*[^\s}]+",
    re.MULTILINE,
)
_VARIABLES_KEY = "nvironmentSettings"  # of a task, and commonEnvironmentSettings of a job
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class ReportFile:
    """A file of the archive; `masked` counts the replaced secrets, `cut` says that only the end
    of a long file is in it.
    """

    name: str
    content: bytes
    masked: int = 0
    cut: bool = False


@dataclass
class BugReport:
    """The files of an archive, and what could not be collected, with the reasons."""

    files: list[ReportFile] = field(default_factory=list[ReportFile])
    problems: list[str] = field(default_factory=list[str])

    def contents(self) -> dict[str, Any]:
        """Return `contents.json`: the files with their sizes, and the problems."""
        files = [
            {"name": f.name, "size_bytes": len(f.content), "masked": f.masked, "cut": f.cut}
            for f in self.files
        ]
        return {"files": files, "problems": self.problems}


def collect_report(
    flags: Mapping[str, object], reference: str | None, *, cwd: Path, env: Mapping[str, str]
) -> BugReport:
    """Return the report about this installation, and about a run if there is a reference.

    Args:
        flags: Settings of the command line; see `load_settings`.
        reference: A run ID, a unique prefix or `@last`; None for a report without a run.
        cwd: The folder of the project's settings.
        env: The variables of the command.

    Raises:
        RunnerError: the run does not exist. Every other problem is in the report.
    """
    collector = _Collector(env)
    collector.attempt("versions", lambda: collector.add_json("versions.json", _versions(env)))
    known = {name: value for name, value in env.items() if _VARIABLES.match(name)}
    collector.add_json("environment.json", collector.mask.variables(known))
    settings = collector.attempt("settings", lambda: load_settings(flags, cwd=cwd, env=env))
    if settings is not None:
        shown = {**dataclasses.asdict(settings), "target": settings.target.name}
        collector.add_json("settings.json", shown)
    _add_configuration(collector, cwd, settings)
    _add_local_services(collector, HomePaths(runner_home(env)))
    if settings is not None:
        _add_services(collector, settings, reference)
    elif reference is not None:
        collector.report.problems.append(f"run {reference}: the settings are invalid")
    return collector.report


def write_report(report: BugReport, path: Path) -> None:
    """Write the archive, readable by the user only; a file that exists is not replaced.

    Raises:
        RunnerError: R-REPORT-FILE, the file exists or cannot be written.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("contents.json", json.dumps(report.contents(), indent=2))
        for file in report.files:
            archive.writestr(file.name, file.content)
    check_path(path)
    try:
        path.touch(mode=0o600, exist_ok=False)
    except OSError as err:  # also a link to a file that does not exist
        raise _file_error(path, err.strerror or str(err)) from err
    try:
        path.write_bytes(packed.getvalue())
    except BaseException as err:  # a full disk and Ctrl-C leave a part of it
        path.unlink(missing_ok=True)
        if isinstance(err, OSError):
            raise _file_error(path, err.strerror or str(err)) from err
        raise


def check_path(path: Path) -> None:
    """Raise RunnerError R-REPORT-FILE if an archive cannot be written to this path."""
    if path.exists():
        raise _file_error(path, "it exists already")
    if not path.parent.is_dir():
        raise _file_error(path, f"{path.parent} is not a folder")


def _file_error(path: Path, why: str) -> RunnerError:
    return RunnerError(
        "R-REPORT-FILE", f"cannot write {path}", why=why, fix="choose another path with --file"
    )


class _Collector:
    """The report so far, and the mask that every file passes."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.report = BugReport()
        self.env = env
        self.values = find_document_secrets(env)
        self.mask = Mask(self.values)

    def know(self, values: set[str]) -> None:
        """Mask these values in the files that are added from now on."""
        self.values |= values
        self.mask = Mask(self.values)

    def attempt(self, name: str, function: Callable[[], T]) -> T | None:
        """Return the function's result. A failure becomes a problem, and returns None.

        So does a bug of ours in one part: it may be the reason for the report.
        """
        try:
            return function()
        except RunnerError as err:
            self.report.problems.append(f"{name}: {err.code}: {self.mask.text(err.summary)}")
        except (OSError, ValueError) as err:
            self.report.problems.append(f"{name}: {self.mask.text(str(err))}")
        except Exception as err:  # noqa: BLE001  see above
            text = self.mask.text(str(err))
            self.report.problems.append(f"{name}: R-BUG: {type(err).__name__}: {text}")
        return None

    def add_json(self, name: str, value: object) -> None:
        """Add a document as indented JSON."""
        plain = json.loads(json.dumps(value, default=str))
        before = self.mask.count
        text = json.dumps(self.mask.document(plain), indent=2, ensure_ascii=False)
        self._add(name, text, self.mask.count - before)

    def add_bytes(self, name: str, content: bytes, *, size: int | None = None) -> None:
        """Add a text, or the end of one with `size` bytes; a JSON document is read as such."""
        if name.endswith(".json"):
            with suppress(ValueError, RecursionError):  # damaged
                self.add_json(name, parse_json(content))
                return
        cut = max(len(content), size or 0) > MAX_BYTES
        # A line that was cut could be the end of a secret.
        kept = content[-MAX_BYTES:].partition(b"\n")[2] if cut else content
        before = self.mask.count
        text = kept.decode("utf-8", "replace")
        if name.endswith(".jsonl"):
            text = "".join(map(self._mask_json_line, text.splitlines(keepends=True)))
        else:
            text = self.mask.text(text)
        self._add(name, text, self.mask.count - before, cut=cut)

    def _mask_json_line(self, line: str) -> str:
        try:
            return json.dumps(self.mask.document(parse_json(line))) + "\n"
        except (ValueError, RecursionError):  # incomplete, as its writer was killed
            return self.mask.text(line)

    def add_file(self, name: str, path: Path) -> None:
        """Add the end of a file of this machine, if it exists."""
        if path.is_file():
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MAX_BYTES))
                self.add_bytes(name, file.read(), size=size)

    def _add(self, name: str, text: str, masked: int, *, cut: bool = False) -> None:
        content = text.encode("utf-8", "backslashreplace")  # variables and JSON may be no Unicode
        self.report.files.append(ReportFile(name, content, masked, cut))


def _versions(env: Mapping[str, str]) -> dict[str, Any]:
    packages: dict[str, str | None] = {}
    for requirement in (DISTRIBUTION, *(requires(DISTRIBUTION) or ())):
        found = _REQUIREMENT.match(requirement)
        name = found[0] if found else requirement
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    home = runner_home(env)
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version,
        "executable": sys.executable,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "home": str(home),
        "free_bytes": shutil.disk_usage(existing_folder(home)).free,
        "packages": packages,
        "programs": {
            name: shutil.which(name)
            for name in ("uv", "node", "git", "pulumi", "az", "docker", "podman")
        },
    }


def _add_configuration(collector: _Collector, cwd: Path, settings: Settings | None) -> None:
    stack = settings.stack if settings else "dev"

    def add(name: str) -> None:
        path = cwd / name
        if path.is_file():
            text = _PULUMI_SECRET.sub(_mask_pulumi_secret, path.read_text(encoding="utf-8"))
            collector.add_bytes(f"configuration/{name}", text.encode())

    for name in (PROJECT_FILE, "Pulumi.yaml", f"Pulumi.{stack}.yaml"):
        collector.attempt(name, partial(add, name))
    collector.attempt(
        "user settings",
        lambda: collector.add_file(
            "configuration/user-config.yaml", user_config_file(collector.env)
        ),
    )
    home = HomePaths(runner_home(collector.env))
    collector.attempt(
        "outputs of the stack",
        lambda: collector.add_file("configuration/stack.json", home.stack_outputs(stack)),
    )


def _mask_pulumi_secret(found: re.Match[str]) -> str:
    return f"{found['flow']} ***" if found["flow"] else f"{found['key']} ***\n"


def _add_local_services(collector: _Collector, paths: HomePaths) -> None:
    def read_keys() -> set[str]:
        if not paths.keys.is_file():
            return set()
        keys: Any = parse_json(paths.keys.read_text(encoding="utf-8"))
        return {str(value) for value in keys.values()}

    collector.know(collector.attempt("keys of the local services", read_keys) or set())
    logs = collector.attempt("logs of the local services", lambda: [*paths.logs.glob("*")])
    for path in (paths.local_state, paths.local_outputs, *sorted(logs or ())):
        name = path.relative_to(paths.local).as_posix()
        collector.attempt(name, partial(collector.add_file, f"local/{name}", path))


def _add_services(collector: _Collector, settings: Settings, reference: str | None) -> None:
    """Add what the services of the target know. Raise RunnerError if there is no such run."""
    from runner.azure.auth.credentials import connect  # noqa: PLC0415  the services may be down
    from runner.flows.local.lifecycle import status  # noqa: PLC0415
    from runner.flows.local.state import is_reachable  # noqa: PLC0415

    def add_status() -> None:
        if settings.target.runs_here:
            collector.add_json("local/status.json", dataclasses.asdict(status(settings)))

    def open_connection() -> Connection:
        if not is_reachable(settings):
            raise ValueError("the local services do not run; `runner local up` starts them")
        return connect(settings)

    collector.attempt("state of the local services", add_status)
    connection = collector.attempt(f"services of target {settings.target.name}", open_connection)
    if connection is None:
        if reference is not None:
            collector.report.problems.append(f"run {reference}: the services do not answer")
        return
    spec = None if reference is None else _add_run(collector, connection, reference)
    if spec is None:
        paths = {"pools": "/pools", "jobs": "/jobs"}
    else:
        paths = {
            "pool": f"/pools/{spec.pool}",
            "nodes": f"/pools/{spec.pool}/nodes",
            "job": f"/jobs/{spec.job_id}",
            "task": f"/jobs/{spec.job_id}/tasks/{spec.task_id}",
        }
    for name, path in paths.items():
        collector.attempt(f"Batch, {name}", partial(_add_batch, collector, connection, name, path))


def _add_run(collector: _Collector, connection: Connection, reference: str) -> RunSpec | None:
    """Add a run, and return it; None if its `run.json` cannot be read or is damaged.

    Raises:
        RunnerError: there is no such run.
    """
    from runner.flows.runs.diagnose import diagnose  # noqa: PLC0415
    from runner.flows.runs.documents import find_document  # noqa: PLC0415
    from runner.flows.runs.timeline import load_timeline  # noqa: PLC0415
    from runner.protocol.run_spec import parse_run  # noqa: PLC0415

    try:
        run_id, content = find_document(connection, reference)
    except RunnerError as err:
        if err.exit_code == ExitCode.USAGE:
            raise
        collector.report.problems.append(f"run {reference}: {err.code}: {err.summary}")
        return None
    with suppress(ValueError, RecursionError):  # damaged
        collector.know(find_document_secrets(parse_json(content)))
    spec = collector.attempt("run.json", lambda: parse_run(content, run_id))
    if spec is not None:
        variables = {ref.env for ref in spec.all_secrets if ref.env}
        collector.know({collector.env.get(name, "") for name in variables} - {""})
        cause = collector.attempt("runner why", lambda: diagnose(connection, run_id).to_json())
        collector.add_json("run/why.json", cause)
        events = collector.attempt("runner events", lambda: load_timeline(connection, spec))
        collector.add_json("run/events.json", [each.to_json() for each in events or ()])
    collector.attempt("documents", partial(_add_documents, collector, connection, run_id))
    return spec


def _add_documents(collector: _Collector, connection: Connection, run_id: str) -> None:
    from runner.flows.runs.documents import runs_container  # noqa: PLC0415
    from runner.protocol.paths import RunPaths  # noqa: PLC0415

    container, root = runs_container(connection), RunPaths(run_id).root
    listed: list[dict[str, Any]] = []
    read: list[tuple[str, int]] = []
    for blob in container.list(root):
        name = blob.name.removeprefix(root)
        if len(listed) == _MAX_LISTED:
            collector.report.problems.append(f"blobs of the run: only {_MAX_LISTED} are listed")
            break
        listed.append({"name": name, "size_bytes": blob.size_bytes})
        if not _LEFT_OUT.match(name):
            read.append((name, blob.size_bytes))
    collector.add_json("run/blobs.json", listed)
    for name, size in read[:_MAX_BLOBS]:
        start = max(0, size - MAX_BYTES)
        content = container.read_range(f"{root}{name}", start, None) if size else b""
        collector.add_bytes(f"run/documents/{name}", content or b"", size=size)
    if len(read) > _MAX_BLOBS:
        left = len(read) - _MAX_BLOBS
        collector.report.problems.append(f"documents of the run: {left} are left out")


def _add_batch(collector: _Collector, connection: Connection, name: str, path: str) -> None:
    from runner.azure.batch.raw import send_raw  # noqa: PLC0415

    response = send_raw(connection, "GET", path)
    collector.add_json(
        f"batch/{name}.json", {"status": response.status, "body": _without_variables(response.body)}
    )


def _without_variables(body: Any) -> Any:
    """Return a document of Batch without the values of variables, most of which are secrets."""
    if isinstance(body, list):
        return [_without_variables(each) for each in cast("list[Any]", body)]
    if not isinstance(body, dict):
        return body
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", body).items():
        variables = cast("list[dict[str, Any]]", value) if key.endswith(_VARIABLES_KEY) else None
        found[key] = (
            _without_variables(value)
            if variables is None
            else [{"name": each.get("name")} for each in variables]
        )
    return found
