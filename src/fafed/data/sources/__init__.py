"""What clients draw their batches from."""
