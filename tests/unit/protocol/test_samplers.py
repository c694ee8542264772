"""The table of samplers, which client, agent and its program share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

from runner.protocol import samplers
from runner.protocol.samplers import DEFAULT_SAMPLER, SAMPLERS, Method


def test_every_sampler_is_a_method() -> None:
    assert get_args(Method) == ("grid", "random", *SAMPLERS)
    assert DEFAULT_SAMPLER in SAMPLERS


def test_source_of_the_samplers_is_a_program_without_our_modules(tmp_path: Path) -> None:
    (tmp_path / "optuna.py").write_text("raise SystemExit('asked Optuna')")
    source = Path(samplers.__file__).read_text("utf-8")
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    source = source.replace("import importlib\n", start + "import importlib\n", 1)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source],
        input=json.dumps({"sampler": "tpe", "goal": "max", "seed": 1, "trials": [], "space": []}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == "asked Optuna"
