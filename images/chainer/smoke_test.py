"""Train, save and reload a tiny Chainer model. Python 3.8."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
# Chainer requires CuPy 7, which has no CUDA 11. 7.8 also runs on CuPy 9 (its release notes).
os.environ.setdefault("CHAINER_WARN_VERSION_MISMATCH", "0")

import smoke


def train(folder):
    """Train a small network, and save its weights in `folder`. See `smoke.run`."""
    import chainer
    import numpy as np

    np.random.seed(0)
    gpu = chainer.backends.cuda.available
    points, labels = smoke.data()
    model = network(chainer)
    if gpu:
        model.to_device("@cupy:0")
        points, labels = (chainer.backends.cuda.to_gpu(part) for part in (points, labels))
    optimizer = chainer.optimizers.Adam(alpha=0.01).setup(model)
    losses = []
    for _ in range(smoke.STEPS):
        loss = chainer.functions.softmax_cross_entropy(model(points), labels)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    path = str(Path(folder) / "model.npz")
    chainer.serializers.save_npz(path, model)
    reloaded = network(chainer)
    chainer.serializers.load_npz(path, reloaded)
    if gpu:
        reloaded.to_device("@cupy:0")
    answers = [chainer.backends.cuda.to_cpu(each(points).array) for each in (model, reloaded)]
    return {
        "framework": "chainer",
        "version": chainer.__version__,
        "device": gpu_name() if gpu else "cpu",
        "gpu": gpu,
        "losses": losses,
        "reload_difference": smoke.largest_difference(*answers),
    }


def network(chainer):
    """Return the layers, without weights."""
    links = chainer.links
    return chainer.Sequential(
        links.Linear(smoke.FEATURES, 32), chainer.functions.relu, links.Linear(32, smoke.CLASSES)
    )


def gpu_name():
    """Return the name of the GPU from CUDA."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"]
    return name.decode() if isinstance(name, bytes) else name


if __name__ == "__main__":
    sys.exit(smoke.run(train))
