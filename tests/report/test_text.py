import os
import re
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from optdoctor.engine import diagnose
from optdoctor.findings import (
    Abstain,
    Diagnosis,
    Evidence,
    Finding,
    NotExamined,
    Severity,
    Status,
    Treatment,
)
from optdoctor.knowledge.rates import UNMEASURED, rates_of
from optdoctor.report import markdown, page, slots
from optdoctor.report.account import account
from optdoctor.report.tensors import fold
from optdoctor.report.text import coloured, one_line, render, render_many
from optdoctor.report.wording import (
    beginning,
    middle,
    number,
    origin_name,
    percent,
    sentence,
    short_name,
    wrap,
)
from optdoctor.rule import Limits, Rule
from optdoctor.rules import RULES
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace, small_gpt
from optdoctor.trace import Event, TensorInfo, Trace

HOSTILE = "a\x1b[31mb\x9b2J\u202ec\u200fd\x07e\r\nf\ttable \ud800 漢字漢字 " + "x" * 200


def float16_run(math_dtype: str = "float32", framework: str | None = None) -> Trace:
    """A resume turns the state to float16 at step 361; the loss is NaN from 362 on."""
    tensors = small_gpt("float16", math_dtype=math_dtype)
    steps = np.r_[np.arange(1, 11), np.arange(356, 366)]
    zero = np.zeros((20, len(tensors)), np.float32)
    zero[15:, 2:4], zero[15:, 6] = 0.6, 0.8
    broken = np.zeros_like(zero)
    broken[15:] = 100
    loss = falling_loss(480)
    loss[361:] = np.nan
    sampled = {"moment2_zero": zero, "update_nonfinite": broken, "grad_nonfinite": broken * 0}
    return make_trace(
        sampled,
        loss=loss,
        state_dtype="float16",
        math_dtype=math_dtype,
        param_dtype="float16",
        eps=1e-8,
        beta2=0.999,
        optimizer="AdamW",
        optimizer_family="adam",
        framework=framework,
        tensors=tensors,
        steps=dict.fromkeys(sampled, steps),
        events=[Event(360, "resume", "weights and state", "float32", "float16")],
    )


def counted_log() -> Trace:
    loss = falling_loss(100)
    loss[50:] = np.nan
    trace = make_trace(loss=loss, step_source="counted rows")
    return replace(trace, origin="runs/train.log", reader="huggingface-console", lines_skipped=2)


def hostile_run() -> Trace:
    tensors = tuple(replace(t, name=f"{HOSTILE}.{t.name}") for t in small_gpt("float16"))
    share = np.full((20, len(tensors)), 0.5, np.float32)
    trace = make_trace(
        loss=falling_loss(20),
        moment2_zero=share,
        state_dtype="float16",
        math_dtype="float16",
        eps=1e-8,
        beta2=0.999,
        optimizer=HOSTILE,
        optimizer_family="adam",
        framework=HOSTILE,
        tensors=tensors,
        events=[Event(1, "resume", HOSTILE, HOSTILE, HOSTILE), Event(3, "doctor-failed", HOSTILE)],
    )
    return replace(trace, origin=f"/home/ann/{HOSTILE}", reader=HOSTILE, lines_skipped=10**9)


def many_rules_run(count: int = 6) -> tuple[Diagnosis, Trace]:
    """Findings of `count` rules with long words in every slot."""

    def finds(name: str) -> Rule:
        finding = Finding(
            severity=Severity.WARN,
            summary="The loss does something that takes many words to say. " * 5,
            steps=(5, 90),
            evidence=tuple(Evidence("loss", "a long reason " * 12, 3, 1, "rows") for _ in range(4)),
            treatments=tuple(
                Treatment(f"Do this {i} " * 12, {"eps": (1e-8, 10.0**-i)}) for i in range(4)
            ),
        )
        return Rule(name, ("loss",), lambda *_: [finding], Limits(), Trace, Trace, "Title.")

    trace = make_trace(loss=falling_loss(100))
    return diagnose(trace, [finds(f"rule-{i}") for i in range(count)]), trace


