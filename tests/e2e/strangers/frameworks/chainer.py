"""What the script here uses of Chainer: it prints and writes as Chainer does."""

import contextlib
import json
import os
import sys
import time

import numpy
from small_network import Network, pooled, wait_for_eviction

__path__ = []
this = datasets = functions = iterators = links = optimizers = serializers = sys.modules[__name__]
training = extensions = updaters = this
for name in ("functions", "links", "training", "training.extensions"):
    sys.modules["chainer." + name] = this


class Chain:
    @contextlib.contextmanager
    def init_scope(self):
        yield


def relu(x):
    return x


class Linear:
    def __init__(self, n_in, n_out):
        pass


class Classifier:
    def __init__(self, predictor):
        self.predictor, self.network = predictor, Network()


class Adam:
    def setup(self, model):
        self.model = model


def get_mnist():
    found = numpy.load(os.path.join(os.path.dirname(__file__), "mnist.npz"))
    return tuple(
        list(zip(map(pooled, found["x_" + part].rows()), found["y_" + part].data))
        for part in ("train", "test")
    )


class SerialIterator:
    def __init__(self, dataset, batch_size, repeat=True, shuffle=True):
        self.dataset = dataset


class StandardUpdater:
    def __init__(self, iterator, optimizer):
        self.iterator, self.model = iterator, optimizer.model


class Evaluator:
    def __init__(self, iterator, target):
        self.iterator = iterator


class LogReport:
    pass


class PrintReport:
    def __init__(self, entries):
        self.entries = entries
        self.widths = [max(10, len(entry)) for entry in entries]

    def show(self, row):
        cells = ["%-*.6g" % (w, row[e]) for e, w in zip(self.entries, self.widths)]
        return "  ".join(cells)

    def title(self):
        return "  ".join("%-*s" % (w, e) for e, w in zip(self.entries, self.widths))


class Trainer:
    def __init__(self, updater, stop_trigger, out):
        self.updater, self.epochs, self.out = updater, stop_trigger[0], out
        self.extensions = {}

    def extend(self, extension):
        self.extensions[type(extension)] = extension

    def run(self):
        os.makedirs(self.out, exist_ok=True)
        began, log, report = time.time(), [], self.extensions[PrintReport]
        print(report.title())
        network = self.updater.model.network
        for epoch in range(1, self.epochs + 1):
            loss, accuracy = network.train(self.updater.iterator.dataset)
            val_loss, val_accuracy = network.test(self.extensions[Evaluator].iterator.dataset)
            self.observation = {"validation/main/loss": val_loss}
            self.observation["validation/main/accuracy"] = val_accuracy
            log.append({"main/loss": loss, "main/accuracy": accuracy, "epoch": epoch})
            log[-1].update(self.observation, elapsed_time=time.time() - began)
            with open(os.path.join(self.out, "log"), "w") as file:
                json.dump(log, file, indent=4)
            print("\033[J" + report.show(log[-1]), flush=True)
            wait_for_eviction()


def save_npz(path, model):
    model.network.save(path)
