"""Tests of batch_emulator.storage."""