def cases() -> dict[str, tuple[Diagnosis, Trace]]:
    traces = {f"{rule.name} sick": rule.sick() for rule in RULES}
    traces |= {f"{rule.name} healthy": rule.healthy() for rule in RULES}
    traces |= {
        "float16": float16_run(),
        "float16 throughout": float16_run("float16"),
        "counted log": counted_log(),
        "hostile": hostile_run(),
        "short": make_trace(loss=falling_loss(7)),
        "few": make_trace(loss=[3.0, np.nan, np.inf]),
        "empty": Trace(),
    }
    many = {f"{n} findings": many_rules_run(n) for n in (1, 2, 3, 6)}
    return {name: (diagnose(trace), trace) for name, trace in traces.items()} | many


CASES = cases()


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_no_line_is_wider_than_the_terminal(name: str, ascii: bool) -> None:
    for width in (80, 100):
        text = render(
            *CASES[name], width=width, ascii=ascii, cost="c " * 90, page="out/report.html"
        )
        assert max(cell_len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("name", [name for name in CASES if name != "6 findings"])
def test_up_to_four_findings_fit_forty_lines(name: str) -> None:
    assert len(CASES[name][0].findings) <= 4
    assert len(render(*CASES[name], cost="0.95 % of training time", page="p").splitlines()) <= 40


def test_more_findings_are_listed_by_head_line_with_the_way_to_read_on() -> None:
    diagnosis, trace = many_rules_run(6)
    text = render(diagnosis, trace)
    assert re.search(r"^6 WARN  rule-5 +steps 5-90$", text, re.MULTILINE)
    assert "optdoctor explain" not in text  # the page of a rule knows nothing of this run
    assert "\nmore           what is left out here is in doctor.diagnosis" in text
    assert "is on the page\npage           out/report.html" in render(
        diagnosis, trace, page="out/report.html"
    )
    log = replace(trace, reader="csv", origin="train.csv")
    assert "\nmore           optdoctor analyze PATH --format html" in render(diagnosis, log)
    assert text.count("\n  what ") == 3


@pytest.mark.parametrize("name", CASES)
def test_ascii_mode_holds_only_ascii(name: str) -> None:
    assert render(*CASES[name], ascii=True).isascii()
    assert render_many([CASES[name]], ascii=True).isascii()


def test_no_character_of_a_log_steers_the_terminal() -> None:
    for text in (render(*CASES["hostile"]), render_many([CASES["hostile"]])):
        for letter in text:
            assert letter == "\n" or unicodedata.category(letter)[0] != "C"
        text.encode("utf-8")


def test_no_home_directory_is_shown() -> None:
    diagnosis, trace = CASES["float16"]
    for name in ("trainer_state.json", "train.log"):
        run = replace(trace, origin=f"/home/ann/{name}")
        assert name in render(diagnosis, run)
        for text in (render(diagnosis, run), render_many([(diagnosis, run)] * 2)):
            assert "ann" not in text
    assert origin_name("/data/gpt/trainer_state.json") == "gpt/trainer_state.json"
    assert origin_name("C:\\Users\\ann\\train.log") == "train.log"
    for home in ("/home/ann", "/Users/ann", "/root", "C:\\Users\\ann", os.path.expanduser("~")):
        assert origin_name(f"{home}/optdoctor-run/0") == "optdoctor-run/0"
        assert origin_name(f"{home}/optdoctor-run", with_folder=True) == "optdoctor-run"


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ("/data/out2/optdoctor-run", "out2/optdoctor-run"),
        ("out2/optdoctor-run/1", "out2/optdoctor-run/1"),
        ("/data/out2/optdoctor-run/earlier-3", "out2/optdoctor-run/earlier-3"),
        ("optdoctor-run", "optdoctor-run"),
        ("../optdoctor-run", "optdoctor-run"),
        ("/data/out2/first", "first"),
    ],
)
def test_a_run_record_is_named_by_the_folder_that_tells_it_apart(origin: str, name: str) -> None:
    assert origin_name(origin) == name
    diagnosis, trace = CASES["float16"]
    head = render(diagnosis, replace(trace, origin=origin, reader="run-record")).splitlines()[0]
    assert f"   {name}   " in head


