"""The recipes that come with runner: where they are and what they are called."""

from __future__ import annotations

from pathlib import Path

BUILTIN_FOLDER = Path(__file__).resolve().parent.parent / "recipes"
TEMPLATE = "template"
RECIPE_FILE = "train.yaml"


def builtin_names() -> tuple[str, ...]:
    """Names of the built-in recipes; the template is not one."""
    found = BUILTIN_FOLDER.glob(f"*/{RECIPE_FILE}")
    return tuple(sorted(path.parent.name for path in found if path.parent.name != TEMPLATE))
