"""A Chainer Trainer without code for runner. Kills itself at $STOP; prints a weights digest."""

import hashlib
import os
import signal
import sys

import chainer
import numpy as np
from chainer import functions, links, training
from chainer.training import extensions

np.random.seed(0)


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden, self.last = links.Linear(None, 16), links.Linear(None, 2)

    def forward(self, x):
        return self.last(functions.dropout(functions.relu(self.hidden(x)), 0.2))


x = np.random.normal(size=(400, 20)).astype("float32")
data = chainer.datasets.TupleDataset(x, (x.sum(1) > 0).astype("int32"))
iterator = chainer.iterators.SerialIterator(data, 20)
model = links.Classifier(Net())
optimizer = chainer.optimizers.Adam()
optimizer.setup(model)
updater = training.updaters.StandardUpdater(iterator, optimizer)
trainer = training.Trainer(updater, (4, "epoch"), out="result")


@training.make_extension(trigger=(1, "iteration"))
def killed(trainer):
    killed.iterations = getattr(killed, "iterations", 0) + 1
    if str(killed.iterations) == os.environ.get("STOP"):
        os.kill(os.getpid(), signal.SIGTERM)


trainer.extend(killed)
if "snapshot" in sys.argv:
    trainer.extend(extensions.snapshot(), trigger=(1, "epoch"))
trainer.extend(extensions.LogReport(), trigger=(1, "epoch"))
trainer.run()
weights = b"".join(value.array.tobytes() for _, value in sorted(model.namedparams()))
log = [entry["main/loss"] for entry in trainer.get_extension("LogReport").log]
print(updater.iteration, hashlib.sha256(weights).hexdigest(), log)
