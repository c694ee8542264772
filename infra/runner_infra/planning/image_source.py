"""The sources of the VM image: files of `custom_image/` as steps of an Image Builder template."""

from __future__ import annotations

import base64
import hashlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.protocol.errors import RunnerError

# In a clone, the folder is at the top level; an installed package contains a copy.
_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE.parents[1] / "custom_image", _PACKAGE / "custom_image")
FOLDER = next((place for place in _PLACES if place.is_dir()), _PLACES[-1])
ON_THE_MACHINE = "/opt/runner/image"
# Files of the folder that the build VM needs.
_FILE_PATTERNS = ("versions.env", "uv.txt", "*.sh", "steps/*.sh", "probe/*.cu", "probe/*.py")


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file of `custom_image/`; `path` is relative to it."""

    path: str
    content: bytes

    @property
    def sha256(self) -> str:
        """The hash of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class TemplateStep:
    """A named shell customizer; `lines` are one script for /bin/sh."""

    name: str
    lines: tuple[str, ...]


def load_files(folder: Path = FOLDER) -> tuple[ImageFile, ...]:
    """Return the files for the build VM, sorted by path.

    Raises:
        RunnerError: R-IMAGE-SOURCE, a required file is missing.
    """
    paths = sorted({path for pattern in _FILE_PATTERNS for path in folder.glob(pattern)})
    found = tuple(
        ImageFile(path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths
    )
    present = {file.path for file in found}
    missing = {"versions.env", "provision.sh", "verify.sh", "lib.sh"} - present
    if missing:
        raise _source_error(
            f"{folder} has no {sorted(missing)[0]}", "check out the repository again"
        )
    return found


def load_versions(folder: Path = FOLDER) -> dict[str, str]:
    """Return the variables of `versions.env`, as bash would read them.

    Raises:
        RunnerError: R-IMAGE-SOURCE, a line is not NAME=value or needs a shell to read it.
    """
    versions: dict[str, str] = {}
    path = folder / "versions.env"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        quoted = len(value) > 1 and value[0] == value[-1] == '"'
        plain = value[1:-1] if quoted else value
        if not equals or not name.isidentifier() or _needs_shell(plain, quoted=quoted):
            why = f"{path}:{number}: invalid line {line!r}: expected NAME=value"
            raise _source_error(
                why, "write one NAME=value per line, with double quotes around a value with spaces"
            )
        versions[name] = plain
    return versions


def template_steps(files: Sequence[ImageFile] | None = None) -> tuple[TemplateStep, ...]:
    """Return the customizers in order: one writes the files, then one runs each step.

    Args:
        files: the files of the image; None loads those of `custom_image/`.
    """
    found = load_files() if files is None else files
    names = [
        file.path.removeprefix("steps/").removesuffix(".sh").partition("-")[2]
        for file in found
        if file.path.startswith("steps/")
    ]
    run = f"sudo {ON_THE_MACHINE}/provision.sh"
    return (
        TemplateStep("files", delivery_script(found, ON_THE_MACHINE)),
        *(TemplateStep(name, (f"{run} {name}",)) for name in names),
    )


def delivery_script(files: Sequence[ImageFile], target: str) -> tuple[str, ...]:
    """Return the lines of a script that writes the files below `target` and checks their hashes.

    The files are in base64, because Image Builder copies the lines into a Packer template, where
    `{{` and `${` are expressions. They are not compressed, because another version of the
    compressor would produce other bytes and therefore another template.
    """
    folders = sorted({f"{target}/{file.path}".rpartition("/")[0] for file in files})
    return ("set -eu", f"sudo mkdir -p {' '.join(folders)}", *_write_commands(files, target))


def template_hash(description: Mapping[str, Any]) -> str:
    """Return a hash of a template's description as 12 hexadecimal digits."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def scripts_hash(folder: Path = FOLDER) -> str:
    """Return a hash of the scripts and versions of the image, as 12 hexadecimal digits."""
    return template_hash({file.path: file.sha256 for file in load_files(folder)})


def _write_commands(files: Sequence[ImageFile], target: str) -> Iterator[str]:
    for file in files:
        path = f"{target}/{file.path}"
        text = base64.b64encode(file.content).decode()
        yield f"base64 -d <<'END' | sudo tee {path} >/dev/null"
        yield from textwrap.wrap(text, 1000)
        yield "END"
        yield f"echo '{file.sha256}  {path}' | sha256sum -c - >/dev/null"
        yield f"sudo chmod {'755' if file.path.endswith('.sh') else '644'} {path}"


def _needs_shell(value: str, *, quoted: bool) -> bool:
    """Return True if bash would change the value, by expansion or splitting."""
    special = set("$`\\\"'") if quoted else set("$`\\\"'#;&|<>()*?~ \t")
    return bool(special & set(value))


def _source_error(why: str, fix: str) -> RunnerError:
    return RunnerError(
        "R-IMAGE-SOURCE", "the scripts of the VM image are incomplete or invalid", why=why, fix=fix
    )
