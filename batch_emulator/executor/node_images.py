"""Node images: folders that say what the image of a virtual machine has.

A folder is laid out as the root of the image's disk. Nodes of pools with the image get its Python
and its programs first in `PATH`, and the variables of its `etc/environment`. There is no chroot:
other files of the folder are found through `BATCH_EMULATOR_IMAGE` only.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_emulator.domain.faults import StatedError
from batch_emulator.domain.model import part
from batch_emulator.domain.validation.machine_rules import MachineChoice, why_unknown_image
from batch_emulator.executor.node_python import OLDEST, BasePython
from batch_emulator.folders import Owner

log = logging.getLogger(__name__)

IMAGE_VARIABLE = "BATCH_EMULATOR_IMAGE"
_FOLDERS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
_ENVIRONMENT = "etc/environment"
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_VERSIONS = "/versions/"
_PROBE_S = 30.0
_PROBE = """
import encodings, json, sys
packages = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
python = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([list(sys.version_info[:2]), python, packages]))
"""


class ImageError(StatedError):
    """An image that cannot be used."""


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """The folder of an image, and the references for which it stands, in lower case."""

    reference: str
    folder: Path


@dataclass(frozen=True, slots=True)
class NodeImage:
    """An image that was checked: its folders of programs, its Python, and its variables."""

    source: ImageFolder
    programs: tuple[Path, ...]
    python: BasePython
    variables: Mapping[str, str]

    @property
    def path(self) -> str:
        """Return its part of a node's PATH."""
        return ":".join(map(str, self.programs))

    def command_line(self, text: str) -> str:
        """Return a command line whose program is the image's if it names one by absolute path.

        A program that this machine has at the same path stays.
        """
        rest = io.StringIO(text)
        words = shlex.shlex(rest, posix=True, punctuation_chars=False)
        words.whitespace_split, words.commenters = True, ""
        try:
            shlex.split(text)
            program = words.get_token() or ""
        except ValueError:
            return text
        own = self.source.folder / program.lstrip("/")
        if not program.startswith("/") or Path(program).exists() or not own.exists():
            return text
        left = rest.read()
        return f"{shlex.quote(str(own))} {left}" if left else shlex.quote(str(own))


def parse_images(texts: Iterable[str], machines: MachineChoice) -> tuple[ImageFolder, ...]:
    """Return the images of `--image REFERENCE=FOLDER`, whose programs are not yet tried.

    Raises ImageError.
    """
    found: dict[str, ImageFolder] = {}
    for text in texts:
        reference, equals, folder = text.partition("=")
        fix = "use --image publisher:offer:sku=FOLDER, or the ARM id of an image of yours"
        if not (reference and equals and folder):
            raise ImageError(f"invalid --image '{text}'", "REFERENCE=FOLDER is expected", fix)
        key = _key(reference)
        why = why_unknown_image(key, machines)
        if why is not None:
            raise ImageError(f"unknown image '{reference}'", why, fix)
        if key in found:
            why = f"{found[key].folder} is its folder already"
            raise ImageError(f"two folders for the image '{reference}'", why, "remove one --image")
        path = Path(folder).absolute()
        if not path.is_dir():
            what, fix = f"no folder for the image '{reference}'", "use the path of a folder"
            why = "is no folder" if path.exists() else "does not exist"
            raise ImageError(what, f"{path} {why}", fix)
        found[key] = ImageFolder(key, path)
        _required(found[key])
    return tuple(found.values())


def _key(reference: str) -> str:
    """Return a reference as it is compared: the version `latest` is none."""
    key = reference.strip().rstrip("/").lower()
    return key.removesuffix(":latest").removesuffix("/versions/latest")


class NodeImages:
    """The images of one emulator. Raises ImageError if the user of tasks cannot run one."""

    def __init__(self, sources: Iterable[ImageFolder] = (), owner: Owner | None = None) -> None:
        self._images = {one.reference: _opened(one, owner) for one in sources}
        for name, image in self._images.items():
            version = ".".join(map(str, image.python.version))
            log.info("image %s: Python %s, PATH %s", name, version, image.path)

    def of(self, pool: Mapping[str, Any]) -> NodeImage | None:
        """Return the image of a pool's nodes: of its exact version, else of any version."""
        if not self._images:
            return None
        reference = part(part(pool, "virtualMachineConfiguration"), "imageReference")
        ids = ("virtualMachineImageId", "sharedGalleryImageId", "communityGalleryImageId")
        given = next((str(reference[name]) for name in ids if reference.get(name)), None)
        if given is not None:
            key = _key(given)
            return self._images.get(key) or self._images.get(key.partition(_VERSIONS)[0])
        names = ":".join(str(reference.get(name)) for name in ("publisher", "offer", "sku"))
        exact = _key(f"{names}:{reference.get('version') or 'latest'}")
        return self._images.get(exact) or self._images.get(_key(names))

    def folder_of(self, pool: Mapping[str, Any]) -> str:
        """Return the folder of a pool's image, empty without one."""
        image = self.of(pool)
        return "" if image is None else str(image.source.folder)


