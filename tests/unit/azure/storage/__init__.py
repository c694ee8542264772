"""Tests of runner.azure.storage."""
