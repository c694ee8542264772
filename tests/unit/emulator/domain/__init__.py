"""Tests of batch_emulator.domain."""
