"""Tools for people who work on h5stream."""
