"""One program per peer, each run by an environment of its own; see common.py for how they are called."""
