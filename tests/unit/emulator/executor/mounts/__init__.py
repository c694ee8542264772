"""Tests of batch_emulator.executor.mounts."""
