"""Measures every federated algorithm on one small job, and writes docs/which-algorithm.md."""
