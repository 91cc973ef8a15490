"""The training script to start from: any HDF5 file, every switch that makes training fast, a checklist at the end.

    python examples/train.py --data train.h5 --x x --y y
    python examples/train.py --data pbmc68k_reduced.h5ad --x X --y obs:bulk_labels --epochs 20
    python examples/train.py --data 'day*.h5' --x x --y y --profile rtx3090_max_perf --checkpoint run.pt

The target's dtype decides the task: integers (and enums, and booleans) are classes 0, 1, 2 ...; floating point
numbers are regressed. A sample is flattened, scaled by the mean and spread of the first batch, and given to an MLP or
a small transformer: `train_model.py` has them, put yours in their place. Every switch has a ``--no-`` form;
``--report`` writes the figures as JSON, so that what a switch gives can be measured. Run again with the same arguments
and ``--resume``, the script goes on where its last checkpoint was made, also after ``kill -9``, and ends with the same
loss.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from train_checklist import checklist, print_checklist, write_report
from train_model import Model, Objective, make_optimizer, make_schedule

from h5stream import H5Dataset, H5StreamLoader
from h5stream.errors import H5StreamError
from h5stream.monitor import SystemMonitor
from h5stream.training import preset_for, track

MOST_CLASSES = 100_000  # More than this is hardly a class: the target is a count or an identifier.
DEFAULT_BATCH = 8192
LEAST_STEPS = 20  # A default batch leaves an epoch at least this many steps; a batch size that is given is kept.

log = logging.getLogger("train")


# --- what to do --------------------------------------------------------------------------------------------


def parse(arguments=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    switch = argparse.BooleanOptionalAction
    data = parser.add_argument_group("data")
    data.add_argument("--data", nargs="+", required=True, help="HDF5 files or patterns; several are one dataset")
    data.add_argument("--x", default="x", help="field of the inputs; obs:age is a member of a compound")
    data.add_argument("--y", default="y", help="field of the targets")
    data.add_argument("--val-share", type=float, default=0.2, help="share of the rows held out, drawn by --seed")
    data.add_argument("--window", default="auto", help="rows shuffled with one another: auto, all or a number")
    data.add_argument("--stage-to", help="copy the files there first, a RAM disk or a fast disk, and read the copies")
    data.add_argument("--memory-budget", type=int, help="bytes of each loader; give it where memory is scarce")
    data.add_argument("--profile", help="preset of a GPU for batch, workers and prefetch: rtx3090_max_perf")
    data.add_argument("--batch-size", type=int, help="rows; never changed once given")
    data.add_argument("--workers", type=int, help="reader threads; by default every processor allowed")
    data.add_argument("--prefetch", type=int, help="batches ready on the GPU")
    data.add_argument("--device-feed", action=switch, default=True, help="batches cross beside the training step")
    model = parser.add_argument_group("model and optimizer")
    model.add_argument("--model", choices=("mlp", "transformer"), default="mlp")
    model.add_argument("--width", type=int, default=256)
    model.add_argument("--depth", type=int, default=2)
    model.add_argument("--tokens", type=int, default=16, help="pieces that the transformer cuts a sample into")
    model.add_argument("--epochs", type=int, default=10)
    model.add_argument("--lr", type=float, default=1e-3)
    model.add_argument("--weight-decay", type=float, default=0.01)
    model.add_argument("--accumulate", type=int, default=1, help="batches whose gradients make one step")
    model.add_argument("--warmup-share", type=float, default=0.05, help="share of the steps in which the rate rises")
    model.add_argument("--cosine", action=switch, default=True, help="let the rate fall to 0 along a cosine")
    model.add_argument("--seed", type=int, default=0)
    speed = parser.add_argument_group("speed")
    speed.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    speed.add_argument("--cpu-threads", type=int, help="PyTorch's own threads; 1 for small models on a busy machine")
    speed.add_argument("--bf16", action=switch, default=None, help="bfloat16 autocast; by default on CUDA")
    speed.add_argument("--tf32", action=switch, default=True, help="TF32 for float32 products, on CUDA")
    speed.add_argument("--fused", action=switch, default=True, help="the optimizer's step as one kernel")
    speed.add_argument("--sdpa", action=switch, default=True, help="scaled_dot_product_attention (flash) or by hand")
    speed.add_argument("--checkpointing", action=switch, default=False, help="recompute activations: less memory")
    speed.add_argument("--compile", action=switch, default=False, help="torch.compile")
    speed.add_argument("--set-to-none", action=switch, default=True, help="forget gradients, do not zero them")
    speed.add_argument("--log-every", type=int, default=50, help="steps between logs: each one waits for the GPU")
    run = parser.add_argument_group("run")
    run.add_argument("--monitor", action=switch, default=True, help="watch GPU, processors and memory")
    run.add_argument("--progress", action=switch, default=True, help="a progress bar, and a summary of each epoch")
    run.add_argument("--checkpoint", type=Path, help="file of the newest checkpoint")
    run.add_argument("--checkpoint-every", type=int, default=0, help="steps between checkpoints; 0: each epoch's end")
    run.add_argument("--resume", action=switch, default=False, help="go on from --checkpoint, if it is there")
    run.add_argument("--report", type=Path, help="write the figures of the run to this file, as JSON")
    run.add_argument("--least-rate", type=float, default=100.0, help="samples/s that the checklist asks for")
    return check(parser, parser.parse_args(arguments))


def check(parser, args):
    """Refuse what cannot work before anything is read, and fill in what follows from other options."""
    for name in ("epochs", "accumulate", "log_every", "width", "depth", "tokens"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if not 0 < args.val_share < 1:
        parser.error("--val-share must lie between 0 and 1")
    if args.resume and not args.checkpoint:
        parser.error("--resume goes on from --checkpoint FILE, which is missing")
    args.window = int(args.window) if args.window.isdecimal() else args.window
    args.data = args.data[0] if len(args.data) == 1 else args.data
    if args.profile:
        apply_profile(args)
    if args.bf16 is None:
        args.bf16 = args.device.startswith("cuda") and torch.cuda.is_bf16_supported()
    return args


def apply_profile(args):
    """Take from a preset what the command line leaves open."""
    preset = preset_for(args.profile.removesuffix("_max_perf").replace("_", " "), cpus=len(os.sched_getaffinity(0)))
    args.batch_size = args.batch_size or preset.setting.batch_size
    args.workers = preset.setting.workers if args.workers is None else args.workers
    args.prefetch = args.prefetch or preset.setting.prefetch_factor
    log.info("Profile %s: %s", args.profile, preset.answer)
    for caveat in preset.caveats:
        log.info("  note: %s", caveat)


# --- data --------------------------------------------------------------------------------------------------


def open_data(args):
    """Give a loader for training and one for validation, over rows that the seed tells apart."""
    whole = H5Dataset(args.data, [args.x, args.y])
    held_out = np.random.default_rng(args.seed).random(len(whole)) < args.val_share
    if held_out.all() or not held_out.any():
        sys.exit(f"--val-share {args.val_share} of {len(whole)} rows leaves one side without rows")
    train_rows, val_rows = whole.subset(~held_out), whole.subset(held_out)
    batch = args.batch_size or max(1, min(DEFAULT_BATCH, len(train_rows) // LEAST_STEPS))
    on_gpu = args.device.startswith("cuda")
    settings = {
        "num_workers": args.workers,
        "prefetch_factor": args.prefetch,
        "memory_budget": args.memory_budget,
        "stage_to": args.stage_to,
        "device": args.device if on_gpu and args.device_feed else None,
        "pin_memory": on_gpu,  # only has something to do without the device feed
    }
    train = H5StreamLoader(train_rows, batch, shuffle=True, seed=args.seed, window=args.window, **settings)
    # No gradients and no kept activations: twice the rows fit where one training batch does.
    validation = H5StreamLoader(val_rows, 2 * batch, **settings)
    log.info("Rows: %s for training, %s for validation", f"{len(train_rows):,}", f"{len(val_rows):,}")
    log.info("Batch size: %s (validation %s)", f"{batch:,}", f"{2 * batch:,}")
    log.info("DataLoader settings: num_workers=%s, window=%s rows", train.num_workers, train.window_size.window_rows)
    return train, validation


def first_batch(train, args):
    """Give the first batch, on the host, for shapes and scales; the epoch then begins anew."""
    x, y = next(iter(train))
    train.set_epoch(0)
    if not isinstance(x, torch.Tensor):
        sys.exit(f"--x {args.x} holds strings or lists; inputs must be numbers")
    return x.cpu(), y.cpu()


def find_task(args):
    """Give the number of classes, or None for a regression, as the target's dtype decides."""
    targets = H5Dataset(args.data, args.y)
    first = targets[:1]
    if not isinstance(first, torch.Tensor):
        sys.exit(f"--y {args.y} holds strings or lists; a target must be numbers")
    if first.is_floating_point():
        return None
    if first[0].numel() != 1:
        sys.exit(f"--y {args.y} has integers of shape {tuple(first[0].shape)} a row; a class is one integer")
    least, most = 0, 0
    for batch in H5StreamLoader(targets, 65_536):
        labels = batch.long()
        least, most = min(least, int(labels.min())), max(most, int(labels.max()))
    if least < 0 or most >= MOST_CLASSES:
        sys.exit(
            f"--y {args.y} has integers from {least} to {most}; classes are counted from 0 and fewer than "
            f"{MOST_CLASSES:,}. Store the field as floating point to regress it, or leave such rows out"
        )
    return most + 1


