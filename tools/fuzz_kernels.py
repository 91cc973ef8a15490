"""Call the kernels in C with numbers and bytes that a damaged file may have, in a build that watches every access.

    python -m tools.fuzz_kernels                                   # 5 minutes
    H5STREAM_FUZZ_MINUTES=60 python -m tools.fuzz_kernels --seed 7
    python -m tools.fuzz_kernels --target heap --minutes 1

First each compiler that is there (gcc, clang) has to build the kernels without a warning. Then gcc builds them with
AddressSanitizer and UndefinedBehaviorSanitizer, and a process with that build draws calls for each target in turn. They
are sound, but for some numbers or bytes that are changed. A kernel may refuse what it is given, and must touch nothing
else. The first access that is wrong ends the process, with a stack of calls in C; `--seed` repeats the call.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINUTES = float(os.environ.get("H5STREAM_FUZZ_MINUTES", "5"))
CHECKED = "bounds,shift,null,alignment,integer-divide-by-zero,vla-bound,bool,enum,unreachable,return"
SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize=address,{CHECKED}", "-fno-sanitize-recover=all")
"""Sums wrap where that is meant (`-fwrapv`), so they are not looked at; nor is what takes minutes to compile."""
ENVIRONMENT = {
    # What is larger is refused, as a machine would: of memory that nobody touches the sanitizer touches an eighth.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048:"
    "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # so that each buffer has its own fence
}


def flags() -> list[str]:
    """Return what `setup.py` gives the compiler."""
    calls = [node for node in ast.walk(ast.parse((ROOT / "setup.py").read_text())) if isinstance(node, ast.keyword)]
    (own,) = (ast.literal_eval(node.value) for node in calls if node.arg == "extra_compile_args")
    return [*own, "-DPy_LIMITED_API=0x030B0000", "-fPIC", f"-I{sysconfig.get_paths()['include']}"]


def build(compiler: str, out: Path, *more: str) -> None:
    """Build the kernels as a module of Python, each file by a process of its own; a warning is an error."""
    sources = sorted((ROOT / "h5stream" / "compiled").glob("*.c"))
    objects = [str(out.with_name(f"{out.name}.{source.stem}.o")) for source in sources]
    command = [compiler, *flags(), "-Werror", *more]
    pairs = zip(sources, objects, strict=True)
    running = [subprocess.Popen([*command, "-c", str(source), "-o", made]) for source, made in pairs]
    if sum(process.wait() != 0 for process in running):
        raise SystemExit(f"{compiler} does not build the kernels without a warning")
    subprocess.run([compiler, *more, "-shared", *objects, "-o", str(out)], check=True)


def main(arguments: list[str] | None = None) -> int:
    """Build, and fuzz as the arguments say; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first call; by default the time")
    parser.add_argument("--target", help="one of the targets alone")
    parser.add_argument("--once", action="store_true", help="the call of the seed alone, for each target")
    options = parser.parse_args(arguments)
    compilers = [name for name in ("gcc", "clang") if shutil.which(name)]
    if "gcc" not in compilers:
        print("there is no gcc, and so nothing is built and fuzzed")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for compiler in compilers:
            build(compiler, Path(folder) / "warnings.so", "-O1")
            print(f"{compiler} builds the kernels without a warning")
        if "clang" not in compilers:
            print("there is no clang, whose warnings are not looked at")
        made = Path(folder) / "_native.abi3.so"
        build("gcc", made, *SANITIZED)
        print(f"all was built in {time.monotonic() - began:.0f} s", flush=True)
        libraries = [
            subprocess.run(
                ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
            ).stdout.strip()
            for name in ("libasan.so", "libubsan.so")
        ]
        more = [*(["--target", options.target] if options.target else []), *["--once"] * options.once]
        command = [sys.executable, "-m", "tools.fuzz_targets", str(made), str(options.seed), str(options.minutes)]
        environment = {**os.environ, **ENVIRONMENT, "LD_PRELOAD": " ".join(libraries)}
        status = subprocess.run([*command, *more], cwd=ROOT, env=environment, check=False).returncode
        if status and (call := made.with_suffix(".so.call")).exists():  # not if the target is none
            print(f"to repeat it: python -m tools.fuzz_kernels {call.read_text()}")
        return status


if __name__ == "__main__":
    sys.exit(main())
