"""The JSON schema of train.yaml: `python -m runner.core.schema [FILE]` writes it for editors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from runner.core.recipe_file import RecipeFile

SCHEMA_FILE = Path(__file__).resolve().parent.parent / "schemas" / "train.schema.json"


def train_schema() -> str:
    """The schema as text, stable between runs."""
    schema = RecipeFile.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the schema to the given file, or to its place in the package."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SCHEMA_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(train_schema(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
