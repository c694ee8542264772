"""The folders of the built-in recipes.

Imports nothing of ours: the Pulumi program needs the names, but not the classes of recipes.
"""

from __future__ import annotations

from pathlib import Path

BUILTIN_FOLDER = Path(__file__).resolve().parents[2] / "recipes"
TEMPLATE = "template"
RECIPE_FILE = "train.yaml"


def builtin_names() -> tuple[str, ...]:
    """Return the names of the built-in recipes, without the template."""
    found = BUILTIN_FOLDER.glob(f"*/{RECIPE_FILE}")
    return tuple(sorted(path.parent.name for path in found if path.parent.name != TEMPLATE))
