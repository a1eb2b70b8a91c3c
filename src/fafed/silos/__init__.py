"""Real silos, whatever carries the messages: what is sent, kept, checked and written down."""