def test_a_cause_stands_above_the_symptom_that_it_explains() -> None:
    text = render(*CASES["float16"])
    assert re.search(
        r"^1 CRITICAL  second-moment-underflow +.*, cause of 2 and 3$", text, re.MULTILINE
    )
    assert re.search(r"^3 CRITICAL  nan-pulse +.*, explained by 1 and 2$", text, re.MULTILINE)
    assert "Cause found: " in text
    assert "since  step 361, first after the resume: weights and state float32 -> float16" in text
    assert "attn.c_attn of blocks 0-1" in text
    assert "3 of 9" in text


def test_two_causes_are_called_possible() -> None:
    text = render(*CASES["float16 throughout"])
    assert "Possible causes found: 1 and 2 below." in text
    assert "Cause found" not in text


def test_no_cause_is_claimed_where_none_was_examined() -> None:
    text = render(*CASES["counted log"])
    assert "Cause found" not in text
    assert re.search(
        r"No cause found; \d+ of \d+ possible causes cannot be seen in this log\.", text
    )


def test_our_own_record_is_not_called_a_log() -> None:
    _, trace = CASES["counted log"]
    own = replace(trace, reader="run-record")
    text = render(diagnose(own), own)
    assert re.search(r"No cause found; \d+ of \d+ possible causes were not examined\.", text)
    assert "look inside" not in text
    assert "look inside" in render(*CASES["counted log"])


def test_skipped_updates_have_one_note() -> None:
    skipped, steps = [1.0, 1.0, 0.0, 1.0], {"step_skipped": [6, 7, 8, 21]}
    trace = make_trace(loss=falling_loss(480), step_skipped=skipped, steps=steps)
    note = "note           3 of 480 updates were skipped"
    assert render(diagnose(trace), trace).count(note) == 1
    rows = make_trace(step_skipped=[1.0], step_source="counted rows")
    assert "note           1 update was skipped" in render(diagnose(rows), rows)
    none = make_trace(loss=falling_loss(480), step_skipped=[0.0])
    assert "skipped" not in render(diagnose(none), none).replace("step_skipped", "")


@pytest.mark.parametrize(
    ("losses", "skipped"),
    [
        ([1, *range(10, 481, 10)], 15),  # some updates are in no row
        ([*range(2, 481)], 15),
        ([*range(1, 481)], 481),  # may be of the update whose loss is the last row
    ],
)
def test_skipped_updates_are_a_share_only_of_updates_that_are_all_logged(
    losses: list[int], skipped: int
) -> None:
    steps = {"loss": losses, "step_skipped": [skipped]}
    trace = make_trace(loss=falling_loss(480)[: len(losses)], step_skipped=[1.0], steps=steps)
    assert "note           1 update was skipped\n" in render(diagnose(trace), trace) + "\n"


@pytest.mark.parametrize(
    ("first", "interval", "length"),
    [(10, 10, "4,000"), (10, 9, "3,991"), (0, 10, "4,001"), (10, None, "3,991")],
)
def test_steps_before_the_first_row_of_a_run_that_logs_at_intervals_are_of_it(
    first: int, interval: int | None, length: str
) -> None:
    steps = [first, *range(20, 4001, 10)]
    trace = make_trace(loss=falling_loss(400)[: len(steps)], steps={"loss": steps})
    trace = replace(trace, facts={**trace.facts, "log_interval": interval})
    assert f"Nothing found in {length} steps" in render(diagnose(trace), trace)


LEFT = "an earlier run in this log was left out: 400 loss rows, 100 of them not finite"
HAPPENED = [
    Event(1, "start", LEFT),
    Event(20, "resume", "steps go back from 40 to 20: 2 rows taken back"),
    Event(30, "resume", "steps go back from 50 to 30: 3 rows taken back"),
]