# --- switches ----------------------------------------------------------------------------------------------


def set_switches(args):
    """Turn on what is global, and say what is on."""
    on_gpu = args.device.startswith("cuda")
    if args.cpu_threads:
        torch.set_num_threads(args.cpu_threads)
    if on_gpu:
        torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = args.tf32
    say("TF32 enabled for matmul and cuDNN operations", args.tf32 and on_gpu, "TF32", on_gpu)
    say("bfloat16 autocast enabled", args.bf16, "bfloat16 autocast")
    if args.model == "transformer":
        flash = on_gpu and torch.backends.cuda.flash_sdp_enabled()
        say(f"SDPA enabled{' (Flash Attention where it fits)' if flash else ''}", args.sdpa, "SDPA")
    say("Activation checkpointing enabled", args.checkpointing, "Activation checkpointing")
    say("Using fused AdamW optimizer", args.fused, "Fused AdamW")
    say("torch.compile enabled: the first steps compile", args.compile, "torch.compile")
    say("Device feed enabled: batches cross beside the step", args.device_feed and on_gpu, "Device feed", on_gpu)


def say(text, on, name, possible=True):
    log.info("%s", text if on else f"{name}: off" if possible else f"{name}: n/a without CUDA")


# --- training ----------------------------------------------------------------------------------------------


