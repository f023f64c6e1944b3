"""Which variant is run: what the user says, else what the file says, else what the weights show."""

from dataclasses import dataclass

from skipbench.records import CheckpointFacts, Residual, Verdict


@dataclass(frozen=True)
class Choice:
    residual: Residual
    source: str  # "--residual", the place in the file, or "the health of its blocks"
    warning: str | None = None  # set where the choice goes against a clear winner


def choose_variant(
    facts: CheckpointFacts, asked: Residual | None, verdict: Verdict
) -> Choice | None:
    """None: nobody says it, and the weights do not show it."""
    residual = asked or facts.residual
    source = "--residual" if asked else facts.sources.get("residual", "")
    if residual is None:
        return verdict.winner and Choice(verdict.winner, "the health of its blocks")
    if verdict.winner is None or verdict.winner == residual:
        return Choice(residual, source)
    warning = (
        f"{facts.name} is run {residual.upper()} because of {source}, but its weights look "
        f"{verdict.winner.upper()}: {verdict.reason}. The figures will be worthless if "
        "that is right."
    )
    return Choice(residual, source, warning)
