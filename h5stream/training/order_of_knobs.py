"""Which setting to turn first: batch, threads, memory, precision, and when to stop turning it."""

from __future__ import annotations

from h5stream.advice.suggestion import NOT_WAITING, WAITING, Suggestion, Turn, at_least
from h5stream.errors import OptionError
from h5stream.training.presets import GpuPreset, Setting

_FASTER_PRECISION = {"fp32": "tf32, then bf16 autocast", "tf32": "bf16 autocast", "fp16": "fp16", "bf16": "bf16"}


def what_to_try_first(
    setting: Setting,
    *,
    precision: str = "fp32",
    waiting_share: float | None = None,
    preset: GpuPreset | None = None,
    cpus: int | None = None,
) -> Suggestion:
    """Return the settings in the order to try them, which the share of time spent waiting for data decides."""
    at_least(1, cpus=cpus)
    if waiting_share is not None and not 0 <= waiting_share <= 1:
        raise OptionError(f"waiting_share must be between 0 and 1, not {waiting_share}")
    if precision not in _FASTER_PRECISION:
        raise OptionError(f"precision must be one of {', '.join(_FASTER_PRECISION)}, not {precision!r}")
    knobs = _knobs(setting, precision, preset, cpus)
    order, reason = _order(waiting_share)
    chosen = tuple(knobs[name] for name in order.split())
    lines = [
        line
        for place, turn in enumerate(chosen, 1)
        for line in (f"{place}. {turn.knob}: {turn.present} -> {turn.try_next}", f"   {turn.why}; stop {turn.stop}")
    ]
    return Suggestion(
        title="What to try first",
        answer=", then ".join(turn.knob for turn in chosen) + " (one at a time)",
        arithmetic=(reason, *lines),
        caveats=("a larger batch changes training, not only its speed: see the learning rate",),
        sources=("docs/troubleshooting.md, Low GPU utilization; `h5stream diagnose` measures the wait",),
        figures={"knobs": chosen, "waiting_share": waiting_share},
    )


def _knobs(setting: Setting, precision: str, preset: GpuPreset | None, cpus: int | None) -> dict[str, Turn]:
    faster = _FASTER_PRECISION[precision]
    return {
        "batch": Turn(
            knob="batch_size",
            present=str(setting.batch_size),
            try_next=_next_batch(setting.batch_size, preset),
            why="more work for each launch and each copy",
            stop="when rows/s no longer rise or memory ends (find_batch_size)",
        ),
        "workers": Turn(
            knob="num_workers",
            present=str(setting.workers),
            try_next=_next_workers(setting.workers, preset, cpus),
            why="threads that read and decode; by default all processors that are allowed",
            stop="when the processors are busy or the wait is under 5 %",
        ),
        "memory": Turn(
            knob="memory_budget",
            present="the default",
            try_next="all decoded rows and 2GiB",
            why="rows that fit stay decoded in memory, so that later epochs neither read nor decode them (keep=)",
            stop="when stats() says that nothing is read any more, or memory ends",
        ),
        "precision": Turn(
            knob="precision",
            present=precision,
            try_next="leave it" if faster == precision else faster,
            why="faster matrix products and smaller activations",
            stop="if the loss departs from the one in fp32",
        ),
    }


def _order(waiting_share: float | None) -> tuple[str, str]:
    if waiting_share is None:
        measured = "nothing measured: batch first; `h5stream diagnose` measures the wait and may reverse it"
        return "batch workers memory precision", measured
    share = f"{waiting_share:.0%} of the step waits for data"
    if waiting_share > WAITING:
        return "workers memory batch precision", f"{share} (over {WAITING:.0%}): feed it first"
    if waiting_share < NOT_WAITING:
        return "batch precision workers memory", f"{share} (under {NOT_WAITING:.0%}): the loader is not the limit"
    return "batch workers memory precision", f"{share}: neither side is clearly the limit"


def _next_batch(now: int, preset: GpuPreset | None) -> str:
    if preset is None:
        return f"{2 * now} (double)"
    if now < preset.setting.batch_size:
        return f"{preset.setting.batch_size} (the preset)"
    if preset.underused is not None and now < preset.underused.batch_size:
        return f"{preset.underused.batch_size} (the preset of an underused {preset.gpu})"
    # As from 8192 to 10240, the one step beyond a preset that the table has.
    return f"{now + max(1, now // 4)} (a quarter more than now)"


def _next_workers(now: int, preset: GpuPreset | None, cpus: int | None) -> str:
    known = [one.workers for one in (preset.setting, preset.underused) if one] if preset else []
    wanted = next((value for value in known if value > now), max(1, 2 * now))
    if cpus is not None and now > cpus:
        return f"{cpus} (no more processors are allowed here)"
    if now == cpus:
        return f"leave it: {cpus} processors allowed"
    return f"{cpus} (all processors allowed)" if cpus is not None and wanted >= cpus else str(wanted)
