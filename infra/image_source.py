"""What the VM image is made of, as plain data: the files of `custom_image/`, and their order."""

from __future__ import annotations

import base64
import hashlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.core.errors import ExitCode, RunnerError

FOLDER = Path(__file__).parents[1] / "custom_image"
ON_THE_MACHINE = "/opt/runner/image"
# What the build machine needs; the rest of the folder is for people.
_FILES = ("versions.env", "uv.txt", "*.sh", "steps/*.sh", "probe/*.cu", "probe/*.py")


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One file of the folder, by its path in it."""

    path: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Of the content, in hex."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class TemplateStep:
    """One named Shell customizer: its lines are one script of /bin/sh."""

    name: str
    lines: tuple[str, ...]


def load_files(folder: Path = FOLDER) -> tuple[ImageFile, ...]:
    """The files that the build machine gets, sorted by path. Raises R-IMAGE-SOURCE."""
    paths = sorted({path for pattern in _FILES for path in folder.glob(pattern)})
    found = tuple(
        ImageFile(path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths
    )
    present = {file.path for file in found}
    missing = {"versions.env", "provision.sh", "verify.sh", "lib.sh"} - present
    if missing:
        raise _refused(f"{folder} has no {sorted(missing)[0]}", "check the repository out again")
    return found


def load_versions(folder: Path = FOLDER) -> dict[str, str]:
    """`versions.env` as bash reads it: NAME=value, the value in double quotes if it has blanks."""
    versions: dict[str, str] = {}
    path = folder / "versions.env"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        quoted = len(value) > 1 and value[0] == value[-1] == '"'
        plain = value[1:-1] if quoted else value
        if not equals or not name.isidentifier() or _is_shell(plain, quoted=quoted):
            why = f"{path}:{number}: {line!r} is not NAME=value"
            raise _refused(why, "one plain value a line; one with blanks in double quotes")
        versions[name] = plain
    return versions


def template_steps(files: Sequence[ImageFile] | None = None) -> tuple[TemplateStep, ...]:
    """The customizers in order: bring the files, then one for each step of provision.sh."""
    found = load_files() if files is None else files
    names = [
        file.path.removeprefix("steps/").removesuffix(".sh").partition("-")[2]
        for file in found
        if file.path.startswith("steps/")
    ]
    run = f"sudo {ON_THE_MACHINE}/provision.sh"
    return (
        TemplateStep("files", delivery(found, ON_THE_MACHINE)),
        *(TemplateStep(name, (f"{run} {name}",)) for name in names),
    )


def delivery(files: Sequence[ImageFile], target: str) -> tuple[str, ...]:
    """A script that writes the files below `target`, each checked against its hash.

    In base64, for Image Builder puts these lines into a template of Packer, where `{{` and `${`
    would be expressions, and not compressed, for a compressor's next version would make other
    bytes of the same files.
    """
    folders = sorted({f"{target}/{file.path}".rpartition("/")[0] for file in files})
    return ("set -eu", f"sudo mkdir -p {' '.join(folders)}", *_written(files, target))


def template_hash(description: Mapping[str, Any]) -> str:
    """Twelve hex digits of everything that makes a template: any difference is another template."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def scripts_hash(folder: Path = FOLDER) -> str:
    """Twelve hex digits of the files alone: the same scripts and versions have the same."""
    return template_hash({file.path: file.sha256 for file in load_files(folder)})


def _written(files: Sequence[ImageFile], target: str) -> Iterator[str]:
    for file in files:
        path = f"{target}/{file.path}"
        text = base64.b64encode(file.content).decode()
        yield f"base64 -d <<'END' | sudo tee {path} >/dev/null"
        yield from textwrap.wrap(text, 1000)
        yield "END"
        yield f"echo '{file.sha256}  {path}' | sha256sum -c - >/dev/null"
        yield f"sudo chmod {'755' if file.path.endswith('.sh') else '644'} {path}"


def _is_shell(value: str, *, quoted: bool) -> bool:
    """Whether bash would read the value otherwise than it stands there."""
    special = set("$`\\\"'") if quoted else set("$`\\\"'#;&|<>()*?~ \t")
    return bool(special & set(value))


def _refused(why: str, fix: str) -> RunnerError:
    return RunnerError(
        "R-IMAGE-SOURCE",
        "the VM image's scripts are not whole",
        why=why,
        fix=fix,
        exit_code=ExitCode.PREFLIGHT,
    )
