"""Each evaluation as one Python call, with the settings and defaults of its command."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from skipbench.errors import UsageError
from skipbench.evaluations import Evaluation, find_evaluation
from skipbench.pipeline import carry_out, open_run
from skipbench.records import Result
from skipbench.settings import Settings
from skipbench.sources import ModelLike


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
    returns = Result if one else list[Result]
    function.__signature__ = signature_of(evaluation, returns)  # type: ignore[attr-defined]
    return function


def find_objects(ckpt: ModelLike, images: str | Path | Iterable[Any], **given: Any) -> Path:
    """`skipbench tokencut --images`: box, mask and eigenvector drawn over images, into `out`."""
    from skipbench.evaluations.tokencut.pictures import find_objects

    several = [images] if isinstance(images, str | Path) else list(images)
    settings = _settings(find_evaluation("tokencut"), ckpt, images=several, **given)
    return find_objects(settings)  # type: ignore[arg-type]


def _settings(evaluation: Evaluation, *args: Any, **given: Any) -> Settings:
    """Checked; a call that does not fit the signature is a TypeError."""
    named = signature_of(evaluation, Settings).bind_partial(*args, **given).arguments
    if (seed := named.pop("seed", None)) is not None:
        named["seeds"] = [seed]
    return evaluation.settings.make(named)


def signature_of(
    evaluation: Evaluation, returns: Any, first: Sequence[str] = ()
) -> inspect.Signature:
    """first: positional arguments, if not those of the evaluation."""
    first = first or evaluation.settings.positional
    defaults, types = evaluation.settings.defaults(), _accepted(evaluation)
    parameters = []
    for name in [*first, *(name for name in types if name not in first)]:
        parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=types[name])
        if name in first:
            parameter = parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        else:
            parameter = parameter.replace(default=defaults.get(name))
        parameters.append(parameter)
    return inspect.Signature(parameters, return_annotation=returns)


def _accepted(evaluation: Evaluation) -> dict[str, Any]:
    """What each option takes: the type of its parser's argument or, if that is Any, its own."""
    own, found = get_type_hints(evaluation.settings), dict[str, Any]()
    for name, option in evaluation.settings.options().items():
        value, *_ = inspect.signature(option.parse).parameters.values()
        found[name] = own[name] if value.annotation is Any else value.annotation
    return {**found, "seed": int} if "seeds" in found else found
