"""Train, save and reload a tiny CNTK model. Python 3.5: no f-strings, no annotations."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "shared"))

import smoke


def train(folder):
    """Train a small network, and save it in `folder`. See `smoke.run`."""
    import cntk
    import numpy as np

    cntk.cntk_py.set_fixed_random_seed(1)
    gpus = [one for one in cntk.device.all_devices() if one.type() == cntk.device.DeviceKind.GPU]
    device = gpus[0] if gpus else cntk.device.cpu()
    cntk.device.try_set_default_device(device)
    points, labels = smoke.data()
    wanted = np.eye(smoke.CLASSES, dtype="float32")[labels]
    features = cntk.input_variable(smoke.FEATURES)
    target = cntk.input_variable(smoke.CLASSES)
    model = cntk.layers.Sequential(
        [cntk.layers.Dense(32, activation=cntk.relu), cntk.layers.Dense(smoke.CLASSES)]
    )(features)
    loss = cntk.cross_entropy_with_softmax(model, target)
    rate = cntk.learning_parameter_schedule(0.05)
    learner = cntk.adam(model.parameters, rate, cntk.momentum_schedule(0.9), unit_gain=False)
    trainer = cntk.Trainer(model, (loss, cntk.classification_error(model, target)), [learner])
    losses = []
    for _ in range(smoke.STEPS):
        trainer.train_minibatch({features: points, target: wanted})
        losses.append(trainer.previous_minibatch_loss_average)
    path = os.path.join(folder, "model.dnn")
    model.save(path)
    reloaded = cntk.load_model(path)
    difference = smoke.largest_difference(model.eval(points), reloaded.eval(points))
    return {
        "framework": "cntk",
        "version": cntk.__version__,
        "device": cntk.device.get_gpu_properties(device).name if gpus else "cpu",
        "gpu": bool(gpus),
        "losses": losses,
        "reload_difference": difference,
    }


if __name__ == "__main__":
    sys.exit(smoke.run(train))
