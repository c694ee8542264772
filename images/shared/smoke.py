"""What the smoke tests share: tiny data, the checks, one JSON line. Runs on Python 3.5 to 3.13.

With RUNNER_REQUIRE_GPU=1 a framework that sees no GPU is a failure: builds run without one, nodes
set it. Standard library and NumPy only.
"""

import json
import math
import os
import platform
import sys
import tempfile
import time

COUNT, FEATURES, CLASSES = 256, 16, 4
STEPS = 30
TOLERANCE = 1e-5


class SmokeError(Exception):
    """The image does not do what it is for; the message says which part."""


def data(seed=0):
    """Points around one centre a class: (COUNT, FEATURES) float32 and labels as int32."""
    import numpy as np

    random = np.random.RandomState(seed)
    labels = np.arange(COUNT) % CLASSES
    centres = random.normal(0, 2, (CLASSES, FEATURES))
    points = centres[labels] + random.normal(0, 0.5, (COUNT, FEATURES))
    return points.astype("float32"), labels.astype("int32")


def largest_difference(before, after):
    """How far two predictions are apart: zero, or rounding, when a model came back whole."""
    import numpy as np

    before, after = np.asarray(before), np.asarray(after)
    if before.shape != after.shape:
        raise SmokeError(
            "reload: the model answers {} instead of {}".format(after.shape, before.shape)
        )
    return float(np.max(np.abs(before - after)))


def check(report, require_gpu):
    """Raise SmokeError when `report` (see `run`) shows something broken."""
    losses = report["losses"]
    if not all(math.isfinite(loss) for loss in losses):
        raise SmokeError("train: the loss is not a number: {}".format(losses))
    if not losses[-1] < losses[0] * 0.5:
        raise SmokeError(
            "train: the loss went from {:.4f} to {:.4f} in {} steps".format(
                losses[0], losses[-1], len(losses)
            )
        )
    if not report["reload_difference"] <= TOLERANCE:
        raise SmokeError(
            "reload: predictions of the reloaded model differ by {}".format(
                report["reload_difference"]
            )
        )
    if require_gpu and not report["gpu"]:
        raise SmokeError(
            "device: RUNNER_REQUIRE_GPU is set and {} trained on {}".format(
                report["framework"], report["device"]
            )
        )


def run(train):
    """Call `train(folder)` and print its findings as one JSON line; the exit code.

    It returns a dict of `framework`, `version`, `device` (what it trained on), `gpu` (bool),
    `losses` (first to last step) and `reload_difference`. A broken framework raises as it likes.
    """
    require_gpu = os.environ.get("RUNNER_REQUIRE_GPU", "") not in ("", "0")
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        report = train(folder)
    report["losses"] = [float(loss) for loss in report["losses"]]
    shown = dict(report, python=platform.python_version(), seconds=round(time.time() - started, 1))
    shown["losses"] = [round(report["losses"][0], 4), round(report["losses"][-1], 4)]
    print(json.dumps(shown, sort_keys=True))
    sys.stdout.flush()
    try:
        check(report, require_gpu)
    except SmokeError as err:
        sys.stderr.write("smoke test failed: {}\n".format(err))
        return 1
    where = "a GPU" if report["gpu"] else "the CPU (no GPU is visible)"
    sys.stderr.write("smoke test passed: {} on {}\n".format(report["framework"], where))
    return 0
