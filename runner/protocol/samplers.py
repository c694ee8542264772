"""The samplers of sweeps, which choose the parameters of a trial when it starts.

A sampler is a class here with an entry of `SAMPLERS`, and its name in `Method`. Client and agent
read what it needs from the class. To draw, the agent runs this source with the sampler's packages:
it reads one JSON document from stdin and writes the parameters to stdout. So this module imports
nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

Method = Literal["grid", "random", "tpe"]  # `grid` and `random` are known at the submission


class Sampler(ABC):
    """A method that chooses the parameters of each trial when it starts.

    Attributes:
        help: How it chooses, for the help of `--method`.
        packages: What to install for it, as in requirements.txt.
        random_trials: Number of trials with a value of the metric before it is asked; until then,
            parameters are random. 0 if it needs no metric.
    """

    help: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    random_trials: ClassVar[int] = 10

    @abstractmethod
    def choose(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a trial.

        Args:
            task: `space`, the dimensions, in an order in which conditions only refer to earlier
                ones; `draw`, random values for all of them; `trials`, each with `params`, `state`
                and `curve`; `goal`; and `seed`, another one for each trial.
        """


class Tpe(Sampler):
    """Optuna's TPE. Its study is not stored, but rebuilt from the reports of the trials."""

    help = "learns from results"
    packages = ("optuna==5.0.0",)

    def choose(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a trial; see `Sampler.choose`."""
        optuna: Any = importlib.import_module("optuna")  # only this environment has it
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study: Any = optuna.create_study(
            direction="maximize" if task["goal"] == "max" else "minimize",
            sampler=optuna.samplers.TPESampler(seed=task["seed"]),
        )
        for trial in task["trials"]:
            if (known := _frozen(optuna, task["space"], trial)) is not None:
                study.add_trial(known)
        asked = study.ask()
        params: dict[str, Any] = {}
        for dimension in task["space"]:
            if not _applies(dimension, params):
                continue
            names = dimension["names"]
            distribution = _distribution(optuna, dimension)
            if distribution is None:
                params.update({name: task["draw"][name] for name in names if name in task["draw"]})
                continue
            value = asked._suggest(",".join(names), distribution)
            if dimension["kind"] == "rows":
                params.update(zip(names, json.loads(value)))  # noqa: B905  runs on Python 3.10
            else:
                params[names[0]] = value if dimension["kind"] == "integers" else _rounded(value)
        return params


SAMPLERS: dict[str, Sampler] = {"tpe": Tpe()}
DEFAULT_SAMPLER: Method = "tpe"
SAMPLER_NAMES = " or ".join(SAMPLERS)


def learns(method: str | None) -> bool:
    """Return True for a sampler that needs values of a metric."""
    return method in SAMPLERS and SAMPLERS[method].random_trials > 0


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _applies(dimension: dict[str, Any], params: dict[str, Any]) -> bool:
    return all(name in params and params[name] in values for name, values in dimension["when"])


def _distribution(optuna: Any, dimension: dict[str, Any]) -> Any:
    """Return Optuna's distribution for a dimension, or None if there is none."""
    kind, known = dimension["kind"], optuna.distributions
    if kind == "rows":
        return known.CategoricalDistribution([json.dumps(row) for row in dimension["rows"]])
    if kind == "integers":
        return known.IntDistribution(int(dimension["low"]), int(dimension["high"]))
    if kind in ("uniform", "loguniform"):
        low, high = dimension["low"], dimension["high"]
        return known.FloatDistribution(low, high, log=kind == "loguniform")
    return None


def _frozen(optuna: Any, space: list[dict[str, Any]], trial: dict[str, Any]) -> Any:
    """Return a trial in Optuna's format, or None if the sampler cannot use it."""
    state, curve = trial["state"], [(step, value) for step, value in trial["curve"]]
    finite = [(step, value) for step, value in curve if math.isfinite(value)]
    states = optuna.trial.TrialState
    if state == "succeeded" and finite:
        kind, value = states.COMPLETE, finite[-1][1]
    elif state == "stopped" and finite:
        kind, value = states.PRUNED, finite[-1][1]
    elif state == "running":
        kind, value = states.RUNNING, None
    elif state in ("failed", "succeeded", "stopped"):
        kind, value = states.FAIL, None
    else:
        return None
    params: dict[str, Any] = {}
    distributions: dict[str, Any] = {}
    for dimension in space:
        names = dimension["names"]
        distribution = _distribution(optuna, dimension)
        if distribution is None or not all(name in trial["params"] for name in names):
            continue
        values = [trial["params"][name] for name in names]
        name = ",".join(names)
        params[name] = json.dumps(values) if dimension["kind"] == "rows" else values[0]
        distributions[name] = distribution
    try:
        return optuna.trial.create_trial(
            state=kind,
            params=params,
            distributions=distributions,
            value=value,
            intermediate_values=dict(finite),
        )
    except ValueError:  # the space was changed, and the parameters are outside of it
        return None


if __name__ == "__main__":
    stdin = json.loads(sys.stdin.read())
    json.dump(SAMPLERS[stdin["sampler"]].choose(stdin), sys.stdout)
