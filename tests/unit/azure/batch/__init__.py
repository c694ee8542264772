"""Tests of runner.azure.batch."""
