import argparse
import json
import logging
import pickle
from datetime import datetime
from pathlib import Path

import data_loader.loaders as module_data
import model.model as module_arch


def main(config, lr):
    data = getattr(module_data, config["data"]["type"])(**config["data"]["args"])
    net = getattr(module_arch, config["model"]["type"])(**config["model"]["args"])
    run = datetime.now().strftime(r"%m%d_%H%M%S")
    folder = Path(config["trainer"]["save_dir"]) / "models" / config["name"] / run
    folder.mkdir(parents=True)
    for epoch in range(1, config["trainer"]["epochs"] + 1):
        loss = sum(net.step(batch, lr) for batch in data)
        logging.info("    epoch          : %s", epoch)
        logging.info("    loss           : %s", loss)
    with open(folder / "model_best.pkl", "wb") as file:
        pickle.dump(net.__dict__, file)


if __name__ == "__main__":
    args = argparse.ArgumentParser(description="Template")
    args.add_argument("-c", "--config", default=None, type=str)
    args.add_argument("--lr", "--learning_rate", type=float, default=None)
    given = args.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    loaded = json.loads(Path(given.config).read_text())
    main(loaded, given.lr or loaded["trainer"]["lr"])
