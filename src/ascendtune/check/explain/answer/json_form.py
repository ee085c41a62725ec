"""An explanation as JSON, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ascendtune.check.explain import reading
from ascendtune.check.explain.answer.applicable_remedies import causes_here
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.table import as_json as findings_as_json
from ascendtune.core.errors import NoVerdict

if TYPE_CHECKING:
    from ascendtune.check.explain.answer.model_answer import Opinion


def as_json(explanation: Explanation, opinion: Opinion | None = None) -> str:
    """The explanation, with the opinion of a language model if it was asked."""
    fields = {"opinion": opinion.as_json() if opinion is not None else None}
    return findings_as_json(explanation.headline(), explanation.findings(), **fields_of(explanation), **fields)


def fields_of(explanation: Explanation) -> dict[str, Any]:
    """Fields of an explanation, without its findings."""
    diagnosis, cause = explanation.verdict, explanation.run_cause
    certainty = "cause" if diagnosis.first is None and cause is not None else diagnosis.certainty

    def event(each: Event) -> dict[str, Any]:
        causes = causes_here(each.causes, each.entry, explanation.facts)
        return {**each.as_json(), "causes": list(causes), "remedies": list(explanation.remedies_here(each))}

    remedies = list(explanation.remedies()) if diagnosis.first or cause else []
    first = event(diagnosis.first) if diagnosis.first else None
    if first is not None and diagnosis.missing is None:
        # If it waited for ranks, the remedies are for these, and not for the event.
        first["remedies"] = remedies
    return {
        "exit_code": explanation.exit_code,
        "certainty": "none" if explanation.exit_code == NoVerdict.exit_code else certainty,
        "sureness": explanation.sureness if diagnosis.first else None,
        "first": first,
        "remedies": remedies,
        "rival": event(diagnosis.rival) if diagnosis.rival else None,
        "rank": diagnosis.rank,
        "host": diagnosis.host,
        "missing": diagnosis.missing.as_json() if diagnosis.missing else None,
        "facts": {name: list(values) for name, values in sorted(explanation.facts.items())},
        "memory": explanation.sums.as_json() if explanation.sums else None,
        "now": list(explanation.now()),
        "run_cause": cause,
        "stop": explanation.stop,
        "is_running": explanation.is_running,
        "attempts": asdict(explanation.attempts) if explanation.attempts else None,
        "echoes": [event(each) for each in diagnosis.echoes],
        "notices": [event(each) for each in diagnosis.notices],
        "dismissed": [event(each) for each in diagnosis.dismissed],
        "sources": reading.sources_as_json(explanation.scans),
        "unread": [{"name": each.name, "why": each.why} for each in explanation.unread],
    }
