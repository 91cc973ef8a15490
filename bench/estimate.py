"""How long tools/bench will take: ``python -m bench.estimate full main peers``."""

from __future__ import annotations

import argparse

from bench import cases, growth, sweep
from bench.peers.__main__ import estimate_s as peers_s

# Seconds of a round, about, on two cores; a file is written in 10 to 30.
ROUND_S = {
    "naive": 35.0,
    "tuned": 6.0,
    "ours": 0.5,
    "kept": 0.5,
    "in_ram": 0.5,
    "decode_limit": 0.5,
    "threaded_copy": 0.5,
    "sequential_h5py": 1.5,
}
WRITE_S = 20.0
PROMISES_S = 45.0


def main_s(size: str) -> float:
    """Give the seconds of the main job and the promises."""
    if size == "quick":
        return 3 * WRITE_S + PROMISES_S
    rounds = sum(cases.ROUNDS[name] * ROUND_S[name] for names in cases.CASES.values() for name in names)
    return len(cases.FILES) * WRITE_S + rounds + PROMISES_S


def loops_s(_: str) -> float:
    """Give the seconds of the loops that train."""
    return 600.0


PARTS = {"main": main_s, "peers": peers_s, "sweep": sweep.estimate_s, "growth": growth.estimate_s, "loops": loops_s}


def main() -> int:
    """Print the minutes of each part, and of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=["quick", "full"])
    parser.add_argument("part", nargs="+")
    given = parser.parse_args()
    minutes = {part: PARTS[part](given.size) / 60 for part in given.part if part in PARTS}
    said = ", ".join(f"{part} {value:.0f}" for part, value in minutes.items())
    print(f"about {sum(minutes.values()):.0f} minutes: {said}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
