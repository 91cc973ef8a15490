"""A training step as a CUDA graph: captured once, replayed for each batch, fed by `copy_into`.

    python examples/cuda_graph.py train.h5

A graph reads and writes the same memory every time. `copy_into` brings each batch there on the current stream, so
that the replay after it sees it. Batches must all be full, hence `drop_last`.
"""

import argparse

import torch

from h5stream import H5StreamLoader


def captured_step(model, optimizer, static_x, static_y):
    """Give the graph of one step, and the loss that each replay fills."""

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(static_x)[:, 0], static_y.float())
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # Some steps first: libraries allocate their workspaces in them.
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    return graph, loss


def main(path):
    if not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return
    loader = H5StreamLoader(path, 256, shuffle=True, drop_last=True, device="cuda", fields=["x", "y"])
    static_x, static_y = (torch.zeros_like(part) for part in next(iter(loader)))
    model = torch.nn.Linear(static_x.shape[1], 1, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    graph, loss = captured_step(model, optimizer, static_x, static_y)
    for epoch in range(3):
        for _ in loader.copy_into((static_x, static_y)):
            graph.replay()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", metavar="train.h5", help="a file with a field x of numbers and a field y of labels")
    main(parser.parse_args().file)
