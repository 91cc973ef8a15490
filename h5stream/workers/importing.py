"""Whether the user's functions can go to another process, and how the script that they come from is imported there."""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import os
import pickle
from collections.abc import Callable
from typing import Any

from h5stream.errors import OptionError


def checked_method(context: Any) -> str:
    """Return the name of a way to start processes, of that or of a context of multiprocessing; "spawn" for None.

    Not a fork by default: reader threads are alive, and what they hold locked would stay so in the child.
    """
    method = context.get_start_method() if hasattr(context, "get_start_method") else context or "spawn"
    if method not in multiprocessing.get_all_start_methods():
        raise OptionError(
            f"multiprocessing_context= takes 'spawn', 'forkserver' or 'fork', or a context of multiprocessing, not "
            f"{context!r}"
        )
    return str(method)


def check_function(name: str, function: Callable[..., Any] | None, where: str, way_out: str = "") -> None:
    """Refuse a function that a child could not call."""
    try:
        data = pickle.dumps(function)
    except Exception as error:
        raise OptionError(
            f"{name}={function!r} cannot go to {where}, because it cannot be pickled ({error}); define it at the top "
            f"level of a module, where lambdas and inner functions are not{way_out}"
        ) from error
    main = main_module(data)
    if main and "init_main_from_name" not in main and not os.path.isfile(main.get("init_main_from_path", "")):
        raise OptionError(
            f"{name}={function!r} cannot go to {where}, because it was defined in a notebook, at a prompt or in a "
            f"script that was piped in, which another process cannot import; put it into a module that is "
            f"imported{way_out}"
        )


def main_module(functions: bytes) -> dict[str, Any] | None:
    """Say how to import the parent's script, if pickled functions come from it.

    Else it is not imported: a script that reads a file needs no ``if __name__ == "__main__"`` for us.
    """
    if (b"__main__" not in functions and b"__mp_main__" not in functions) or _is_being_imported():
        return None  # a script that is only imported may make a loader, and starts no child
    wanted = {"name", "sys_path", "sys_argv", "init_main_from_name", "init_main_from_path"}
    found = multiprocessing.spawn.get_preparation_data("h5stream")
    return {name: value for name, value in found.items() if name in wanted}


def import_main(main: dict[str, Any]) -> None:
    """Import the parent's script, in the child; as multiprocessing does, so that the guard is the same."""
    with _importing_main():
        multiprocessing.spawn.prepare(main)


class _importing_main:  # noqa: N801  a context manager, used like a function
    """While it lasts, what starts a process is told about the missing guard: by multiprocessing, and by us."""

    def __enter__(self) -> None:
        multiprocessing.current_process()._inheriting = True  # type: ignore[attr-defined]

    def __exit__(self, *exception: object) -> None:
        del multiprocessing.current_process()._inheriting  # type: ignore[attr-defined]


def _is_being_imported() -> bool:
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def check_main_guard(whose: str) -> None:
    """Refuse to start a process in a script that is only imported, by a child of its own."""
    if _is_being_imported():
        raise OptionError(
            f"{whose} starts a process that imports this script, because a function it needs is defined "
            "here; what trains must not run then. Put it under `if __name__ == '__main__':`, or the function into a "
            "module of its own"
        )
