"""Trains a multi-layer perceptron of scikit-learn on MNIST, an epoch at a time."""

import argparse
import gzip
import os

import joblib
import numpy as np
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier


def read(folder, name, header):
    """Return the bytes of an IDX file after its header. The file may be gzipped."""
    path = os.path.join(folder, name)
    opened = open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz")
    with opened as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def load(folder, part):
    """Return images as rows of 784 values from 0 to 1, and labels."""
    images = read(folder, f"{part}-images-idx3-ubyte", 16).reshape(-1, 784)
    return images.astype(np.float32) / 255, read(folder, f"{part}-labels-idx1-ubyte", 8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with the four files of MNIST")
    parser.add_argument("--output", default="output")
    parser.add_argument("--checkpoint", help="file to save to after each epoch, and to resume from")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--subset", type=int, default=0, help="training images; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    images, labels = load(args.data, "train")
    test_images, test_labels = load(args.data, "t10k")
    if args.subset:
        images, labels = images[: args.subset], labels[: args.subset]

    done, model = (
        0,
        MLPClassifier(
            hidden_layer_sizes=(args.hidden,),
            learning_rate_init=args.learning_rate,
            random_state=args.seed,
        ),
    )
    if args.checkpoint and os.path.exists(args.checkpoint):
        done, model = joblib.load(args.checkpoint)
        print(f"continuing after epoch {done}", flush=True)
    for epoch in range(done + 1, args.epochs + 1):
        model.partial_fit(images, labels, classes=np.arange(10))
        chances = model.predict_proba(test_images)
        accuracy = np.mean(chances.argmax(axis=1) == test_labels)
        print(
            f"epoch {epoch}/{args.epochs} loss={model.loss_:.4f} "
            f"test_loss={log_loss(test_labels, chances):.4f} test_accuracy={accuracy:.4f}",
            flush=True,
        )
        if args.checkpoint:
            joblib.dump((epoch, model), args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)

    os.makedirs(args.output, exist_ok=True)
    joblib.dump(model, os.path.join(args.output, "model.joblib"))


if __name__ == "__main__":
    main()
