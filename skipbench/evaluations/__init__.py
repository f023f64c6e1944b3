"""The evaluations, one folder each. A folder with an EVALUATION is found; nothing lists them.

base.py         what an evaluation declares
run.py          what a run is made of: cells, each of which becomes a record
segmentation/   what probe, knn and cluster share
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from skipbench.errors import UsageError, did_you_mean
from skipbench.evaluations.base import Evaluation, UnknownEvaluation
from skipbench.records import Result


@cache
def evaluations() -> dict[str, Evaluation]:
    """By name, in the order in which they are listed."""
    packages = [import_module(f"{__name__}.{m.name}") for m in iter_modules(__path__) if m.ispkg]
    found = [package.EVALUATION for package in packages if hasattr(package, "EVALUATION")]
    return {one.name: one for one in sorted(found, key=lambda one: (one.order, one.name))}


def evaluation_of(result: Result) -> Evaluation:
    """With sensible defaults for a record of an evaluation that this version does not know."""
    known = evaluations()
    if result.evaluation in known:
        return known[result.evaluation]
    metrics = {name: title for one in known.values() for name, title in one.metrics.items()}
    return UnknownEvaluation(result, metrics)


def find_evaluation(name: str) -> Evaluation:
    known = evaluations()
    if name not in known:
        near = did_you_mean(name, known)
        raise UsageError(f"no evaluation {name!r}.{near} Known: {', '.join(known)}")
    return known[name]
