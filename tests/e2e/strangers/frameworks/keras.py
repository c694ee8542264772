"""What the scripts here use of Keras: it prints and writes as Keras does."""

import json
import os
import sys
import time

from small_network import Network, pooled, wait_for_eviction

__path__ = []
utils = sys.modules[__name__]
for name in ("callbacks", "layers", "models", "utils"):
    sys.modules["keras." + name] = sys.modules[__name__]


def to_categorical(labels, classes):
    return list(labels.data)


class Callback:
    def on_epoch_end(self, epoch, log):
        pass


class Layer:
    def __init__(self, *args, **options):
        self.name = type(self).__name__


class Conv2D(Layer):
    pass


class MaxPooling2D(Layer):
    pass


class Dropout(Layer):
    pass


class Flatten(Layer):
    pass


class Dense(Layer):
    pass


class Sequential:
    def __init__(self):
        self.layers, self.network = [], Network()

    def add(self, layer):
        self.layers.append(layer)

    def compile(self, loss, optimizer, metrics):
        assert metrics == ["accuracy"]

    def fit(self, x, y, batch_size, epochs, verbose, validation_data, callbacks=()):
        examples = list(zip(map(pooled, x.rows()), y))
        for epoch in range(epochs):
            print("Epoch %d/%d" % (epoch + 1, epochs), flush=True)
            began = time.time()
            loss, accuracy = self.network.train(examples)
            val_loss, val_accuracy = self.evaluate(*validation_data)
            took = "%.0fs" % (time.time() - began)
            shown = "loss: %.4f - accuracy: %.4f" % (loss, accuracy)
            more = " - val_loss: %.4f - val_accuracy: %.4f" % (val_loss, val_accuracy)
            batches = "%d/%d" % (((len(x) - 1) // batch_size + 1,) * 2)
            if verbose == 1:
                for each in (shown, shown + more):
                    bar = batches + " [==============================] - " + took + " 2ms/step - "
                    print("\b" * 80 + "\r" + bar + each, end="")
                print(flush=True)
            else:
                print(batches + " - " + took + " - " + shown + more, flush=True)
            log = {"loss": loss, "accuracy": accuracy}
            for each in callbacks:
                each.on_epoch_end(
                    epoch, {**log, "val_loss": val_loss, "val_accuracy": val_accuracy}
                )
            wait_for_eviction()

    def evaluate(self, x, y, verbose=0):
        return self.network.test(list(zip(map(pooled, x.rows()), y)))

    def to_json(self):
        return json.dumps([layer.name for layer in self.layers])

    def save_weights(self, path):
        self.network.save(path)

    def save(self, path):
        self.network.save(os.fspath(path))
