"""The JSON schema of train.yaml: `python -m tools.recipe_schema [FILE]` writes it for editors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from runner.core.recipe.file import RecipeFile
from runner.core.recipe.submit_file import SubmitFile

SUBMIT_SCHEMA_FILE = Path(__file__).parents[1] / "runner" / "schemas" / "submit.schema.json"
SCHEMA_FILE = Path(__file__).parents[1] / "runner" / "schemas" / "train.schema.json"


def train_schema() -> str:
    """Return the schema as text, stable between runs."""
    return _text(RecipeFile)


def submit_schema() -> str:
    """Return the schema of the file that `runner submit` reads."""
    return _text(SubmitFile)


def _text(model: type[BaseModel]) -> str:
    schema = model.model_json_schema(mode="validation")
    _forbid_additional(schema)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _forbid_additional(node: object) -> None:
    """Forbid additional properties where pydantic allows them, so that editors mark wrong names."""
    if isinstance(node, list):
        for each in cast("list[object]", node):
            _forbid_additional(each)
    elif isinstance(node, dict):
        fields = cast("dict[str, object]", node)
        if "patternProperties" in fields:
            fields.setdefault("additionalProperties", False)
        for each in tuple(fields.values()):
            _forbid_additional(each)


def main() -> int:
    """Write the schema of train.yaml to the given file, or both schemas to their own files."""
    if len(sys.argv) == 1:
        SUBMIT_SCHEMA_FILE.write_text(submit_schema(), encoding="utf-8")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SCHEMA_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(train_schema(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
