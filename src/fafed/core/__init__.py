"""What everything meets at; nothing here compiles, reads files or draws pictures."""
