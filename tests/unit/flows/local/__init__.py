"""Tests of runner.flows.local."""