@pytest.mark.parametrize("reader", ["prints", ""])
def test_a_log_tells_in_notes_of_earlier_runs_and_in_one_of_all_resumes(reader: str) -> None:
    trace = replace(make_trace(loss=falling_loss(), events=HAPPENED), reader=reader)
    diagnosis = diagnose(trace)
    notes = [
        "An earlier run in this log was left out: 400 loss rows, 100 of them not finite",
        "2 resumes; at the last, steps go back from 50 to 30: 3 rows taken back",
    ]
    assert account(diagnosis, trace).notes == (tuple(notes) if reader else ())
    said = " ".join(render(diagnosis, trace).split())
    for note in notes:
        assert (note in said) == bool(reader)
        assert (f"- {note}" in markdown.render([(diagnosis, trace)])) == bool(reader)
        assert (f"<li>{note}</li>" in page.render([(diagnosis, trace)])) == bool(reader)
    assert max(map(cell_len, render(diagnosis, trace).splitlines())) <= 80


def test_one_resume_is_told_without_a_count() -> None:
    trace = replace(make_trace(loss=falling_loss(), events=HAPPENED[1:2]), reader="prints")
    note = "note           Steps go back from 40 to 20: 2 rows taken back"
    assert note in render(diagnose(trace), trace)


@pytest.mark.parametrize("name", CASES)
def test_notes_of_earlier_runs_and_resumes_keep_the_report_short(name: str) -> None:
    diagnosis, trace = CASES[name]
    trace = replace(trace, reader=trace.reader or "prints", events=(*trace.events, *HAPPENED))
    assert len(render(diagnosis, trace).splitlines()) <= 40


def test_a_log_without_step_numbers_speaks_of_rows() -> None:
    text = render(*CASES["counted log"])
    assert "huggingface-console, 100 rows   2 lines skipped" in text
    assert text.count("This log has no step numbers") == 1
    assert not re.search(r"\bsteps? \d", text)


def test_a_static_finding_is_dated_before_step_1() -> None:
    text = render(*CASES["epsilon-below-precision sick"])
    assert re.search(r"^1 CRITICAL  epsilon-below-precision +before step 1$", text, re.MULTILINE)


def test_a_healthy_report_is_short_and_says_what_was_not_examined() -> None:
    trace = make_trace(loss=falling_loss(480), grad_norm=gradient_norms(480))
    diagnosis = diagnose(trace)
    text = render(diagnosis, trace)
    clear = len(diagnosis.with_status(Status.CLEAR))
    said = f"HEALTHY  Nothing found in 480 steps; {clear} of {len(RULES)} rules looked."
    assert said in text
    assert "not examined   " in text
    assert len(text.splitlines()) <= 17


@pytest.mark.parametrize(
    ("silent", "unseen", "text"),
    [
        (1, 1, "Nothing found in 400 steps by silent-0; 1 rule not examined."),
        (3, 0, "Nothing found in 400 steps; all 3 rules looked."),
        (2, 1, "Nothing found in 400 steps by silent-0 and silent-1; 1 rule not examined."),
        (4, 2, "Nothing found in 400 steps; 4 of 6 rules looked."),
    ],
)
def test_few_silent_rules_are_named_so_that_nobody_thinks_more_was_looked_at(
    silent: int, unseen: int, text: str
) -> None:
    def rule(name: str, needs: str) -> Rule:
        return Rule(name, (needs,), lambda *_: [], Limits(), Trace, Trace, "Title.")

    rules = [rule(f"silent-{i}", "loss") for i in range(silent)]
    rules += [rule(f"blind-{i}", "grad_norm") for i in range(unseen)]
    trace = make_trace(loss=falling_loss())
    assert one_line(diagnose(trace, rules), trace) == f"optdoctor  HEALTHY  {text}"


