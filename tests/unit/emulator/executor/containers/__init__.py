"""Tests of batch_emulator.executor.containers."""
