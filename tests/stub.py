"""`make stub`: writes skipbench/__init__.pyi, the public names and their types for type checkers.

The package imports its public names lazily and makes its evaluations from their settings, which
type checkers cannot follow.
"""

import inspect
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

import skipbench
from skipbench.calls import signature_of
from skipbench.evaluations import find_evaluation
from skipbench.evaluations.tokencut.settings import SCORING

FILE = Path(skipbench.__file__).with_suffix(".pyi")
HEADER = "# Written by `make stub`: do not edit."
NAMED = {
    "collections.abc": ("Iterable", "Mapping", "Sequence"),
    "pathlib": ("Path",),
    "typing": ("Literal",),
    "skipbench.images": ("ImageItem",),
    "skipbench.sources": ("ModelLike",),
}


def stub():
    """The text of the file."""
    imported, functions = defaultdict(set), []
    for name in skipbench.__all__:
        public = getattr(skipbench, name)
        module = getattr(public, "__module__", None)
        if module == "skipbench.calls":
            functions.append(declaration(name, signature(name, public)))
        elif module:
            imported[module].add(name)
    for module, names in NAMED.items():
        imported[module] |= {name for name in names if re.search(rf"\b{name}\b", str(functions))}
    imports = [
        "\n".join(import_line(module, imported[module]) for module in sorted(some))
        for some in groups(imported)
    ]
    listed = "\n".join(["__all__ = [", *(f'    "{name}",' for name in skipbench.__all__), "]"])
    parts = [HEADER, *imports, listed, "__version__: str", "\n".join(functions)]
    return "\n\n".join(parts) + "\n"


def groups(modules):
    """Python's own, others', ours."""
    first = {module: module.partition(".")[0] for module in modules}
    own = {module for module in modules if first[module] in sys.stdlib_module_names}
    ours = {module for module in modules if first[module] == "skipbench"}
    return [one for one in (own, set(modules) - own - ours, ours) if one]


def import_line(module, names):
    """Classes first, as ruff sorts them."""
    return f"from {module} import {', '.join(sorted(names, key=lambda n: (n.islower(), n)))}"


def signature(name, public):
    """`find_objects` has the options of `tokencut`, but for those that need a data set."""
    if name != "find_objects":
        return inspect.signature(public)
    whole = signature_of(find_evaluation("tokencut"), Path, first=("ckpt", "images"))
    left_out = ("dataset", *SCORING)
    own = [one for one in whole.parameters.values() if one.name not in left_out]
    own = [one.replace(default=None) if one.name == "out" else one for one in own]
    return whole.replace(parameters=own)


def declaration(name, signature):
    lines, before = [f"def {name}("], None
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and before is not one.kind:
            lines.append("    *,")
        before, text = one.kind, type_text(one.annotation)
        if one.default is not one.empty:  # None means the default
            text = f"{text.removesuffix(' | None')} | None = {default_text(one.default)}"
        lines.append(f"    {one.name}: {text},")
    return "\n".join([*lines, f") -> {type_text(signature.return_annotation)}: ..."])


def type_text(annotation):
    """The same on every version of Python."""
    if isinstance(annotation, str):
        return annotation
    if annotation is NoneType:
        return "None"
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " | ".join(map(type_text, args))
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, args))}]"
    inside = f"[{', '.join(map(type_text, args))}]" if origin else ""
    return f"{(origin or annotation).__name__}{inside}"


def default_text(value):
    if isinstance(value, dict):
        return "..."
    if isinstance(value, str | Path):
        return json.dumps(str(value))
    return repr(value).replace("'", '"')


if __name__ == "__main__":
    FILE.write_text(stub())
