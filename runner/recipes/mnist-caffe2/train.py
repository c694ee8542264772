"""Trains LeNet on MNIST with Caffe2."""

import argparse
import gzip
import os
import pickle

import numpy as np
from caffe2.python import brew, model_helper, optimizer, workspace


def read(folder, name, header):
    path = os.path.join(folder, name)
    opened = open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz")
    with opened as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def load(folder, part):
    images = read(folder, part + "-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    labels = read(folder, part + "-labels-idx1-ubyte", 8)
    return images.astype(np.float32) / 256, labels.astype(np.int32)


def add_lenet(model):
    conv1 = brew.conv(model, "data", "conv1", dim_in=1, dim_out=20, kernel=5)
    pool1 = brew.max_pool(model, conv1, "pool1", kernel=2, stride=2)
    conv2 = brew.conv(model, pool1, "conv2", dim_in=20, dim_out=50, kernel=5)
    pool2 = brew.max_pool(model, conv2, "pool2", kernel=2, stride=2)
    fc3 = brew.fc(model, pool2, "fc3", dim_in=50 * 4 * 4, dim_out=500)
    relu3 = brew.relu(model, fc3, "relu3")
    pred = brew.fc(model, relu3, "pred", dim_in=500, dim_out=10)
    return brew.softmax(model, pred, "softmax")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with the four files of MNIST")
    parser.add_argument("--output", default="output")
    parser.add_argument("--checkpoint", help="file to save to after each epoch, and to resume from")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=0.05)
    parser.add_argument("--subset", type=int, default=0, help="training images; 0 is all")
    parser.add_argument("--test_subset", type=int, default=0, help="test images; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    images, labels = load(args.data, "train")
    test_images, test_labels = load(args.data, "t10k")
    if args.test_subset:
        test_images, test_labels = test_images[: args.test_subset], test_labels[: args.test_subset]
    if args.subset:
        images, labels = images[: args.subset], labels[: args.subset]
    workspace.FeedBlob("data", images[: args.batch_size])
    workspace.FeedBlob("label", labels[: args.batch_size])

    model = model_helper.ModelHelper(name="mnist_train", arg_scope={"order": "NCHW"})
    softmax = add_lenet(model)
    entropy = model.LabelCrossEntropy([softmax, "label"], "xent")
    loss = model.AveragedLoss(entropy, "loss")
    model.AddGradientOperators([loss])
    optimizer.build_sgd(model, base_learning_rate=args.learning_rate, policy="fixed")
    workspace.RunNetOnce(model.param_init_net)
    workspace.CreateNet(model.net, overwrite=True)

    test_model = model_helper.ModelHelper(
        name="mnist_test", arg_scope={"order": "NCHW"}, init_params=False
    )
    add_lenet(test_model)
    workspace.CreateNet(test_model.net, overwrite=True)

    names = [str(param) for param in model.params]
    done = 0
    if args.checkpoint and os.path.exists(args.checkpoint):
        with open(args.checkpoint, "rb") as file:
            done, values = pickle.load(file)
        for name, value in values.items():
            workspace.FeedBlob(name, value)
        print("continuing after epoch {}".format(done), flush=True)
    for epoch in range(done + 1, args.epochs + 1):
        order = np.random.RandomState(args.seed + epoch).permutation(len(labels))
        total = 0.0
        steps = len(labels) // args.batch_size
        for step in range(steps):
            batch = order[step * args.batch_size : (step + 1) * args.batch_size]
            workspace.FeedBlob("data", images[batch])
            workspace.FeedBlob("label", labels[batch])
            workspace.RunNet(model.net)
            total += float(workspace.FetchBlob("loss"))
        right = 0
        for start in range(0, len(test_labels), 500):
            workspace.FeedBlob("data", test_images[start : start + 500])
            workspace.RunNet(test_model.net)
            answers = workspace.FetchBlob("softmax").argmax(axis=1)
            right += int((answers == test_labels[start : start + 500]).sum())
        print(
            "epoch {}/{} loss={:.4f} test_accuracy={:.4f}".format(
                epoch, args.epochs, total / steps, right / len(test_labels)
            ),
            flush=True,
        )
        values = {name: workspace.FetchBlob(name) for name in names}
        if args.checkpoint:
            with open(args.checkpoint + ".new", "wb") as file:
                pickle.dump((epoch, values), file)
            os.replace(args.checkpoint + ".new", args.checkpoint)

    os.makedirs(args.output, exist_ok=True)
    np.savez(os.path.join(args.output, "model.npz"), **{n: workspace.FetchBlob(n) for n in names})


if __name__ == "__main__":
    main()