def test_a_note_is_not_said_to_be_found_by_the_silent_rules() -> None:
    note = Finding(Severity.NOTE, "s", (1, 2), (Evidence("loss", "e", 1, 0, "rows"),))
    rules = [
        Rule("noted", ("loss",), lambda *_: [note], Limits(), Trace, Trace, "Title."),
        Rule("silent", ("loss",), lambda *_: [], Limits(), Trace, Trace, "Title."),
    ]
    trace = make_trace(loss=falling_loss())
    text = "1 note found in 400 steps; all 2 rules looked."
    assert one_line(diagnose(trace, rules), trace) == f"optdoctor  HEALTHY  {text}"
    blind = Rule("blind", ("grad_norm",), lambda *_: [], Limits(), Trace, Trace, "Title.")
    text = "1 note found in 400 steps; nothing else by silent; 1 rule not examined."
    assert one_line(diagnose(trace, [*rules, blind]), trace) == f"optdoctor  HEALTHY  {text}"
    alone = "optdoctor  HEALTHY  1 note found in 400 steps."
    assert one_line(diagnose(trace, rules[:1]), trace) == alone


def test_an_unknown_report_gives_its_reason() -> None:
    assert "UNKNOWN  7 finite losses are too few to call a run healthy: 30 are needed." in render(
        *CASES["short"]
    )


def test_a_treatment_is_spelled_for_the_framework_of_the_run_only() -> None:
    trace = float16_run(framework="huggingface")
    text = render(diagnose(trace), trace)
    assert "HF         from_pretrained(.., dtype=torch.float32)\n" in text
    assert "\n             TrainingArguments(bf16=True)" in text.replace(" " * 22, " " * 13)
    assert "plain " not in text
    unknown = render(*CASES["float16"])
    assert "plain      " in unknown
    assert "HF         " in unknown


def test_a_crashed_rule_and_a_doctor_that_stepped_back_have_a_line_each() -> None:
    def crash(*_: object) -> list[Finding]:
        raise RuntimeError("bad luck")

    rule = Rule("it-breaks", ("loss",), crash, Limits(), Trace, Trace, "Title.")
    event = Event(7, "doctor-failed", "ValueError: broken\n  File x")
    trace = make_trace(loss=falling_loss(), events=[event])
    text = render(diagnose(trace, [rule]), trace)
    assert "crashed        it-breaks: RuntimeError: bad luck" in text
    assert "doctor         stepped back at step 7: ValueError: broken" in text


def test_a_crashed_rule_is_named_and_not_hidden_among_those_not_examined() -> None:
    def crash(*_: object) -> list[Finding]:
        raise RuntimeError("bad luck")

    rules = [
        Rule("silent", ("loss",), lambda *_: [], Limits(), Trace, Trace, "Title."),
        Rule("it-breaks", ("loss",), crash, Limits(), Trace, Trace, "Title."),
    ]
    trace = make_trace(loss=falling_loss())
    said = "HEALTHY  Nothing found in 400 steps by silent. 1 rule crashed: it-breaks."
    assert one_line(diagnose(trace, rules), trace) == f"optdoctor  {said}"
    report = render(diagnose(trace, rules), trace)
    assert "HEALTHY  Nothing found in 400 steps by silent.\n" in report
    assert "crashed        it-breaks: RuntimeError: bad luck" in report


def test_each_finding_says_how_often_its_rule_is_right() -> None:
    for diagnosis, trace in CASES.values():
        said = " ".join(render(diagnosis, trace, width=200).split())
        if "sure " in said:  # where nothing else has to go for it
            measured = [(rates_of(f.rule) or (UNMEASURED,))[0] for f in diagnosis.findings]
            assert any(f"sure {one}" in said for one in measured)


