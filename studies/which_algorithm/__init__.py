"""Every federated algorithm on one small job, and docs/which-algorithm.md from it."""
