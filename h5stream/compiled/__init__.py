"""How inner loops are compiled, and the instructions that they are made of: what rooms with kernels share."""
