"""Data and checks for the smoke tests. Runs on Python 3.5 to 3.13.

With RUNNER_REQUIRE_GPU=1, a test fails if its framework finds no GPU. Builds run without a GPU, so
set it on nodes only. Imports only the standard library and NumPy.
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
    """The framework in the image does not work; the message begins with the failing part."""


def data(seed=0):
    """Return points around one centre per class, float32 (COUNT, FEATURES), and int32 labels."""
    import numpy as np

    random = np.random.RandomState(seed)
    labels = np.arange(COUNT) % CLASSES
    centres = random.normal(0, 2, (CLASSES, FEATURES))
    points = centres[labels] + random.normal(0, 0.5, (COUNT, FEATURES))
    return points.astype("float32"), labels.astype("int32")


def largest_difference(before, after):
    """Return the largest absolute difference of two predictions, about 0 for the same model."""
    import numpy as np

    before, after = np.asarray(before), np.asarray(after)
    if before.shape != after.shape:
        raise SmokeError(
            "reload: predictions have the shape {} instead of {}".format(after.shape, before.shape)
        )
    return float(np.max(np.abs(before - after)))


def check(report, require_gpu):
    """Raise SmokeError if `report` (see `run`) shows a failure."""
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
            "device: RUNNER_REQUIRE_GPU is set, but {} trained on {}".format(
                report["framework"], report["device"]
            )
        )


def run(train):
    """Call `train(folder)`, print its result as one JSON line, and return the exit code.

    Args:
        train: saves its model in the folder, and returns a dict of `framework`, `version`,
            `device`, `gpu` (True if it trained on one), `losses` (of all steps) and
            `reload_difference`. Its errors are not caught.
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
