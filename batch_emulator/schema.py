"""The tables of the store."""

from __future__ import annotations

SCHEMA = """
CREATE TABLE IF NOT EXISTS pools (pool TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes (
  pool TEXT, node TEXT, record TEXT NOT NULL, PRIMARY KEY (pool, node)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (job TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tasks (
  job TEXT, task TEXT, id TEXT NOT NULL, ord INTEGER NOT NULL, slots INTEGER NOT NULL,
  state TEXT NOT NULL, result TEXT, record TEXT NOT NULL, body TEXT NOT NULL, expires REAL,
  PRIMARY KEY (job, task)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS samples (
  pool TEXT, first INTEGER, count INTEGER NOT NULL, record TEXT NOT NULL,
  PRIMARY KEY (pool, first)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS live_tasks ON tasks (job, ord) WHERE state <> 'completed';
CREATE INDEX IF NOT EXISTS expiring ON tasks (expires) WHERE expires IS NOT NULL;
CREATE INDEX IF NOT EXISTS retained ON tasks (json_extract(record, '$.place'), expires)
  WHERE expires IS NOT NULL;
CREATE INDEX IF NOT EXISTS finished ON tasks (job, result, slots) WHERE state = 'completed';
"""
# Raised with every change of the tables above or of what records.py writes: no version reads the
# state of another.
FORMAT = 2