def test_colour_changes_no_character(capsys: pytest.CaptureFixture[str]) -> None:
    text = render(*CASES["float16"])
    styled = coloured(text)
    assert styled.plain == text
    assert styled.spans
    with Console(width=80, no_color=True).capture() as captured:
        pass
    console = Console(width=80, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(styled)
    assert captured.get() == text + "\n"


def test_runs_of_very_different_losses_have_a_scale_each() -> None:
    traces = [make_trace(loss=falling_loss() * factor) for factor in (1, -1e6)]
    text = render_many([(diagnose(trace), trace) for trace in traces])
    assert "each row its own scale" in text
    assert sum("█" in line for line in text.splitlines()) == 2


def test_the_table_of_runs_shows_a_nan_printed_as_0_as_nan() -> None:
    loss, norm = falling_loss(), gradient_norms()
    loss[200:], norm[200:] = 0, np.nan
    trace = make_trace(loss=loss, grad_norm=norm)
    line = render_many([(diagnose(trace), trace)]).splitlines()[-6]
    assert "×××××× " in line
    assert " NaN  critical" in line


def test_the_table_of_runs_puts_the_worst_first() -> None:
    names = ["short", "nan-pulse healthy", "counted log", "float16"]
    text = render_many([CASES[name] for name in names])
    lines = [line for line in text.splitlines() if line.startswith(("▲", "?"))]
    assert "2 of 4 runs are sick, 1 healthy, 1 unknown." in text
    assert [line[0] for line in lines] == ["▲", "▲", "?"]
    assert "row 51" in text
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert render_many([])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (15389, "15,389"),
        (546133.3, "546,000"),
        (999.96, "1,000"),
        (1e9, "1e9"),
        (2.5, "2.5"),
        (-3.14159, "-3.14"),
        (0.0123456, "0.0123"),
        (9.9996e-4, "0.001"),
        (2.98e-8, "2.98e-8"),
        (1e-300, "1e-300"),
        (float("nan"), "NaN"),
        (-np.inf, "-Inf"),
    ],
)
def test_numbers_have_three_significant_figures(value: float, text: str) -> None:
    assert number(value) == text


def test_shares_below_ten_percent_have_two_figures() -> None:
    assert [percent(v) for v in (7.1345, 20.13, 0.2, 100)] == ["7.1 %", "20.1 %", "0.2 %", "100 %"]


def test_a_row_of_evidence_is_a_sentence_with_its_limit() -> None:
    count = Evidence("loss", "losses NaN", 15486, 0, "rows")
    share = Evidence("moment2_zero", "entries zero", 0.0713, 0.002, "share")
    assert sentence(count) == "15,486 losses NaN (limit 0)"
    assert sentence(share) == "entries zero: 7.1 % (limit 0.2 %)"


def test_wrapping_breaks_what_is_longer_than_a_line() -> None:
    assert wrap("漢" * 10, 8) == ["漢漢漢漢", "漢漢漢漢", "漢漢"]
    assert wrap("", 8) == [""]


def symptom_run(symptoms: int = 3, causes: int = 3, clear: int = 0) -> tuple[Diagnosis, Trace]:
    """Symptoms with sentences of usual length, several treatments and causes nobody looked at."""

    def finds(i: int) -> Rule:
        finding = Finding(
            severity=Severity.CRITICAL,
            summary=f"The loss rises from a level of 7.466 at step 20 to 102.6 by step {130 + i}.",
            steps=(20 + i, 90),
            evidence=tuple(
                Evidence(
                    "loss",
                    f"number {k} of finding {i}, told in a sentence of usual length",
                    3,
                    1,
                    "times",
                )
                for k in range(4)
            ),
            treatments=tuple(
                Treatment(
                    f"Go back to the last checkpoint at or before step {20 + i}, with half "
                    f"the rate, for the {k}th time",
                    {"eps": (1e-8, (2 + i) * 10.0 ** -(2 + k))},
                )
                for k in range(4)
            ),
        )
        return Rule(f"ill-{i}", ("loss",), lambda *_: [finding], Limits(), Trace, Trace, "Title.")

    def blind(i: int) -> Rule:
        why = Abstain(f"losses not finite, {i} of them: how high they rose is not known to anybody")
        explains = tuple(f"ill-{k}" for k in range(symptoms))
        return Rule(
            f"blind-{i}", ("loss",), lambda *_: why, Limits(), Trace, Trace, "T.", explains=explains
        )

    def silent(i: int) -> Rule:
        return replace(blind(i), name=f"a-cause-looked-for-{i}", check=lambda *_: [])

    trace = make_trace(loss=falling_loss(100), framework="torch")
    rules = [*map(finds, range(symptoms)), *map(blind, range(causes)), *map(silent, range(clear))]
    rules += [
        replace(blind(i), name=f"unseen-{i}", needs=(need,), explains=())
        for i, need in enumerate(("grad_norm", "lr", "eval_loss", "update_ratio|tensor_lr"))
    ]
    return diagnose(trace, rules), trace


