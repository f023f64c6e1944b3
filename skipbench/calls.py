"""Each evaluation as one Python call, with the settings and defaults of its command."""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from skipbench.errors import UsageError
from skipbench.evaluations import Evaluation, find_evaluation
from skipbench.pipeline import carry_out, open_run
from skipbench.records import Result
from skipbench.settings import Settings


def function_of(name: str) -> Callable[..., Any]:
    """`probe(ckpt, dataset, **settings)` and the like; `probe_all` always returns a list."""
    evaluation = find_evaluation(name.removesuffix("_all"))
    one = (evaluation.returns_one or evaluation.writes_one) and not name.endswith("_all")

    def function(*args: Any, **given: Any) -> Any:
        run = open_run(evaluation, _settings(evaluation, *args, **given))
        if one and len(run.cells) > 1:
            raise UsageError(f"these settings give {len(run.cells)} records: use {name}_all")
        results = carry_out(run)
        return results[0] if one else results

    function.__name__ = function.__qualname__ = name
    returned = "Result" if one else "list of Result"
    function.__doc__ = f"{evaluation.summary}\n\nSettings: `skipbench {evaluation.name} --help`."
    function.__doc__ += f"\nReturns: {returned}, also written to `out`."
    function.__signature__ = _signature(evaluation).replace(  # type: ignore[attr-defined]
        return_annotation=Result if one else list[Result]
    )
    return function


def find_objects(ckpt: str | Path, images: str | Path | Iterable[Any], **given: Any) -> Path:
    """`skipbench tokencut --images`: box, mask and eigenvector drawn over images, into `out`."""
    from skipbench.evaluations.tokencut.pictures import find_objects

    several = [images] if isinstance(images, str | Path) else list(images)
    settings = _settings(find_evaluation("tokencut"), ckpt, images=several, **given)
    return find_objects(settings)  # type: ignore[arg-type]


def _settings(evaluation: Evaluation, *args: Any, **given: Any) -> Settings:
    """Checked; a call that does not fit the signature is a TypeError."""
    if "seed" in given and "seeds" in evaluation.settings.options():
        given["seeds"] = [given.pop("seed")]
    return evaluation.settings.make(_signature(evaluation).bind_partial(*args, **given).arguments)


def _signature(evaluation: Evaluation) -> inspect.Signature:
    defaults = evaluation.settings.defaults()
    first = evaluation.settings.positional
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in first]
    for name in evaluation.settings.options():
        if name not in first:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=defaults[name]))
    return inspect.Signature(parameters)
