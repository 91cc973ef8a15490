"""Advice about training, whatever loads the data: batch size, GPU memory, learning rate, accumulation, precision.

Each function returns a `Suggestion` and changes nothing. Most is arithmetic; `activations` and `batch_search` measure,
and are started by the user on purpose. Advice about the loader stands in `h5stream.advice`.
"""
