"""An emulator of the Azure Batch data plane: `python -m batch_emulator`."""
