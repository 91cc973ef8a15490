"""How filled slots reach the user: on the host, pinned, on a device, or through a window on a device.

`h5stream.routes.route` has the seam, and the other files a way each; `h5stream.routes.choice` takes one.
"""
