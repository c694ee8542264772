"""Tests of batch_emulator.executor.process."""
