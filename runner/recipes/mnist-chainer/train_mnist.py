"""Chainer example: a multi-layer perceptron on MNIST."""

import argparse
import gzip
import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.datasets import TupleDataset
from chainer.training import extensions


class MLP(chainer.Chain):
    def __init__(self, n_units, n_out):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, n_units)
            self.l2 = L.Linear(None, n_units)
            self.l3 = L.Linear(None, n_out)

    def forward(self, x):
        h1 = F.relu(self.l1(x))
        h2 = F.relu(self.l2(h1))
        return self.l3(h2)


def read(folder, name, header):
    path = os.path.join(folder, name)
    opened = open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz")
    with opened as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def get_mnist(folder, part):
    images = read(folder, part + "-images-idx3-ubyte", 16).reshape(-1, 784)
    labels = read(folder, part + "-labels-idx1-ubyte", 8)
    return TupleDataset(images.astype(np.float32) / 255, labels.astype(np.int32))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="Folder with the four files of MNIST")
    parser.add_argument("--batchsize", "-b", type=int, default=100)
    parser.add_argument("--epochs", "-e", type=int, default=10)
    parser.add_argument("--unit", "-u", type=int, default=300, help="Number of units")
    parser.add_argument("--subset", type=int, default=0, help="Training images; 0 is all")
    parser.add_argument("--output_dir", "-o", default="./outputs")
    args = parser.parse_args()

    device = chainer.get_device("@cupy:0" if chainer.backends.cuda.available else "@numpy")
    print("Device: {}".format(device))
    print("# Minibatch-size: {}".format(args.batchsize))
    print("# epoch: {}".format(args.epochs))

    model = L.Classifier(MLP(args.unit, 10))
    model.to_device(device)
    device.use()
    optimizer = chainer.optimizers.Adam()
    optimizer.setup(model)

    train, test = get_mnist(args.data, "train"), get_mnist(args.data, "t10k")
    if args.subset:
        train = train[: args.subset]
    train_iter = chainer.iterators.SerialIterator(train, args.batchsize)
    test_iter = chainer.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    updater = training.updaters.StandardUpdater(train_iter, optimizer, device=device)
    trainer = training.Trainer(updater, (args.epochs, "epoch"), out=args.output_dir)
    trainer.extend(extensions.Evaluator(test_iter, model, device=device))
    trainer.extend(extensions.LogReport())
    trainer.extend(
        extensions.PrintReport(
            [
                "epoch",
                "main/loss",
                "validation/main/loss",
                "main/accuracy",
                "validation/main/accuracy",
                "elapsed_time",
            ]
        )
    )
    trainer.run()
    chainer.serializers.save_npz(os.path.join(args.output_dir, "model.npz"), model)


if __name__ == "__main__":
    main()
