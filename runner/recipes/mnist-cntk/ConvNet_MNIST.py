"""Trains a convolutional network on MNIST with CNTK. Python 3.5: no f-strings."""

import argparse
import gzip
import os

import cntk as C
import numpy as np


def read(folder, name, header):
    path = os.path.join(folder, name)
    opened = open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz")
    with opened as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def load(folder, part):
    images = read(folder, part + "-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    labels = read(folder, part + "-labels-idx1-ubyte", 8)
    return images.astype(np.float32), np.eye(10, dtype=np.float32)[labels]


def convnet_mnist(args):
    images, labels = load(args.datadir, "train")
    test_images, test_labels = load(args.datadir, "t10k")
    if args.epoch_size:
        images, labels = images[: args.epoch_size], labels[: args.epoch_size]

    x = C.input_variable((1, 28, 28))
    y = C.input_variable(10)
    with C.layers.default_options(activation=C.ops.relu, pad=False):
        z = C.layers.Sequential(
            [
                C.layers.Convolution2D((5, 5), 32, pad=True),
                C.layers.MaxPooling((3, 3), (2, 2)),
                C.layers.Convolution2D((3, 3), 48),
                C.layers.MaxPooling((3, 3), (2, 2)),
                C.layers.Convolution2D((3, 3), 64),
                C.layers.Dense(96),
                C.layers.Dropout(0.5),
                C.layers.Dense(10, activation=None),
            ]
        )(C.ops.element_times(C.constant(1 / 256.0), x))
    loss = C.losses.cross_entropy_with_softmax(z, y)
    metric = C.metrics.classification_error(z, y)
    learner = C.learners.momentum_sgd(
        z.parameters,
        C.learning_parameter_schedule_per_sample([0.001] * 10 + [0.0005] * 10 + [0.0001]),
        C.momentum_schedule(0.9),
    )
    printer = C.logging.ProgressPrinter(tag="Training", num_epochs=args.max_epochs)
    trainer = C.Trainer(z, (loss, metric), [learner], [printer])

    first = 0
    checkpoint = args.checkpoint
    if checkpoint and os.path.exists(checkpoint):
        first = trainer.restore_from_checkpoint(checkpoint)["epoch"] + 1
        print("continuing with epoch {}".format(first + 1))
    for epoch in range(first, args.max_epochs):
        order = np.random.RandomState(epoch).permutation(len(labels))
        for start in range(0, len(labels), args.minibatch_size):
            batch = order[start : start + args.minibatch_size]
            trainer.train_minibatch({x: images[batch], y: labels[batch]})
        trainer.summarize_training_progress()
        z.save(os.path.join(args.outputdir, "ConvNet_MNIST_{}.dnn".format(epoch)))
        if checkpoint:
            trainer.save_checkpoint(checkpoint, {"epoch": epoch})

    errors = 0.0
    for start in range(0, len(test_labels), 500):
        part = slice(start, start + 500)
        answers = z.eval({x: test_images[part]})
        errors += (answers.argmax(axis=1) != test_labels[part].argmax(axis=1)).sum()
    print("test_accuracy={:.4f}".format(1 - errors / len(test_labels)))
    z.save(os.path.join(args.outputdir, "ConvNet_MNIST.dnn"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-datadir", "--datadir", required=True)
    parser.add_argument("-outputdir", "--outputdir", required=True)
    parser.add_argument("-checkpoint", "--checkpoint")
    parser.add_argument("-epoch_size", "--epoch_size", type=int, default=0)
    parser.add_argument("-max_epochs", "--max_epochs", type=int, default=10)
    parser.add_argument("-minibatch_size", "--minibatch_size", type=int, default=64)
    convnet_mnist(parser.parse_args())
