"""`H5StreamLoader`, and all that only it needs: settings, draws, position, epochs, routes.

Imports everything above it. Start with `loader`, then `epoch`.
"""
