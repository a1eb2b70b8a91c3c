"""The types that all packages share. Nothing here compiles, reads files or draws pictures."""
