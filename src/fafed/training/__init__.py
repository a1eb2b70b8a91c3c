"""The round loop, and what it needs."""
