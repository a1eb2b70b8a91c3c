"""Experiments as TOML files, and their runs on disk."""
