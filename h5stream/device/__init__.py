"""Batches to the GPU: the only home of torch.cuda."""
