"""`H5StreamLoader` and its own parts: settings, draws, position, epochs, routes.

Imports everything above it. Start with `loader`, then `epoch`.
"""
