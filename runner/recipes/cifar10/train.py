"""Trains a small convolutional network on CIFAR-10 with Keras.

$KERAS_BACKEND chooses jax, tensorflow or torch.
"""

import argparse
import glob
import gzip
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue values of an image


def load(folder, pattern):
    """Return images (count x 32 x 32 x 3, 0 to 255) and labels of the .bin or .bin.gz files."""
    paths = sorted(glob.glob(os.path.join(folder, pattern)))
    if not paths:
        raise SystemExit(f"error: no {pattern} in {folder}")
    content = b""
    for path in paths:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            content += file.read()
    rows = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images.astype("float32"), rows[:, 0].astype("int32")


def build_model(width, dropout):
    """Return a network with three stages of strided convolutions, the first with `width` filters."""
    stages = []
    for filters in (width, 2 * width, 4 * width):
        stages += [
            layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        ]
    return keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            layers.Rescaling(1 / 127.5, offset=-1),
            *stages,
            layers.Conv2D(4 * width, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(dropout),
            layers.Dense(10, activation="softmax"),
        ],
        name="cifar10",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder with the binary files of CIFAR-10")
    parser.add_argument("--output", default="output")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=0.002)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--subset", type=int, default=0, help="training images; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    print(f"keras {keras.__version__} on {keras.backend.backend()}")
    images, labels = load(args.data, "data_batch_*.bin*")
    test_images, test_labels = load(args.data, "test_batch.bin*")
    if args.subset:
        images, labels = images[: args.subset], labels[: args.subset]
    flipped = np.random.default_rng(args.seed).random(len(images)) < 0.5
    images[flipped] = images[flipped, :, ::-1]

    model = build_model(args.width, args.dropout)
    steps = args.epochs * -(-len(labels) // args.batch_size)
    model.compile(
        optimizer=keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(args.learning_rate, steps)
        ),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=(test_images, test_labels),
        verbose=2,
    )
    loss, accuracy = model.evaluate(test_images, test_labels, batch_size=500, verbose=0)
    print(f"test_loss={loss:.4f} test_accuracy={accuracy:.4f}")
    os.makedirs(args.output, exist_ok=True)
    model.save(os.path.join(args.output, "model.keras"))


if __name__ == "__main__":
    main()
