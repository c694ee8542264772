"""Logistic regression by gradient descent on generated points.

It is an ordinary script, which also runs with `python train.py`. If its node is lost, it resumes
at the same epoch on another one.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np

try:
    from runner.hooks import load_state, save_state
except ImportError:  # the runner is not installed

    def load_state():
        """Return no state."""

    def save_state(state):
        """Do nothing."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--learning_rate", type=float, default=0.5)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.samples < 10:
        parser.error("at least 1 epoch and 10 samples are needed")
    return arguments


def make_points(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of two overlapping clouds, and their labels 0 and 1."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, samples)
    centres = np.array([[-1.0, 0.5], [1.0, -0.5]])
    return centres[labels] + random.normal(0, 0.8, (samples, 2)), labels


def measure(points: np.ndarray, labels: np.ndarray, weights: np.ndarray, bias: float) -> float:
    """Return the share of points that are classified correctly."""
    return float(((points @ weights + bias > 0) == labels).mean())


def main() -> None:
    """Train on four fifths of the points, evaluate on the rest, and write the model."""
    arguments = parse_arguments()
    points, labels = make_points(arguments.samples, arguments.seed)
    split = arguments.samples * 4 // 5
    state = load_state() or {"epoch": 0, "weights": np.zeros(2), "bias": 0.0}
    weights, bias = state["weights"], state["bias"]
    for epoch in range(state["epoch"] + 1, arguments.epochs + 1):
        chance = 1 / (1 + np.exp(-(points[:split] @ weights + bias)))
        error = chance - labels[:split]
        weights -= arguments.learning_rate * points[:split].T @ error / split
        bias -= arguments.learning_rate * error.mean()
        right = np.where(labels[:split] == 1, chance, 1 - chance)
        accuracy = measure(points[split:], labels[split:], weights, bias)
        print(f"epoch {epoch} loss={-np.log(right).mean():.4f} accuracy={accuracy:.4f}")
        save_state({"epoch": epoch, "weights": weights, "bias": bias})

    output = Path(os.environ.get("RUNNER_OUTPUT_DIR", "output"))
    output.mkdir(parents=True, exist_ok=True)
    accuracy = measure(points[split:], labels[split:], weights, bias)
    model = {"weights": weights.tolist(), "bias": float(bias), "accuracy": accuracy}
    (output / "model.json").write_text(json.dumps(model))


if __name__ == "__main__":
    main()
