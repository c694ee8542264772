"""Tests of batch_emulator.autoscale."""
