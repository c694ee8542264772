import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--out")
args = parser.parse_args()
for epoch in range(args.epochs):
    print(f"epoch {epoch} loss {1 / (epoch + 1):.3f}")
os.makedirs(args.out)
with open(os.path.join(args.out, "last.pt"), "wb") as file:
    file.write(b"weights")
