"""A Keras 2 training without code for runner. Kills itself at $STOP; prints a weights digest."""

import hashlib
import os
import signal

try:
    import tf_keras as keras
except ImportError:
    from tensorflow import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(400, 20)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
model = keras.Sequential(
    [
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


class Killed(keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if str(self.batches) == os.environ.get("STOP"):
            os.kill(os.getpid(), signal.SIGTERM)


callbacks = [Killed(), keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.5)]
history = model.fit(x, y, epochs=4, batch_size=20, validation_split=0.1, callbacks=callbacks)
weights = b"".join(value.tobytes() for value in model.get_weights())
values = [[round(float(v), 5) for v in each] for _, each in sorted(history.history.items())]
print(len(history.history["loss"]), hashlib.sha256(weights).hexdigest(), values)
