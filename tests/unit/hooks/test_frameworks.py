"""The hooks with the real frameworks, in an interpreter that has them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.images.folders import IMAGES, keras_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent


def torch_python() -> str | None:
    """This interpreter, or the one of $TORCH_PYTHON."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    return os.environ.get("TORCH_PYTHON")


def trained_alike(python: str, program: str, folder: Path) -> dict[str, bool]:
    """Return the program's result for each interruption."""
    done = subprocess.run(
        [python, str(HERE / program), str(folder)],
        env={**os.environ, "PYTHONPATH": str(IMAGES.parent), "JAX_PLATFORMS": "cpu"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_keras_goes_on_to_the_bit_wherever_it_was_stopped(tmp_path: Path) -> None:
    python = keras_python()
    if python is None:
        pytest.skip("no environment with Keras yet: the end-to-end tests make it")
    alike = trained_alike(str(python), "keras_program.py", tmp_path)
    assert [name for name, same in alike.items() if not same] == []
    assert len(alike) == 12


def test_pytorch_goes_on_to_the_bit_wherever_it_was_stopped(tmp_path: Path) -> None:
    python = torch_python()
    if python is None:
        pytest.skip("PyTorch is not installed here; $TORCH_PYTHON may name an interpreter with it")
    alike = trained_alike(python, "torch_program.py", tmp_path)
    assert [name for name, same in alike.items() if not same] == []
    assert len(alike) == 16
