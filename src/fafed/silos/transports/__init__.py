"""Transports carry messages to silos. Each framework has one package."""
