"""Batches to the GPU. The only home of ``torch.cuda``."""
