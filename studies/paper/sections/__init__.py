"""The sections of docs/paper.md. Numbers come from the ledger, verdicts from the numbers."""
