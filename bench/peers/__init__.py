"""h5stream beside what people would use instead: one adaptor a peer, all over the same rows.

``python -m bench.peers --quick`` measures them; each one runs in a process of its own with a time limit.
"""
