"""Studies that use fafed. They are run from a clone and are not part of the installed package.

    python -m studies.paper              the experiments of the FAFED paper, run again
    python -m studies.theory             what the paper's theory claims, measured
    python -m studies.which_algorithm    every algorithm on one small job, and defaults by one rule
    python -m studies.fedkron            FedKron beside tuned rivals on the same job
    python -m studies.performance        the speed of fafed beside that of other libraries

A study is a package with its configurations and its results. It writes a page in docs/.
"""
