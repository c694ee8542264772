import runner
from utils.logging import info

for epoch in range(runner.EPOCHS):
    info(f"epoch {epoch} loss {0.5 / (epoch + 1)}")
open("model.bin", "wb").write(b"weights")
