"""Orders: which rows come when, as pure functions of seed, epoch, rank and the shape of the data.

No files, no threads, no tensors; threads, workers and timing never change an order. `Order`, `Window`, `Blocks` and
`Ranks` are the public interface for orders of your own, and `fractions` draws a random number per sample.
"""

from h5stream.order.blocks import Blocks
from h5stream.order.draws import fractions
from h5stream.order.users import Ranks
from h5stream.order.window import Order, Window

__all__ = ["Blocks", "Order", "Ranks", "Window", "fractions"]
