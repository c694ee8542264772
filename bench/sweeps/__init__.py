"""Sweeps, and trials that are too short for a task of their own."""
