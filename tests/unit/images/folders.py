"""The folders of the images, and the instructions of their Containerfiles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

IMAGES = Path(__file__).parents[3] / "images"
FRAMEWORKS = sorted(path.parent.name for path in IMAGES.glob("*/Containerfile"))


@dataclass(frozen=True)
class Instruction:
    word: str
    text: str


def instructions(framework: str) -> list[Instruction]:
    """Return the instructions of an image in order."""
    return instructions_of(IMAGES / framework / "Containerfile")


def instructions_of(containerfile: Path) -> list[Instruction]:
    """Return the instructions in order, with continued lines joined and without comments."""
    text = containerfile.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def versions() -> dict[str, str]:
    """Return the variables of versions.env."""
    text = (IMAGES / "versions.env").read_text(encoding="utf-8")
    pairs = (line.split("=", 1) for line in text.splitlines() if line and line[0] != "#")
    return dict(pairs)


def keras_python() -> Path | None:
    """Return the Python of an environment that end-to-end tests built for MNIST, or None."""
    found = (IMAGES.parent / ".cache" / "services" / "cache" / "envs").glob("*/bin/python")
    for python in found:
        packages = python.parents[1].glob("lib/python*/site-packages/keras")
        if next(packages, None) is not None:
            return python
    return None
