"""Compares FedKron with other methods, and writes docs/fedkron.md."""