def _required(source: ImageFolder) -> tuple[dict[str, str], tuple[Path, ...], dict[str, str]]:
    """Return variables, folders of programs, and the paths of sh and python3. Raises ImageError."""
    variables = _variables(source)
    wanted = [one.strip("/") for one in variables.pop("PATH", "").split(":") if one.startswith("/")]
    folders = dict.fromkeys((*wanted, *_FOLDERS))
    programs = tuple(source.folder / one for one in folders if (source.folder / one).is_dir())
    found: dict[str, str] = {}
    for name in ("sh", "python3"):
        path = shutil.which(name, path=os.pathsep.join(map(str, programs))) if programs else None
        if path is None:
            folder = shlex.quote(str(source.folder / "bin"))
            here = shutil.which(name, path="/bin:/usr/bin:/usr/local/bin") or f"/usr/bin/{name}"
            raise ImageError(
                f"the image in {source.folder} has no {name}",
                "tasks and start tasks need it",
                f"mkdir -p {folder} && ln -s {here} {folder}/{name}",
            )
        found[name] = path
    return variables, programs, found


def _variables(source: ImageFolder) -> dict[str, str]:
    """Return the variables of etc/environment. Absolute paths in the folder become real ones."""
    path = source.folder / _ENVIRONMENT
    try:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
    except (OSError, ValueError) as err:
        raise ImageError(f"cannot read {path}", str(err), "correct or remove it") from err
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            why = f"line {number} is not NAME=VALUE"
            raise ImageError(f"cannot read {path}", why, "correct or remove that line")
        value = match[2].strip().strip("\"'")
        own = source.folder / value.lstrip("/")
        is_own = match[1] != "PATH" and value.startswith("/") and own.exists()
        found[match[1]] = str(own) if is_own else value
    return found


def _opened(source: ImageFolder, owner: Owner | None) -> NodeImage:
    variables, programs, found = _required(source)
    _run(source, [found["sh"], "-c", "exit 0"], owner)
    version, python, packages = _probed(source, found["python3"], owner)
    if version < OLDEST:
        why = f"its Python is {version[0]}.{version[1]}"
        fix = f"use {OLDEST[0]}.{OLDEST[1]} or newer"
        raise ImageError(f"the image in {source.folder} is too old", why, fix)
    base = BasePython(Path(os.path.realpath(python)), version, packages)
    return NodeImage(source, programs, base, {**variables, IMAGE_VARIABLE: str(source.folder)})


def _probed(
    source: ImageFolder, python: str, owner: Owner | None
) -> tuple[tuple[int, int], str, tuple[str, ...]]:
    text = _run(source, [python, "-I", "-c", _PROBE], owner)
    try:
        (major, minor), executable, packages = json.loads(text)
    except (ValueError, TypeError) as err:
        what = f"the python3 of the image in {source.folder} is no Python"
        raise ImageError(what, f"it printed {text[:80]!r}", "replace it") from err
    return (major, minor), executable, tuple(packages)


def _run(source: ImageFolder, command: list[str], owner: Owner | None) -> str:
    """Return what a program of the image prints as the user of tasks. Raises ImageError."""
    user: dict[str, Any] = {}
    if owner is not None:
        user = {"user": owner.uid, "group": owner.gid, "extra_groups": []}
    try:
        done = subprocess.run(
            command, cwd="/", env={}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_PROBE_S, check=False, **user,
        )  # fmt: skip
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired, UnicodeError) as err:
        done, why = None, str(err)
    if done is None or done.returncode != 0:
        who = "" if owner is None else " for the user of tasks"
        name = Path(command[0]).name
        fix = f"use one that this machine can run{who}, or a link to one"
        raise ImageError(f"the {name} of the image in {source.folder} does not run", why, fix)
    return done.stdout
