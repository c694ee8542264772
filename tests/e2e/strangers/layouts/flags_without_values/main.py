import argparse
import pickle


def train(args, epoch):
    for batch in range(3):
        print(f"Train Epoch: {epoch} [{batch * 64}/192 ({100 * batch / 3:.0f}%)]\tLoss: {1 / (epoch + batch):.6f}")
        if args.dry_run:
            break


def main():
    parser = argparse.ArgumentParser(description="digits")
    parser.add_argument("--epochs", type=int, default=14, metavar="N")
    parser.add_argument("--lr", type=float, default=1.0, metavar="LR")
    parser.add_argument("--no-accel", action="store_true", help="use the CPU")
    parser.add_argument("--dry-run", action="store_true", help="stop each epoch after one batch")
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()
    for epoch in range(1, args.epochs + 1):
        train(args, epoch)
        print(f"\nTest set: Average loss: {1 / epoch:.4f}, Accuracy: {9000 + epoch}/10000 ({90 + epoch / 100:.0f}%)\n")
    if args.save_model:
        with open("digits.pt", "wb") as file:
            pickle.dump(vars(args), file)


if __name__ == "__main__":
    main()
