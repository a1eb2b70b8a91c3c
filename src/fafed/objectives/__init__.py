"""What is minimised, as a function of one vector."""
