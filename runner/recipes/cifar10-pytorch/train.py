"""Trains a small convolutional network on CIFAR-10 with PyTorch."""

import argparse
import glob
import gzip
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue values of an image


def load(folder, pattern, device):
    """Return normalised images and labels of the .bin or .bin.gz files as tensors."""
    paths = sorted(glob.glob(os.path.join(folder, pattern)))
    if not paths:
        raise SystemExit(f"error: no {pattern} in {folder}")
    content = b""
    for path in paths:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            content += file.read()
    rows = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(-1, RECORD).copy())
    images = (rows[:, 1:].reshape(-1, 3, 32, 32).float() - 121) / 64
    return images.to(device), rows[:, 0].long().to(device)


class ColourNet(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        sizes = (3, width, 2 * width, 4 * width)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False) for a, b in zip(sizes, sizes[1:])
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes[1:])
        self.last = nn.Conv2d(4 * width, 4 * width, 3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(4 * width, 10)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)))
        x = F.relu(self.last(x)).mean(dim=(2, 3))
        return self.fc(self.dropout(x))


def train(model, optimizer, schedule, images, labels, batch_size):
    model.train()
    total = 0.0
    for batch in torch.randperm(len(labels), device=labels.device).split(batch_size):
        pixels = images[batch]
        if torch.rand(()) < 0.5:
            pixels = pixels.flip(3)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pixels), labels[batch])
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item() * len(batch)
    return total / len(labels)


@torch.no_grad()
def test(model, images, labels):
    model.eval()
    answers = torch.cat([model(part) for part in images.split(500)])
    loss = F.cross_entropy(answers, labels).item()
    return loss, (answers.argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with the binary files of CIFAR-10")
    parser.add_argument("--output", default="output")
    parser.add_argument("--checkpoint", help="file to save to after each epoch, and to resume from")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=0.003)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--subset", type=int, default=0, help="training images; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"torch {torch.__version__} on {device}")
    images, labels = load(args.data, "data_batch_*.bin*", device)
    test_images, test_labels = load(args.data, "test_batch.bin*", device)
    if args.subset:
        images, labels = images[: args.subset], labels[: args.subset]

    model = ColourNet(args.width, args.dropout).to(device)
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
