"""Projects as people publish them: layout, arguments and data folders. One command trains each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli

LAYOUTS = Path(__file__).parent / "strangers" / "layouts"


@dataclass(frozen=True)
class Layout:
    """The words after `runner train`, and what the run must print, keep and report.

    Attributes:
        words: Written in the folder of the project.
        prints: A part of the standard output.
        outputs: Patterns of the files that the run keeps.
        metrics: Names of some of the metrics.
        before: A program of the project that its owner has run in the folder.
        project: The folder, if several rows use it.
    """

    words: tuple[str, ...]
    prints: str
    outputs: tuple[str, ...]
    metrics: frozenset[str] = frozenset()
    before: str = ""
    project: str = ""


ROWS: Mapping[str, Layout] = {
    "config_file": Layout(
        (".", "--", "-c", "config.json", "--lr", "0.01"), "", ("saved/models/Line/*/*.pkl",),
    ),
    "exec_config": Layout(
        (
            *(".", "--entry", "train.py", "--", "config/small.py", "--max_iters=4"),
        ),
        "iter 3: loss", ("out-small/ckpt.pkl",), frozenset({"loss"}),
        before="data/chars/prepare.py",
    ),
    "src_package": Layout(
        (".", "--entry", "churn.train", "--set", "out=models"), "accuracy: 1.000",
        ("models/model.json",), frozenset({"accuracy"}),
    ),
    "notebook_and_package": Layout(
        (".", "--entry", "demo.ipynb"), "step 4 loss", ("demo.ipynb", "weights.txt"),
        frozenset({"loss"}),
    ),
    "params_and_stages": Layout(
        (".", "--entry", "src/train.py", "--", "data/features", "model.pkl"), "", ("model.pkl",),
    ),
    "positional_csv": Layout(
        (".", "--", "0.5"), "Elasticnet model", ("mlruns/0/model.txt",), frozenset({"rmse", "mae"}),
    ),
    "sibling_data": Layout(
        (".", "--entry", "python-guide/simple_example.py"), "Saving model...", ("model.txt",),
    ),
    "nested_script": Layout(
        (".", "--entry", "implementations/gan/gan.py", "--set", "n_epochs=2"),
        "no_cuda=False", ("images/0.png",),
    ),
    "nested_script, flag": Layout(
        (
            *(".", "--entry", "implementations/gan/gan.py", "--set", "n_epochs=1"),
            *("--set", "no_cuda=true"),
        ),
        "no_cuda=True", ("images/0.png",), project="nested_script",
    ),
    "shell_launcher": Layout(
        (".", "--entry", "scripts/train.sh", "--env", "EPOCHS=3"), "epoch 2 loss 0.333",
        ("runs/exp/last.pt", "train.log"), frozenset({"loss"}),
    ),
    "flags_without_values": Layout(
        (
            *(".", "--set", "epochs=2", "--set", "dry-run=true", "--set", "save-model=true"),
            *("--set", "no-accel=false"),
        ),
        "Accuracy: 9002/10000", ("digits.pt",),
    ),
    "program_and_functions": Layout((".",), "weight 2.9", ("weight.txt",)),
    "hyperparameter_files": Layout(
        (".", "--set", "algo=ppo"), "ep_rew_mean | 30.0",
        ("logs/ppo/CartPole-v1_1/best_model.zip", "logs/ppo/CartPole-v1_1/progress.csv"),
    ),
    "own_module_names": Layout((".",), "epoch 1 loss 0.25", ("model.bin",), frozenset({"loss"})),
    "own_module_names, notebook": Layout(
        (".", "--entry", "explore.ipynb"), "epochs 2", ("explore.ipynb", "after.txt"),
        project="own_module_names",
    ),
    "package_and_projects": Layout(
        (
            *(".", "--entry", "projects/sums/sums.py", "--env", "PYTHONPATH=."),
            *("--", "--rounds=3"),
        ),
        "round 2 loss: 0.00", ("out/sums/model.json",), frozenset({"loss"}),
    ),
    "progress_bar": Layout((".",), "Loss: 0.0", ("checkpoint/ckpt.txt",)),
    "archives_its_code": Layout((".",), "loss 0.5", ("experiments/exp0/code.zip",)),
}  # fmt: skip


def copy_project(name: str, parent: Path) -> Path:
    """Copy a project below a folder, with its `.gitignore`. Return the copy."""
    project = parent / name
    shutil.copytree(LAYOUTS / name, project, ignore=shutil.ignore_patterns("__pycache__"))
    ignored = project / "gitignore"  # another name, so that our own git does not use it
    if ignored.exists():
        ignored.rename(project / ".gitignore")
    return project


@pytest.mark.feature(13)
@pytest.mark.parametrize("name", ROWS)
def test_published_layout_trains_unchanged(cli: Cli, tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    project = copy_project(row.project or name, tmp_path)
    if row.before:
        subprocess.run([sys.executable, project / row.before], cwd=project, check=True)
    inside = Cli(cli.home, project)
    done = inside.run("train", "--no-download", *row.words)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert row.prints in done.stdout
    shown = inside.json("show", "@last")
    kept = [each["path"] for each in inside.json("files", "ls", shown["run_id"])]
    for pattern in row.outputs:
        assert any(Path(path).match(pattern) for path in kept), (pattern, kept)
    assert row.metrics <= {each["name"] for each in shown["metrics"]}


def test_published_layout_that_cannot_run_is_refused_with_the_option(
    cli: Cli, tmp_path: Path
) -> None:
    inside = Cli(cli.home, copy_project("package_and_projects", tmp_path))
    chosen = inside.run("train", ".")
    assert chosen.returncode == 2
    assert "--entry projects/sums/sums.py" in chosen.stderr
    refused = inside.run("train", ".", "--entry", "projects/sums/sums.py")
    assert refused.returncode == 2
    assert "add --env PYTHONPATH=." in refused.stderr


def test_program_that_needs_a_terminal_is_explained_with_the_command(
    cli: Cli, tmp_path: Path
) -> None:
    project = copy_project("progress_bar", tmp_path)
    written = (project / "train.yaml").read_text()
    (project / "train.yaml").unlink()
    inside = Cli(cli.home, project)
    assert inside.run("train", ".").returncode == 1
    found = inside.json("why", "@last")
    assert found["cause"] == "TerminalMissing"
    assert f"`{written.strip()}`" in found["fix"]