@pytest.mark.parametrize("clear", [0, 16])
@pytest.mark.parametrize("symptoms", [1, 2, 3])
def test_whole_items_are_dropped_before_a_sentence_is_cut(symptoms: int, clear: int) -> None:
    diagnosis, trace = symptom_run(symptoms, clear=clear)
    text = render(diagnosis, trace)
    assert ("a-cause-looked-for-0" in text or "  16 causes" in text) == bool(clear)
    assert len(text.splitlines()) <= 40
    assert not re.search(r"\.\.(?!\.)", text), text
    flat = " ".join(text.replace("manual", "").split())
    for i in range(symptoms):
        assert f"at or before step {20 + i}, with half the rate, for the 0th time" in flat
    assert "more           what is left out here" in text


def test_what_the_report_holds_whole_needs_no_more() -> None:
    assert "\nmore " not in render(*CASES["few"])


def test_a_long_reason_ends_with_a_clause_and_an_alternative_with_a_name() -> None:
    reason = "losses not finite, 657 of them: how high they rose is not known"
    assert beginning(reason, 40) == "losses not finite, 657 of them"
    assert beginning("word " * 9, 22) == "word word word word.."
    blind = NotExamined("r", missing=("first_nonfinite_step|grad_nonfinite|grad_norm", "lr"))
    assert slots.lack(blind, 26) == "needs first_nonfinite_step"
    assert slots.lack(blind, 40) == "needs first_nonfinite_step and 1 more"


@pytest.mark.parametrize(
    ("name", "width", "short"),
    [
        ("out-lr0.03-adamw_torch/optdoctor-run", 27, "out-lr0.03-adamw_torch"),
        ("checkpoint-500/trainer_state.json", 18, "checkpoint-500"),
        ("trainer_state.json", 18, "trainer_state.json"),
        ("runs/a-file-of-some-length.log", 24, "a-file-of..-length.log"),
        ("short", 18, "short"),
    ],
)
def test_the_name_of_a_run_is_cut_where_it_says_least(name: str, width: int, short: str) -> None:
    assert short_name(name, width) == short


def test_runs_in_the_table_stay_apart_when_their_names_are_cut() -> None:
    diagnosis, trace = CASES["float16"]
    runs = [
        (diagnosis, replace(trace, origin=f"/data/a-folder/optdoctor-run/{i}")) for i in range(2)
    ]
    lines = render_many(runs).splitlines()
    assert len({line.split()[1] for line in lines if line.startswith("▲")}) == 2


def test_a_name_of_hundreds_of_letters_does_not_eat_the_headline() -> None:
    name = ".".join(["block"] * 60)
    finding = Finding(
        Severity.WARN,
        f"Gradient of {name} NaN at step 5 (limit 0).",
        (5, 5),
        (Evidence("loss", "e", 1, 0, "rows"),),
    )
    rule = Rule("ill", ("loss",), lambda *_: [finding], Limits(), Trace, Trace, "Title.")
    trace = make_trace(loss=falling_loss(100))
    text = render(diagnose(trace, [rule]), trace)
    head = " ".join(text.split("\n\n")[1].split())
    assert head.startswith("SICK Gradient of block.")
    assert head.endswith("NaN at step 5 (limit 0).")
    assert max(map(len, head.split())) <= 48


def test_the_scale_of_the_table_runs_upwards() -> None:
    traces = [make_trace(loss=falling_loss() * factor) for factor in (1, 2)]
    header = render_many([(diagnose(trace), trace) for trace in traces])
    low, high = re.search(r"loss ([\d.]+)-([\d.]+)", header).groups()
    assert float(low) < float(high)


def test_the_table_of_runs_takes_the_largest_losses_there_are() -> None:
    loss = np.where(np.arange(200) % 2, 1e308, -1e308)
    runs = [(diagnose(trace), trace) for trace in (make_trace(loss=loss), make_trace(loss=-loss))]
    assert "2 runs" in render_many(runs)
    assert middle(np.array([1e308, 1.7e308])) == 1.35e308


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("4.weight", "2.bias", "2.weight"), "4.weight, 2.bias, 2.weight"),
        (("head.weight", "head.bias"), "head, head.bias"),
        (("head.weight", "head"), "head.weight, head"),
    ],
)
def test_a_shortened_name_stays_a_name_of_one_tensor(names: tuple[str, ...], told: str) -> None:
    tensors = [TensorInfo(name, (2,), order=i) for i, name in enumerate(names)]
    assert fold(names, tensors) == told


