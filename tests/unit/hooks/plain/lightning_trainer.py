"""A Lightning Trainer without code for runner. Kills itself at $STOP; prints a weights digest."""

import hashlib
import os
import signal
import time

import lightning
import torch
from torch import nn

lightning.seed_everything(0)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))

    def training_step(self, batch, index):
        points, labels = batch
        return nn.functional.cross_entropy(self.net(points), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


class Killed(lightning.Callback):
    batches = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.batches += 1
        if str(self.batches) == os.environ.get("STOP"):
            os.kill(os.getpid(), int(os.environ.get("SIGNAL", signal.SIGTERM)))
        time.sleep(float(os.environ.get("PAUSE", "0")))


points = torch.randn(400, 20)
data = torch.utils.data.TensorDataset(points, (points.sum(1) > 0).long())
settings = {"devices": 2, "strategy": "ddp"} if os.environ.get("RANKS") else {}
trainer = lightning.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, callbacks=[Killed()], **settings
)
net = Net()
trainer.fit(net, torch.utils.data.DataLoader(data, 20, shuffle=True))
weights = b"".join(value.detach().numpy().tobytes() for value in net.parameters())
print(trainer.current_epoch, trainer.global_step, hashlib.sha256(weights).hexdigest())
