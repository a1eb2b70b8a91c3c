"""The experiments of the FAFED paper, run again.

    protocol.py   what is run: configs/protocol.toml
    ledger.py     jobs, and what became of them: results/*.jsonl
    decisions.py       what each stage needs from the ledger, and what it decides
    driver.py     runs what is missing
    findings.py   numbers for tables and figures, from the ledger
    document.py   docs/paper.md and the README's part

A decision (a number of rounds, a setting) is a function of the ledger. The driver and the document
call the same functions: the one runs what they miss, the other says that it has not been run.
"""
