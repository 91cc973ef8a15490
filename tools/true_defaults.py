"""For the documentation: signatures with the values of constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe


class TrueDefaults(griffe.Extension):
    """Resolves constants in signatures, those imported from another module as well."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the parameters of all functions, once every module is known."""
        for function in _functions(pkg):
            for parameter in function.parameters:
                if (name := str(parameter.default)).isupper() and name in function.module.members:
                    constant: Any = function.module.members[name]
                    parameter.default = str((constant.final_target if constant.is_alias else constant).value)


def _functions(parent: Any) -> Iterator[griffe.Function]:
    for member in parent.members.values():
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from _functions(member)
