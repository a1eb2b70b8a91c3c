"""The experiments of the FAFED paper, run again.

    protocol.py   what is run: configs/protocol.toml
    ledger.py     jobs and their outcomes: results/*.jsonl
    decisions.py  what each stage needs from the ledger, and what it decides
    decay.py      the same for Table 2 with a falling step size
    text.py       the same for the language models
    driver.py     runs what is missing
    findings.py   numbers for tables and figures, from the ledger
    document.py   docs/paper.md, its appendix and the README's part

A decision (a number of rounds, a setting) is a function of the ledger. The driver and the document
call the same functions. Where a run is missing, the driver runs it, and the document marks the
place as "not run yet".
"""
