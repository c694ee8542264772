"""Tests of batch_emulator.scheduling."""
