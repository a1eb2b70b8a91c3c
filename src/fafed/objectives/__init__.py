"""Objectives: the loss as a function of one flat vector."""
