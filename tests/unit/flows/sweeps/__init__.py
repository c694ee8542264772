"""Tests of runner.flows.sweeps."""
