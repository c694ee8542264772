import os
import pickle
import sys

if len(sys.argv) < 3:
    sys.exit("usage: train.py FEATURES MODEL")
features, model = sys.argv[1:]
params = {}
for line in open("params.yaml"):
    name, _, value = line.strip().partition(":")
    params[name] = value.strip()
with open(os.path.join(features, "train.csv")) as f:
    labels = [int(line.split(",")[1]) for line in f]
print("rows", len(labels), file=sys.stderr)
forest = {"trees": int(params["n_est"]), "prior": [labels.count(each) for each in range(3)]}
with open(model, "wb") as f:
    pickle.dump(forest, f)
