"""Train, save and reload a tiny Keras model on JAX."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
os.environ["KERAS_BACKEND"] = "jax"

import smoke


def train(folder):
    """Train a small network, and save it in `folder`. See `smoke.run`."""
    import jax
    import keras

    keras.utils.set_random_seed(0)
    points, labels = smoke.data()
    model = keras.Sequential(
        [
            keras.layers.Input((smoke.FEATURES,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(smoke.CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    done = model.fit(points, labels, batch_size=smoke.COUNT, epochs=smoke.STEPS, verbose=0)
    before = model.predict(points, verbose=0)
    path = Path(folder) / "model.keras"
    model.save(path)
    after = keras.models.load_model(path).predict(points, verbose=0)
    device = jax.devices()[0]
    return {
        "framework": "keras-jax",
        "version": "keras {}, jax {}".format(keras.__version__, jax.__version__),
        "device": device.device_kind,
        "gpu": device.platform == "gpu",
        "losses": done.history["loss"],
        "reload_difference": smoke.largest_difference(before, after),
    }


if __name__ == "__main__":
    sys.exit(smoke.run(train))
