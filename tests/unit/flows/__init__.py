"""Tests of runner.flows."""
