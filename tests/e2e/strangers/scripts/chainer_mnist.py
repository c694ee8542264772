"""A network on MNIST with the habits of the Chainer estimator's sample: `--output_dir ./outputs`."""

import argparse
import os

import chainer
import chainer.functions as F
import chainer.links as L
from azureml.core.run import Run
from chainer import datasets, iterators, optimizers, serializers, training
from chainer.training import extensions

run = Run.get_context()


class MyNetwork(chainer.Chain):
    def __init__(self, n_mid_units=100, n_out=10):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, n_mid_units)
            self.l2 = L.Linear(n_mid_units, n_out)

    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))


def main():
    parser = argparse.ArgumentParser(description="Chainer example: MNIST")
    parser.add_argument("--batchsize", "-b", type=int, default=100)
    parser.add_argument("--epochs", "-e", type=int, default=20)
    parser.add_argument("--output_dir", "-o", default="./outputs")
    args = parser.parse_args()

    train, test = datasets.get_mnist()
    model = L.Classifier(MyNetwork())
    optimizer = optimizers.Adam()
    optimizer.setup(model)
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    updater = training.updaters.StandardUpdater(train_iter, optimizer)
    trainer = training.Trainer(updater, (args.epochs, "epoch"), out=args.output_dir)
    trainer.extend(extensions.Evaluator(test_iter, model))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "main/accuracy", "validation/main/accuracy", "elapsed_time"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.run()

    run.log("Accuracy", float(trainer.observation["validation/main/accuracy"]))
    serializers.save_npz(os.path.join(args.output_dir, "model.npz"), model)


if __name__ == "__main__":
    main()
