"""Train, save and reload a tiny PyTorch model."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

import smoke


def train(folder):
    """Train a small network, and save its weights in `folder`. See `smoke.run`."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    points, labels = (torch.from_numpy(part).to(device) for part in smoke.data())
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(smoke.STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels.long())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    path = Path(folder) / "model.pt"
    torch.save(model.state_dict(), path)
    reloaded = network().to(device)
    reloaded.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        before, after = model(points).cpu(), reloaded(points).cpu()
    return {
        "framework": "pytorch",
        "version": torch.__version__,
        "device": torch.cuda.get_device_name(0) if gpu else "cpu",
        "gpu": gpu,
        "losses": losses,
        "reload_difference": smoke.largest_difference(before.numpy(), after.numpy()),
    }


def network():
    """Return the layers, without weights."""
    from torch import nn

    return nn.Sequential(nn.Linear(smoke.FEATURES, 32), nn.ReLU(), nn.Linear(32, smoke.CLASSES))


if __name__ == "__main__":
    sys.exit(smoke.run(train))
