"""What carries messages to silos: one package for each framework."""
