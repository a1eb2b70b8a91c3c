"""The sum of the silos' messages, and nothing else, for a server that sees every byte.

The protocol is that of Bonawitz et al. (CCS 2017), with signatures. An exchange has five steps:

    0 keys     each silo signs two fresh public keys
    1 shares   each silo splits the secrets of its masks among the others, encrypted for each
    2 masked   each silo sends its message under masks: one of its own, one for each pair of silos
    3 agree    each silo signs the list of those who answered
    4 unmask   each silo hands over the shares that remove the masks of this list, and no others

`silo` and `server` are the two sides, without a network: an answer goes in, a request comes out.
`messages` says what travels.
"""

from fafed.core.extras import require

require("secure aggregation", "privacy", "cryptography", "Crypto")
