"""The files of Fashion-MNIST, compressed without loss. `fafed.data.load("fashion-mnist")` reads
them and checks every byte."""

__version__ = "1.0.0"
