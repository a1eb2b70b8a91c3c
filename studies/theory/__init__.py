"""The theory laboratory: small experiments that check claims about the methods.

    python -m studies.theory counterexample | drift | rates | metric | all

Each experiment is a file with `measure`, which returns a `Finding` (settings, tables, claims), and
`draw`, which turns it into figures. They run the library's own algorithm code: on its engine, or
in the lab engine of lab.py where thousands of short steps of many runs are needed.
"""
