"""What compressed messages cost in accuracy, and how many bytes they save."""
