"""Fit a mean by steps, and show the progress."""

import os

from utils import progress_bar

values, mean = [1.0, 2.0, 3.0, 6.0], 0.0
for step in range(40):
    mean -= 0.1 * sum(mean - value for value in values) / len(values)
    progress_bar(step + 1, 40, f"Loss: {abs(mean - 3.0):.3f}")
os.makedirs("checkpoint", exist_ok=True)
with open("checkpoint/ckpt.txt", "w") as file:
    file.write(str(mean))