class Meter:
    """Sums that stay on the device; `read` is the only place where the processor waits for the GPU."""

    def __init__(self, device):
        self.sums, self.rows = torch.zeros(2, dtype=torch.float64, device=device), 0

    def add(self, loss, second, rows):
        self.sums += torch.stack((loss.detach().double() * rows, second.double()))
        self.rows += rows

    def read(self):
        """Give the means of the loss and of the second figure, over rows and not over batches."""
        return tuple(total / max(1, self.rows) for total in self.sums.tolist())


@dataclasses.dataclass
class Progress:
    """How far training is; with the model's and the loader's state it is all that a checkpoint needs."""

    epoch: int = 0
    batches: int = 0  # of this epoch
    steps: int = 0


class Trainer:
    def __init__(self, args, train, validation):
        self.args, self.train_loader, self.val_loader = args, train, validation
        self.device = torch.device(args.device)
        classes = find_task(args)
        x, y = first_batch(train, args)
        self.objective = Objective(classes, y)
        log.info("Task: %s", f"{classes} classes" if classes else "regression")
        self.model = Model(args, x, self.objective.outputs).to(self.device)
        self.run_model = torch.compile(self.model) if args.compile else self.model
        self.optimizer = make_optimizer(args, self.model)
        self.schedule = make_schedule(args, self.optimizer, args.epochs * -(-len(train) // args.accumulate))
        self.meter, self.done = Meter(self.device), Progress()
        self.elapsed_s = self.wait_s = 0.0
        self.rows = 0
        self.monitor = None

    # What each step does.

    def loss_of(self, batch):
        # With the device feed they are there already.
        x, y = (part.to(self.device, non_blocking=True) for part in batch)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.args.bf16):
            output = self.run_model(x)
        return *self.objective(output, y), len(x)

    def train_batch(self, batch):
        """Add a batch's gradients; step when a group of `accumulate` batches is full, or the epoch ends."""
        loss, second, rows = self.loss_of(batch)
        size, total = self.args.accumulate, len(self.train_loader)
        group_start = self.done.batches // size * size
        (loss / min(size, total - group_start)).backward()
        self.meter.add(loss, second, rows)
        self.rows += rows
        self.done.batches += 1
        if self.done.batches % size == 0 or self.done.batches == total:
            self.step()

    def step(self):
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=self.args.set_to_none)
        self.done.steps += 1
        if self.done.steps % self.args.log_every == 0:
            self.log_step()
        every = self.args.checkpoint_every
        if every and self.done.steps % every == 0 and self.done.batches < len(self.train_loader):
            self.save()

    def log_step(self):
        loss, second = self.meter.read()
        if not math.isfinite(loss):
            sys.exit(f"the loss is {loss} at step {self.done.steps}: lower --lr, or look for NaN in {self.args.x}")
        machine = f" | {self.monitor.line()}" if self.monitor else ""
        rate = self.schedule.get_last_lr()[0]
        log.info("step %d: %s | lr %.2e%s", self.done.steps, self.objective.words(loss, second), rate, machine)

    # What each epoch does.

    def train_epoch(self):
        self.model.train()
        batches = self.train_loader
        if self.args.progress:
            batches = track(batches, self.monitor or False, description=f"epoch {self.done.epoch + 1}")
        for batch in batches:
            self.train_batch(batch)
        stats = self.train_loader.stats()
        self.elapsed_s += stats.elapsed_s
        self.wait_s += stats.wait_s + stats.transform_s
        self.done = Progress(epoch=self.done.epoch + 1, steps=self.done.steps)
        found, self.meter = self.meter.read(), Meter(self.device)
        return found

    @torch.inference_mode()
    def validate(self):
        self.model.eval()
        meter = Meter(self.device)
        for batch in self.val_loader:
            meter.add(*self.loss_of(batch))
        return meter.read()

    def run(self):
        """Train all epochs; give the last training and validation figures."""
        trained = validated = None
        while self.done.epoch < self.args.epochs:
            trained, validated = self.train_epoch(), self.validate()
            log.info(
                "epoch %d: training %s | validation %s",
                self.done.epoch,
                self.objective.words(*trained),
                self.objective.words(*validated),
            )
            self.save()
        return trained, validated or self.validate()

    # What survives kill -9.

    def save(self):
        """Write a checkpoint whole or not at all: to another name, to the disk, and then over the old one."""
        if not self.args.checkpoint:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "loader": self.train_loader.state_dict(),
            "meter": (self.meter.sums, self.meter.rows),
            "done": dataclasses.asdict(self.done),
            "random": torch.get_rng_state(),
        }
        beside = self.args.checkpoint.with_name(self.args.checkpoint.name + ".part")
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.args.checkpoint)

    def resume(self):
        """Go on from the checkpoint; without one, begin."""
        if not self.args.checkpoint.exists():
            log.info("No checkpoint at %s: beginning", self.args.checkpoint)
            return
        state = torch.load(self.args.checkpoint, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.meter.sums, self.meter.rows = state["meter"]
        self.done = Progress(**state["done"])
        torch.set_rng_state(state["random"].cpu())
        self.train_loader.load_state_dict(state["loader"])
        log.info("Resumed after %d epochs and %d batches", self.done.epoch, self.done.batches)


def main(arguments=None):
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    args = parse(arguments)
    torch.manual_seed(args.seed)
    set_switches(args)
    began_s = time.perf_counter()
    with contextlib.ExitStack() as stack:
        trainer = Trainer(args, *map(stack.enter_context, open_data(args)))
        if args.resume:
            trainer.resume()
        trainer.monitor = stack.enter_context(SystemMonitor(interval_s=0.5)) if args.monitor else None
        trained, validated = trainer.run()
        seen = trainer.monitor.summary() if trainer.monitor else None
    if trained:
        log.info("final training %s", trainer.objective.words(*trained))
    log.info("final validation %s; %.1f s", trainer.objective.words(*validated), time.perf_counter() - began_s)
    rows = checklist(args, trainer, seen)
    print_checklist(rows)
    if args.report:
        write_report(args, trainer, trained, validated, rows)


if __name__ == "__main__":
    try:
        main()
    except H5StreamError as error:  # its text says what to write; the lines of the program say nothing more
        sys.exit(f"error: {error}")
