"""Decisions: no network, no clock, no printing, no azure."""
