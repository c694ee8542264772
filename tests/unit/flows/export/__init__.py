"""Tests of runner.flows.export."""
