"""Train, save and reload a tiny TensorFlow model, in Keras's format and as a SavedModel."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import smoke


def train(folder):
    """Train a small network, and save it in `folder`. See `smoke.run`."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    points, labels = smoke.data()
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((smoke.FEATURES,)),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(smoke.CLASSES),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.01), loss)
    done = model.fit(points, labels, batch_size=smoke.COUNT, epochs=smoke.STEPS, verbose=0)
    before = model.predict(points, verbose=0)
    path = Path(folder) / "model.keras"
    model.save(path)
    after = tf.keras.models.load_model(path).predict(points, verbose=0)
    model.export(Path(folder) / "saved", verbose=False)
    saved = tf.saved_model.load(Path(folder) / "saved")  # keeps its variables alive
    served = saved.serve(points)
    gpus = tf.config.list_physical_devices("GPU")
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name") if gpus else "cpu"
    return {
        "framework": "tensorflow",
        "version": "tensorflow {}, keras {}".format(tf.__version__, tf.keras.__version__),
        "device": name,
        "gpu": bool(gpus),
        "losses": done.history["loss"],
        "reload_difference": max(
            smoke.largest_difference(before, after), smoke.largest_difference(before, served)
        ),
    }


if __name__ == "__main__":
    sys.exit(smoke.run(train))
