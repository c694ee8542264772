"""A network on MNIST with the habits of Azure ML's Keras sample: `--data-folder`, `./outputs/model`."""

import argparse
import gzip
import os
import struct

import keras
import numpy as np
from azureml.core import Run
from keras.callbacks import Callback
from keras.layers import Dense
from keras.models import Sequential

parser = argparse.ArgumentParser()
parser.add_argument(
    "--data-folder", type=str, dest="data_folder", help="data folder mounting point"
)
parser.add_argument("--batch-size", type=int, dest="batch_size", default=50)
parser.add_argument("--first-layer-neurons", type=int, dest="n_hidden_1", default=100)
parser.add_argument("--learning-rate", type=float, dest="learning_rate", default=0.001)
args = parser.parse_args()
data_folder = args.data_folder
print("training dataset is stored here:", data_folder)


def load_data(filename, label=False):
    with gzip.open(filename) as gz:
        gz.read(4)
        (items,) = struct.unpack(">I", gz.read(4))
        if label:
            return np.frombuffer(gz.read(items), dtype=np.uint8)
        rows, cols = struct.unpack(">II", gz.read(8))
        return np.frombuffer(gz.read(items * rows * cols), dtype=np.uint8).reshape(items, 784)


X_train = load_data(os.path.join(data_folder, "train-images.gz")) / 255.0
X_test = load_data(os.path.join(data_folder, "test-images.gz")) / 255.0
y_train = keras.utils.to_categorical(
    load_data(os.path.join(data_folder, "train-labels.gz"), True), 10
)
y_test = keras.utils.to_categorical(
    load_data(os.path.join(data_folder, "test-labels.gz"), True), 10
)

run = Run.get_context()


class LogRunMetrics(Callback):
    def on_epoch_end(self, epoch, log):
        run.log("Loss", log["val_loss"])


model = Sequential()
model.add(Dense(args.n_hidden_1, activation="relu", input_shape=(784,)))
model.add(Dense(10, activation="softmax"))
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(
    X_train,
    y_train,
    batch_size=args.batch_size,
    epochs=3,
    verbose=2,
    validation_data=(X_test, y_test),
    callbacks=[LogRunMetrics()],
)
score = model.evaluate(X_test, y_test, verbose=0)
run.log("Final test loss", score[0])
run.log("Final test accuracy", score[1])

# Files in ./outputs are uploaded at the end of the run.
os.makedirs("./outputs/model", exist_ok=True)
with open("./outputs/model/model.json", "w") as f:
    f.write(model.to_json())
model.save_weights("./outputs/model/model.weights.h5")
