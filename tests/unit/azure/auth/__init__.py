"""Tests of runner.azure.auth."""
