"""What the script here uses of CNTK: it prints and writes as CNTK does."""

import sys
import time
import types

from small_network import Network, pooled, wait_for_eviction

layers = losses = metrics = learners = logging = io = sys.modules[__name__]
INFINITELY_REPEAT = -1


def input_variable(shape):
    return object()


class Convolution2D:
    def __init__(self, shape, filters):
        pass


class Dense:
    def __init__(self, size):
        pass


class Sequential:
    parameters = ()

    def __init__(self, parts):
        self.network = Network()

    def __call__(self, x):
        return self

    def save(self, path):
        self.network.save(path)


def cross_entropy_with_softmax(z, y):
    return "loss"


def classification_error(z, y):
    return "metric"


def sgd(parameters, lr):
    return lr


class ProgressPrinter:
    def __init__(self, tag, num_epochs):
        self.tag, self.epochs = tag, num_epochs


class StreamDef:
    def __init__(self, field, shape):
        self.field = field


def StreamDefs(**streams):
    return types.SimpleNamespace(**streams)


class CTFDeserializer:
    """Reads lines of `|labels 0 1 ... |features 0 255 ...`."""

    def __init__(self, path, streams):
        self.examples = []
        for line in open(path):
            _, labels, features = line.split("|")
            pixels = [int(value) for value in features.split()[1:]]
            self.examples.append((pooled(pixels), labels.split()[1:].index("1")))


class MinibatchSource:
    def __init__(self, deserializer, randomize, max_sweeps):
        self.streams = types.SimpleNamespace(features=0, labels=1)
        self.examples, self.at = deserializer.examples, 0

    def next_minibatch(self, size, input_map):
        found = [self.examples[(self.at + n) % len(self.examples)] for n in range(size)]
        self.at += size
        counted = types.SimpleNamespace(num_samples=len(found))
        return {**dict.fromkeys(input_map, counted), "examples": found}


class Trainer:
    def __init__(self, z, criteria, learner, printer):
        self.network, self.printer = z.network, printer
        self.epoch, self.seen, self.began = 0, [], time.time()

    def train_minibatch(self, data):
        found = data["examples"]
        self.seen.append((*self.network.train(found), len(found)))

    def summarize_training_progress(self):
        self.epoch += 1
        total = sum(size for _, _, size in self.seen)
        loss = sum(loss * size for loss, _, size in self.seen) / total
        error = 100 - 100 * sum(hits * size for _, hits, size in self.seen) / total
        print(
            "Finished Epoch[%d of %d]: [%s] loss = %.6f * %d, metric = %.2f%% * %d %.3fs (%.1f samples/s);"
            % (
                self.epoch,
                self.printer.epochs,
                self.printer.tag,
                loss,
                total,
                error,
                total,
                1,
                total,
            ),
            flush=True,
        )
        self.seen = []
        if self.epoch > 1:  # the first epoch is saved
            wait_for_eviction()

    def test_minibatch(self, data):
        self.tested = data["examples"]

    def summarize_test_progress(self):
        _, hits = self.network.test(self.tested)
        shown = 100 - 100 * hits, len(self.tested)
        print("Finished Evaluation [1]: Minibatch[1-1]: metric = %.2f%% * %d;" % shown)
