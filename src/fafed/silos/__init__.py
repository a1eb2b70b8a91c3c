"""Runs over real silos: messages, their checks, the states of silos, and audit files."""
