"""The hooks with the real frameworks, if they are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from runner.node.script.workspace import compilation_variables, python_path
from tests.unit.images.folders import IMAGES, keras_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent


def torch_python() -> str | None:
    """Return this interpreter, or that of $TORCH_PYTHON, or None."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    return os.environ.get("TORCH_PYTHON")


def trained_alike(python: str, program: str, folder: Path) -> dict[str, bool]:
    """Return the program's result for each interruption."""
    done = subprocess.run(
        [python, str(HERE / program), str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": str(IMAGES.parent),
            "JAX_PLATFORMS": "cpu",
            **compilation_variables(
                folder, "0" * 64
            ),  # as the agent sets them: one network, 40 models
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_keras_resumes_bit_exactly_from_any_step(tmp_path: Path) -> None:
    python = keras_python()
    if python is None:
        pytest.skip("no environment with Keras yet: the end-to-end tests make it")
    alike = trained_alike(str(python), "keras_program.py", tmp_path)
    assert [name for name, same in alike.items() if not same] == []
    assert len(alike) == 12


def test_keras_on_tensorflow_resumes_bit_exactly_from_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow has no metrics before the first batch of a resumed epoch."""
    python = os.environ.get("TENSORFLOW_PYTHON")
    if python is None:
        pytest.skip("$TENSORFLOW_PYTHON may name an interpreter with Keras 3 and TensorFlow")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    alike = trained_alike(python, "keras_program.py", tmp_path)
    assert [name for name, same in alike.items() if not same] == []
    assert len(alike) == 12


def test_pytorch_resumes_bit_exactly_from_any_step(tmp_path: Path) -> None:
    python = torch_python()
    if python is None:
        pytest.skip("PyTorch is not installed here; $TORCH_PYTHON may name an interpreter with it")
    alike = trained_alike(python, "torch_program.py", tmp_path)
    assert [name for name, same in alike.items() if not same] == []
    assert len(alike) == 16


def ends(
    python: str, program: str, folder: Path, stops: list[str], *words: str, **more: str
) -> list[str]:
    """Return the last line of each attempt of a script that has never heard of us."""
    lines: list[str] = []
    for name in ("checkpoints", "code"):  # Lightning writes to ./checkpoints
        (folder / name).mkdir(parents=True)
    hooks = python_path(None, folder, automatic=True)
    for attempt, stop in enumerate(stops, 1):
        with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                [*python.split(" "), HERE / "plain" / program, *words],
                env={
                    **os.environ,
                    "PYTHONPATH": str(hooks),
                    "KERAS_BACKEND": "jax",
                    "JAX_PLATFORMS": "cpu",
                    **compilation_variables(folder.parent, "0" * 64),
                    "RUNNER_SCRIPT_OF": str(folder),
                    "RUNNER_RUN_ID": "run-1",
                    "RUNNER_ATTEMPT": str(attempt),
                    "RUNNER_CHECKPOINT_DIR": str(folder / "checkpoints"),
                    "STOP": stop,
                    **more,
                },
                cwd=folder / "code",
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            code = process.wait()
            with suppress(ProcessLookupError):  # as the agent does
                os.killpg(process.pid, signal.SIGKILL)
        told = (folder / "stderr").read_text()
        if "No module named" in told:
            pytest.skip(told.splitlines()[-1])
        if not stop:
            assert code == 0, told
        assert ("resumes" in told.replace("resumes after an eviction", "")) == (attempt > 1)
        lines.append(((folder / "stdout").read_text().splitlines() or [""])[-1])
    return lines


@pytest.mark.feature(33)
def test_plain_fit_of_keras_resumes_bit_exactly(tmp_path: Path) -> None:
    python = keras_python()
    if python is None:
        pytest.skip("no environment with Keras yet: the end-to-end tests make it")
    calm = ends(str(python), "keras_fit.py", tmp_path / "calm", [""])
    stopped = ends(str(python), "keras_fit.py", tmp_path / "stopped", ["23", "30", ""])
    assert stopped[-1] == calm[-1]
    assert calm[-1].startswith("4 ")


@pytest.mark.parametrize(
    ("program", "variable"),
    [("keras2_fit.py", "KERAS2_PYTHON"), ("chainer_trainer.py", "CHAINER_PYTHON")],
)
@pytest.mark.feature(33)
def test_plain_trainings_of_old_frameworks_resume_bit_exactly(
    tmp_path: Path, program: str, variable: str
) -> None:
    python = os.environ.get(variable)
    if python is None:
        pytest.skip(f"${variable} may name an interpreter with the framework")
    calm = ends(python, program, tmp_path / "calm", [""])
    stopped = ends(python, program, tmp_path / "stopped", ["23", "30", ""])
    assert stopped[-1] == calm[-1]


def test_chainer_with_its_own_snapshots_resumes(tmp_path: Path) -> None:
    python = os.environ.get("CHAINER_PYTHON")
    if python is None:
        pytest.skip("$CHAINER_PYTHON may name an interpreter with Chainer")
    calm = ends(python, "chainer_trainer.py", tmp_path / "calm", [""], "snapshot")
    stopped = ends(python, "chainer_trainer.py", tmp_path / "stopped", ["23", ""], "snapshot")
    assert stopped[-1] == calm[-1]


@pytest.mark.parametrize("program", ["transformers_trainer.py", "lightning_trainer.py"])
def test_plain_trainers_resume_bit_exactly(tmp_path: Path, program: str) -> None:
    python = torch_python()
    if python is None:
        pytest.skip("PyTorch is not installed here; $TORCH_PYTHON may name an interpreter with it")
    calm = ends(python, program, tmp_path / "calm", [""])
    stopped = ends(python, program, tmp_path / "stopped", ["27", "25", ""])
    assert stopped[-1] == calm[-1]


@pytest.mark.parametrize("number", ["15", "9"])
@pytest.mark.parametrize(
    ("program", "launcher"),
    [
        ("transformers_trainer.py", " -m torch.distributed.run --standalone --nproc-per-node 2"),
        ("lightning_trainer.py", " -m torch.distributed.run --standalone --nproc-per-node 2"),
        ("lightning_trainer.py", ""),
    ],
)
@pytest.mark.feature(33)
def test_trainings_on_two_processes_resume_bit_exactly(
    tmp_path: Path, program: str, launcher: str, number: str
) -> None:
    python = torch_python()
    if python is None:
        pytest.skip("PyTorch is not installed here; $TORCH_PYTHON may name an interpreter with it")
    more = {"RANKS": "2", "PAUSE": "0.1", "SIGNAL": number, "RUNNER_CHECKPOINT_INTERVAL": "0.3"}
    more |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    calm = ends(python + launcher, program, tmp_path / "calm", [""], **more)
    stopped = ends(python + launcher, program, tmp_path / "stopped", ["13", "12", ""], **more)
    assert stopped[-1] == calm[-1]
