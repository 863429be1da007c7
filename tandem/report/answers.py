"""The first sentences of the report, which answer what its reader asks: which device was used and why, whether a
speed-up was measured, and whether the results repeat. Also the meaning of the report's terms.
"""

import re
from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

from tandem.comparing.comparability import short_hardware
from tandem.comparing.rerun import STATUS
from tandem.report.comparison import KINDS, ReportSection, speed_summary
from tandem.report.text import joined

BOTH_DEVICES = "`dvc exp run -S 'devices=[cpu,cuda]' -S 'seeds=[0,1,2,3,4]'`"
# Verdicts on published results, of several workloads and of one.
REPEATED = {
    "bit-equal": ("repeat the published results bit for bit", "repeats the published result bit for bit"),
    "within rounding": (
        "agree with the published results within rounding",
        "agrees with the published result within rounding",
    ),
    "statistically compatible": (
        "have scores that are statistically compatible with the published ones",
        "has a score that is statistically compatible with the published one",
    ),
    "inconclusive": ("have too few published seeds to be judged", "has too few published seeds to be judged"),
    "different": ("differ from the published results", "differs from the published result"),
    "": ("have no published results to repeat", "has no published result to repeat"),
}
# Terms in the order of the legend. The report explains those that it uses.
TERMS = {
    "bit-equal": "all losses, weights and predictions have the same bits",
    "within rounding": "the losses differ by no more than rounding explains, which was measured",
    "statistically compatible": "the scores differ by no more than the spread over seeds",
    "published": "results of the named machine that come with the project (docs/published.json)",
    "skill": "the share of the error of the forecast “nothing changes” that is removed; 0 is no better, 1 is perfect",
    "event F1": "the harmonic mean of the found share of the events and the true share of the found ones",
    "1-NN": "each sequence gets the class of the most similar training sequence",
    "persistence": "the forecast that nothing changes",
    "fp32": "numbers of 32 bits",
}


def answers(sections: Sequence[ReportSection]) -> list[str]:
    return [devices(sections), speed(sections), "; ".join(repeated(sections)) + "."]


def devices(sections: Sequence[ReportSection]) -> str:
    rows = [row for section in sections for row in section.own]
    names = {row["device"]: short_hardware(row["device_name"]) for row in rows}
    used = joined([f"the {KINDS.get(kind, kind)} ({name})" for kind, name in sorted(names.items())])
    why = rows[0]["why_not_cuda"] if set(names) == {"cpu"} else ""
    reason = f", because PyTorch can use no GPU here: {why}" if why else ""
    return f"Trained on {used}{reason}."


def speed(sections: Sequence[ReportSection]) -> str:
    """Whether one device was found to be faster than the other."""
    found = []
    for each in (section.comparison for section in sections):
        for judged in each.judgements:
            names = (KINDS.get(side.name, side.name) for side in (judged.first, judged.second))
            found.append(f"{each.workload}: {speed_summary(judged, *names)}")
    if found:
        return f"Speed of the devices: {'; '.join(found)}."
    (kind, *_) = {row["device"] for section in sections for row in section.own}
    return (
        f"Whether a GPU is faster was not measured, because only the {KINDS.get(kind, kind)} was used; on a machine "
        f"with a GPU, {BOTH_DEVICES} measures it."
    )


def repeated(sections: Sequence[ReportSection]) -> Iterator[str]:
    """Say which workloads repeat the published results, by the strongest verdict on each."""
    by_verdict: dict[str, list[str]] = {}
    for section in sections:
        verdicts = [each.verdict.name for each in section.comparison.references if each.verdict]
        best = min(verdicts, key=list(STATUS).index, default="")
        by_verdict.setdefault(best if best in REPEATED else "", []).append(section.comparison.workload)
    for verdict in sorted(by_verdict, key=list(REPEATED).index):
        workloads = by_verdict[verdict]
        yield f"{joined(workloads)} {REPEATED[verdict][len(workloads) == 1]}"


def explained(text: object) -> Markup:
    """Return `text` as HTML in which each of TERMS shows its meaning when the pointer is on it."""

    def with_title(match: re.Match[str]) -> str:
        return f'<abbr title="{escape(TERMS[match[0]])}">{match[0]}</abbr>'

    return Markup(re.sub("|".join(map(re.escape, TERMS)), with_title, str(escape(text))))


def legend(text: str) -> dict[str, str]:
    """Return the terms that occur in the text of the report, with their meaning."""
    return {term: meaning for term, meaning in TERMS.items() if term in text}
