"""Trains a small convolutional network on MNIST with PyTorch."""

import argparse
import gzip
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def read(folder, name, header):
    """Return the bytes of an IDX file after its header. The file may be gzipped."""
    path = os.path.join(folder, name)
    opened = open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz")
    with opened as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def load(folder, part, device):
    """Return normalised images and labels of `train` or `t10k` as tensors."""
    images = read(folder, f"{part}-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    labels = read(folder, f"{part}-labels-idx1-ubyte", 8)
    pixels = (torch.from_numpy(images.copy()).float() / 255 - 0.1307) / 0.3081
    return pixels.to(device), torch.from_numpy(labels.astype(np.int64)).to(device)


class DigitNet(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(32)
        self.fc1 = nn.Linear(32 * 7 * 7, 128)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))
        return self.fc2(x)


def train(model, optimizer, schedule, images, labels, batch_size):
    model.train()
    total = 0.0
    order = torch.randperm(len(labels), device=labels.device)
    for batch in order.split(batch_size):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item() * len(batch)
    return total / len(labels)


@torch.no_grad()
def test(model, images, labels):
    model.eval()
    answers = torch.cat([model(part) for part in images.split(1000)])
    loss = F.cross_entropy(answers, labels).item()
    return loss, (answers.argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with the four files of MNIST")
    parser.add_argument("--output", default="output")
    parser.add_argument("--checkpoint", help="file to save to after each epoch, and to resume from")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--learning_rate", type=float, default=0.004)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--subset", type=int, default=0, help="training images; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"torch {torch.__version__} on {device}")
    images, labels = load(args.data, "train", device)
    test_images, test_labels = load(args.data, "t10k", device)
    if args.subset:
        images, labels = images[: args.subset], labels[: args.subset]

    model = DigitNet(args.dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    steps = args.epochs * -(-len(labels) // args.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.learning_rate, steps)
    first = 1
    if args.checkpoint and os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first = state["epoch"] + 1
        print(f"continuing with epoch {first}", flush=True)
    for epoch in range(first, args.epochs + 1):
        loss = train(model, optimizer, schedule, images, labels, args.batch_size)
        test_loss, accuracy = test(model, test_images, test_labels)
        print(
            f"epoch {epoch}/{args.epochs} loss={loss:.4f} test_loss={test_loss:.4f} "
            f"test_accuracy={accuracy:.4f}",
            flush=True,
        )
        if args.checkpoint:
            state = {"epoch": epoch, "model": model.state_dict()}
            state |= {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
            torch.save(state, args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)

    os.makedirs(args.output, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(args.output, "model.pt"))


if __name__ == "__main__":
    main()
