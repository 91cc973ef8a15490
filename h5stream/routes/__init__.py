"""How filled slots reach the user: on the host, pinned or not, or on a device."""
