"""The verdicts of a check as text: sentences, JUnit, GitHub annotations, Markdown."""

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from skipbench.results.check import Verdict
from skipbench.results.tables.render import md, md_row
from skipbench.results.words import p_text, signed

STATES = ("worse", "missing", "better", "met", "new")


def sentence(verdict: Verdict) -> str:
    """ "56.3 instead of 57.6 (−1.3, allowed 0.5)"."""
    note = f"; {verdict.note}" if verdict.note else ""
    if verdict.found is None:
        return f"missing; {verdict.expected:.2f} was expected{note}"
    if verdict.expected is None or verdict.difference is None:
        return f"{verdict.found:.2f}, not in the baseline"
    if verdict.interval:
        ends = f"{signed(verdict.interval[0], 2)} to {signed(verdict.interval[1], 2)}"
        rule = f"paired interval {ends}, {p_text(verdict.p_value or 0.0)}"
    else:
        rule = f"allowed {verdict.allowed:.2f}"
    moved = signed(verdict.difference, 2)
    return f"{verdict.found:.2f} instead of {verdict.expected:.2f} ({moved}, {rule}){note}"


def summary(verdicts: Sequence[Verdict]) -> str:
    """ "3 met, 1 worse"."""
    count: Counter[str] = Counter(verdict.state for verdict in verdicts)
    return ", ".join(f"{count[state]} {state}" for state in STATES if count[state])


def worst_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted(verdicts, key=lambda verdict: STATES.index(verdict.state))


def junit(verdicts: Sequence[Verdict]) -> str:
    judged = [verdict for verdict in verdicts if verdict.state != "new"]
    suite = ElementTree.Element(
        "testsuite",
        name="skipbench",
        tests=str(len(judged)),
        failures=str(sum(verdict.fails for verdict in judged)),
        errors="0",
        skipped="0",
    )
    for verdict in judged:
        case = ElementTree.SubElement(
            suite, "testcase", classname="skipbench.check", name=_xml(verdict.figure)
        )
        if verdict.fails:
            failure = ElementTree.SubElement(
                case, "failure", type=verdict.state, message=_xml(sentence(verdict))
            )
            failure.text = _xml(f"{verdict.figure}: {sentence(verdict)}")
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(
        suite, encoding="unicode"
    )


def _xml(text: str) -> str:
    """XML allows neither control characters nor lone surrogates, not even escaped."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def annotations(verdicts: Sequence[Verdict]) -> list[str]:
    """Lines that GitHub shows in a pull request."""
    kinds = {"worse": "error", "missing": "error", "better": "notice"}
    return [
        f"::{kinds[verdict.state]} title=skipbench%3A {verdict.state}::"
        + _data(f"{verdict.figure}: {sentence(verdict)}")
        for verdict in verdicts
        if verdict.state in kinds
    ]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def step_summary(verdicts: Sequence[Verdict]) -> str:
    """Markdown, for GitHub's page of the run."""
    lines = [f"### skipbench check: {summary(verdicts)}", ""]
    lines += [md_row(["figure", "verdict", "what"]), md_row(["---"] * 3)]
    for verdict in worst_first(verdicts):
        state = f"**{verdict.state}**" if verdict.fails else verdict.state
        lines.append(md_row([md(verdict.figure), state, md(sentence(verdict))]))
    return "\n".join(lines) + "\n"
