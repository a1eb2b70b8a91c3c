"""Experiments as files: from TOML to finished runs."""
