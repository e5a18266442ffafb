"""Runs in object stores: a spool that is uploaded, and a mirror of what was verified."""
