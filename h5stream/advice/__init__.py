"""Advice that shows its working: each function returns a `Suggestion` and none of them changes anything.

What stands here is arithmetic (`presets`, `host_memory`, `gpu_memory`, `accumulation`, `learning_rate`,
`order_of_knobs`) and two measurements that the user starts on purpose (`activations`, `batch_search`).
"""
