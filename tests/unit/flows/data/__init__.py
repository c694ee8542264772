"""Tests of runner.flows.data."""