def test_a_note_gives_no_order_to_stop() -> None:
    treatments = (Treatment("Stop the run", when="now"), Treatment("Look at the labels"))
    note = Finding(
        Severity.NOTE, "It rests.", (5, 90), (Evidence("loss", "e", 1, 0, "rows"),), treatments
    )
    rule = Rule("ill", ("loss",), lambda *_: [note], Limits(), Trace, Trace, "Title.")
    trace = make_trace(loss=falling_loss(100))
    diagnosis = diagnose(trace, [rule])
    for text in (render(diagnosis, trace), markdown.render([(diagnosis, trace)])):
        assert "Stop the run" not in text
        assert "Look at the labels" in text
    assert "\n  try    Look at the labels" in render(diagnosis, trace)


def causal_run(*, causes: int = 1, note: bool = False) -> tuple[Diagnosis, Trace]:
    """A symptom with `causes`, each with two cures, and a symptom's advice."""
    evidence = (Evidence("loss", "e", 1, 0, "rows"),)

    def finds(name: str, step: int, *titles: str, explains: tuple[str, ...] = ()) -> Rule:
        severity = Severity.NOTE if note and explains else Severity.CRITICAL
        finding = Finding(
            severity,
            f"{name} is there.",
            (step, 90),
            evidence,
            tuple(Treatment(title) for title in titles),
        )
        return Rule(
            name, ("loss",), lambda *_: [finding], Limits(), Trace, Trace, "T.", explains=explains
        )

    rules = [
        finds("a-symptom", 8, "Go back"),
        finds("b-symptom", 6, "Go back further", explains=("a-symptom",)),
    ]
    rules += [
        finds(f"cause-{i}", 5, f"Cure {i}", f"Other cure {i}", explains=("a-symptom", "b-symptom"))
        for i in range(causes)
    ]
    trace = make_trace(loss=falling_loss(100))
    return diagnose(trace, rules), trace


def test_the_cures_of_causes_come_first_and_the_advice_of_symptoms_last() -> None:
    order = [remedy.title for remedy in account(*causal_run()).remedies]
    assert order == ["Cure 0", "Other cure 0", "Go back further", "Go back"]
    assert account(*causal_run()).lead[-1] == "What to do: Cure 0."
    two = account(*causal_run(causes=2))
    order = [remedy.title for remedy in two.remedies]
    assert order[:4] == ["Cure 0", "Cure 1", "Other cure 0", "Other cure 1"]
    assert two.lead[-1] == "What to do: Cure 0. Or: Cure 1."


def test_a_rule_with_a_finding_is_never_called_clear() -> None:
    """A note is no cause: the engine calls it clear."""
    diagnosis, trace = causal_run(note=True)
    for told in (render(diagnosis, trace), markdown.render([(diagnosis, trace)])):
        assert not re.search(r"clear +.*cause-0|`cause-0` \| clear", told)
        assert re.search(
            r"not its cause +cause-0: finding \d, a note: |`cause-0` \| not its cause", told
        )


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"loss_form": "divided"}, "divided by the accumulation steps: not on the scale"),
        ({"loss_form": "sum"}, "as sums: not on the scale of the evaluation"),
        ({"losses_comparable": "no"}, "use different losses: their levels are not compared"),
        ({"loss_form": "mean"}, ""),
    ],
)
def test_a_gap_that_only_the_scale_makes_is_told(facts: dict[str, str], said: str) -> None:
    losses = falling_loss(400)
    run = make_trace(facts, loss=losses, eval_loss=4 * losses[::40] + 1)
    told = " ".join(render(diagnose(run), run).split())
    assert said in told
    assert ("not on the scale" in told or "different losses" in told) is bool(said)
