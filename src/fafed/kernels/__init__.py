"""Code for speed alone: C files, compiled on first use, and memory.

Without a compiler torch computes the same.
"""
