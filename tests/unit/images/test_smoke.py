"""The checks shared by all smoke tests, and Keras itself if it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.images.folders import IMAGES, keras_python

GOOD = {
    "framework": "test",
    "version": "1",
    "device": "cpu",
    "gpu": False,
    "losses": [2.0, 1.0, 0.5],
    "reload_difference": 0.0,
}


@pytest.fixture
def smoke() -> ModuleType:
    spec = importlib.util.spec_from_file_location("smoke", IMAGES / "shared" / "smoke.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_learning_and_resuming_training_passes_and_names_its_device(
    smoke: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNNER_REQUIRE_GPU", raising=False)
    folders: list[str] = []

    def train(folder: str) -> dict[str, Any]:
        folders.append(folder)
        assert Path(folder).is_dir()
        return dict(GOOD)

    assert smoke.run(train) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert (said["device"], said["gpu"], said["losses"]) == ("cpu", False, [2.0, 0.5])
    assert "the CPU (no GPU is visible)" in err
    assert not Path(folders[0]).exists()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"losses": [2.0, 1.9]}, "train: the loss went from 2.0000 to 1.9000"),
        ({"losses": [2.0, float("nan")]}, "train: the loss is not a number"),
        ({"losses": [float("inf"), 0.1]}, "train: the loss is not a number"),
        ({"reload_difference": 0.01}, "reload: predictions of the reloaded model differ"),
        ({"reload_difference": float("nan")}, "reload: predictions"),
    ],
)
def test_broken_part_fails_by_name(
    smoke: ModuleType, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], problem: str
) -> None:
    assert smoke.run(lambda folder: {**GOOD, **changed}) == 1
    assert f"smoke test failed: {problem}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "gpu", "code"), [("1", False, 1), ("1", True, 0), ("0", False, 0), ("", False, 0)]
)
def test_gpu_is_required_only_if_the_environment_says_so(
    smoke: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    gpu: bool,
    code: int,
) -> None:
    monkeypatch.setenv("RUNNER_REQUIRE_GPU", value)
    assert smoke.run(lambda folder: {**GOOD, "gpu": gpu, "device": "T4" if gpu else "cpu"}) == code
    assert ("RUNNER_REQUIRE_GPU is set" in capsys.readouterr().err) == bool(code)


@pytest.mark.slow
def test_keras_smoke_test_trains() -> None:
    python = keras_python()
    if python is None:
        pytest.skip("no environment with Keras yet: the end-to-end tests make it")
    environment = {k: v for k, v in os.environ.items() if k != "RUNNER_REQUIRE_GPU"}
    done = subprocess.run(
        [str(python), str(IMAGES / "keras-jax" / "smoke_test.py")],
        env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["framework"] == "keras-jax"
    assert said["losses"][1] < said["losses"][0] / 2
    assert said["gpu"] is False


def test_generated_data_is_reproducible_and_has_every_class(smoke: ModuleType) -> None:
    pytest.importorskip("numpy")
    (points, labels), (again, _) = smoke.data(), smoke.data()
    assert points.shape == (smoke.COUNT, smoke.FEATURES)
    assert (points == again).all()
    assert sorted(set(labels.tolist())) == list(range(smoke.CLASSES))
