"""Tests of runner.flows.submit."""
