"""Train on Azure Batch, or on a local emulator of it, with the same command."""
