"""Interrupt trainings with PyTorch, and compare with the uninterrupted result.

`python torch_program.py FOLDER` with an interpreter that has PyTorch prints a JSON object.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from runner.hooks.torch import Checkpoint

np: Any = importlib.import_module("numpy")
torch: Any = importlib.import_module("torch")
nn: Any = torch.nn
EPOCHS = 4


class StoppedError(Exception):
    """Interrupts the training like a kill."""


class Points(torch.utils.data.Dataset):
    """Items that depend on three random generators."""

    def __init__(self) -> None:
        chance = torch.Generator().manual_seed(0)
        self.points = torch.randn(160, 8, generator=chance)
        self.labels = (self.points.sum(1) > 0).long()

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> Any:
        noise = 0.1 * torch.randn(8) + 0.01 * float(np.random.rand()) + 0.01 * random.random()
        return self.points[index] + noise, self.labels[index]


def train(folder: Path | None, stops: list[Any], *, workers: int, own: bool) -> Any:
    """Return the model's state; restart after each stop. `own` gives the loader a generator."""
    for stop in [*stops, None]:
        torch.manual_seed(1)
        np.random.seed(2)
        random.seed(3)
        model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 2)
        )
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
        loader = torch.utils.data.DataLoader(
            Points(),
            16,
            shuffle=True,
            num_workers=workers,
            generator=torch.Generator().manual_seed(9) if own else None,
        )
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        try:
            with Checkpoint(folder, interval_s=0, **parts) as training:
                for epoch in training.epochs(EPOCHS):
                    for points, labels in training.batches(loader):
                        if (epoch, training.step) == stop:
                            raise StoppedError
                        optimizer.zero_grad()
                        nn.functional.cross_entropy(model(points), labels).backward()
                        optimizer.step()
                    scheduler.step()
        except StoppedError:
            continue
        return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    raise AssertionError("every start was stopped")


def main() -> None:
    """Try all cases, each with several stops."""
    folder, same = Path(sys.argv[1]), dict[str, bool]()
    for workers in (0, 2):
        for own in (False, True):
            how: dict[str, Any] = {"workers": workers, "own": own}
            calm = train(None, [], **how)
            for stops in ([(0, 1), (1, 3), (1, 5), (2, 0)], [(1, 0), (3, 9), (3, 9)]):
                name = f"{how}, stopped at {stops}"
                same[name] = train(folder / str(len(same)), stops, **how) == calm
                again = train(folder / str(len(same) - 1), [], **how)
                same[f"{name}, begun after its end"] = again == calm
    sys.stdout.write(json.dumps(same))


if __name__ == "__main__":
    main()
