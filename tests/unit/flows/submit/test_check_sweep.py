"""What a sweep writes into the run specification of each trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.core.recipe.recipe import load_recipe
from runner.core.recipe.sweep import SweepFile
from runner.flows.submit.prepare import TrainOptions
from runner.flows.submit.sweep import check_sweep
from runner.protocol.errors import RunnerError
from runner.protocol.sweeps import StopRule, TrialSpec

DRAWN = {"lr": {"uniform": [0, 1]}}


def trial_of(folder: Path, keys: dict[str, Any], recipe: str = "") -> TrialSpec:
    (folder / "train.py").write_text("print('loss: 1')\n")
    (folder / "train.yaml").write_text(f"command: python train.py\n{recipe}")
    sweep = SweepFile.model_validate({"params": DRAWN, "trials": 3, **keys})
    checked = check_sweep(load_recipe(str(folder), cwd=folder), sweep, TrainOptions())
    assert list(checked.runs) == ["1", "2", "3"]
    return TrialSpec.from_json(checked.runs["2"].request.trial or {})


def test_trial_has_the_metric_the_sampler_and_its_space(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, {"metric": "loss", "seed": 4})
    assert (trial.name, trial.number, trial.metric, trial.goal) == ("2", 2, "loss", "min")
    assert (trial.sampler, trial.decided, trial.seed) == ("tpe", False, 4)
    assert trial.early_stop == StopRule("median")
    assert [each["names"] for each in trial.space] == [["lr"]]


def test_without_a_metric_trials_are_drawn_and_nothing_stops_them(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, {})
    assert (trial.sampler, trial.decided, trial.early_stop) == (None, True, None)
    assert 0 <= trial.params["lr"] <= 1


def test_declared_parameters_keep_their_defaults_for_trials_without_a_value(
    tmp_path: Path,
) -> None:
    recipe = "params: {lr: {type: float, default: 0.5}}\nmetrics: {primary: auc, goal: max}\n"
    trial = trial_of(tmp_path, {}, recipe)
    assert (trial.defaults, trial.metric, trial.goal) == ({"lr": 0.5}, "auc", "max")


def test_trials_on_several_nodes_are_drawn(tmp_path: Path) -> None:
    nodes = "resources: {nodes: 2}\n"
    trial = trial_of(tmp_path, {"metric": "loss"}, nodes)
    assert (trial.sampler, trial.early_stop) == (None, None)
    for keys in ({"method": "tpe"}, {"early_stop": "median"}):
        with pytest.raises(RunnerError, match="with 2 nodes"):
            trial_of(tmp_path, {"metric": "loss", **keys}, nodes)
