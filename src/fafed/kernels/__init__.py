"""Small networks in C: compiled on first use, absent where there is no compiler."""
