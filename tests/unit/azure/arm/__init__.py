"""Tests of runner.azure.arm."""
