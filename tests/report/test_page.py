"""The page: one well-formed file that loads nothing, whatever a log holds."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from browser import PROGRAM, Browser, browser
from test_text import CASES, float16_run

from optdoctor import synthetic
from optdoctor.channels import Axis, channel
from optdoctor.engine import diagnose
from optdoctor.findings import Diagnosis, Evidence, Finding, NotExamined, Severity, Treatment
from optdoctor.report import axes, heat, heat_figure, markup, page, slots, svg, text
from optdoctor.report.account import _measured
from optdoctor.report.curve import Mark
from optdoctor.report.verdict import sentences
from optdoctor.rule import Limits, Rule
from optdoctor.store import Series
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Event, TensorInfo, Trace

VOID = frozenset({"meta", "path", "rect", "circle", "br"})
ATTACK = (
    "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>"
    "\"'&amp;&<b>\u202egnp.exe\u2066\x1b[31m\x9b\u200f\ud800\ttab"
)


class Structure(HTMLParser):
    """Checks that tags are balanced, and keeps what matters of them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[int] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        named = dict(attrs)
        assert len(named) == len(attrs), attrs
        self.ids += [named["id"] or ""] if "id" in named else []
        self.links += [named["href"] or ""] if "href" in named else []
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "title"):
            self.words.append(data)

    @property
    def said(self) -> str:
        """The visible text with spaces and minus signs as a terminal has them."""
        joined = " ".join("".join(self.words).split())
        return joined.replace("\u00a0", " ").replace("\u2212", "-")


def hostile_run() -> tuple[Diagnosis, Trace]:
    """Every place that takes a string of a log takes one that would break a page."""
    tensors = tuple(
        replace(tensor, name=f"{ATTACK}.{tensor.name}", layer=f"{ATTACK}.{i}")
        for i, tensor in enumerate(synthetic.small_gpt("float16"))
    )
    finding = Finding(
        severity=Severity.WARN,
        summary=f"It says {ATTACK} and `{ATTACK}`.",
        steps=(5, 20),
        evidence=(
            Evidence("moment2_zero", ATTACK, 0.5, 0.002, "share"),
            Evidence("loss", ATTACK, 3.0, 1.0, ATTACK),
        ),
        treatments=(Treatment(ATTACK, {"eps": (1e-8, ATTACK)}, source=ATTACK),),
        tensors=tuple(tensor.name for tensor in tensors[:3]),
    )
    rules = [
        Rule(
            "hostile", ("loss", "moment2_zero"), lambda *_: [finding], Limits(1), Trace, Trace, ""
        ),
        Rule("blind", ("grad_norm",), lambda *_: [], Limits(), Trace, Trace, "Title."),
    ]
    trace = make_trace(
        {f"metric:{ATTACK}": np.ones(20)},
        loss=falling_loss(20),
        moment2_zero=np.full((20, len(tensors)), 0.5),
        optimizer=ATTACK,
        framework=ATTACK,
        tensors=tensors,
        events=[Event(5, "resume", ATTACK, ATTACK, ATTACK), Event(6, "doctor-failed", ATTACK)],
    )
    trace = replace(trace, origin=f"/home/annabella/{ATTACK}", reader=ATTACK, lines_skipped=3)
    return diagnose(trace, rules), trace


def large_run(layers: int = 300, each: int = 4, samples: int = 2000) -> Trace:
    """A record of a large model: some tensors lose entries slowly, the others flicker."""
    names = [f"model.layers.{i}.part{j}.weight" for i in range(layers) for j in range(each)]
    tensors = tuple(
        TensorInfo(name, (64, 64), *["float16"] * 3, layer=".".join(name.split(".")[1:3]), order=i)
        for i, name in enumerate(names)
    )
    share = np.random.default_rng(0).uniform(0, 1e-3, (samples, len(names)))
    share[:, ::37] += np.linspace(0, 0.3, samples)[:, None]
    loss = falling_loss(samples * 5)
    loss[-500:] = np.nan
    return make_trace(
        moment2_zero=share,
        loss=loss,
        state_dtype="float16",
        math_dtype="float16",
        eps=1e-8,
        beta2=0.999,
        optimizer_family="adam",
        tensors=tensors,
        steps={"moment2_zero": np.arange(1, samples * 5, 5)},
    )


PAGES = CASES | {"attack": hostile_run()}


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_well_formed_and_loads_nothing(name: str) -> None:
    html = page.render([PAGES[name]], cost="0.95 % of training time")
    found = Structure(html)
    assert found.tags.isdisjoint({"script", "img", "link", "iframe", "object", "use", "image"})
    assert not any(name.startswith("on") or name == "src" for name, _ in found.attributes)
    assert "url(" not in html
    assert "@import" not in html
    assert all(link.startswith("#") for link in found.links)
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)
    assert len(set(found.ids)) == len(found.ids)
    assert found.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(found.headings))


def test_what_a_log_holds_stays_text() -> None:
    html = page.render([PAGES["attack"]])
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    for letter in "\u202e\u2066\x1b\x9b\u200f\ud800\t":
        assert letter not in html
    html.encode("utf-8")
    assert "<bdi>&lt;script&gt;" in html
    assert "annabella" not in html


@pytest.mark.parametrize("name", CASES)
def test_the_page_says_what_the_terminal_says(name: str) -> None:
    diagnosis, trace = CASES[name]
    said = Structure(page.render([CASES[name]])).said
    findings = slots.ordered(diagnosis)
    for sentence in " ".join(sentences(diagnosis, trace, findings)[1]).split(". "):
        assert " ".join(sentence.split()).rstrip(".") in said
    for finding in findings:
        assert finding.rule in said
        assert slots.worded(slots.since(finding, trace), trace) in said
        assert slots.where(finding, trace) in said
    assert diagnosis.verdict.upper() in said


def test_sections_come_in_the_order_of_what_matters() -> None:
    html = page.render([CASES["float16"]], cost="0.95 % of training time")
    order = [
        "SICK",
        "<b>Loss</b>",
        'id="f1"',
        'id="f2"',
        "Could it be something else?",
        "What to do</h2>",
        "The run</h2>",
        "Not examined</h2>",
        "Cost of the doctor",
    ]
    places = [html.index(part) for part in order]
    assert places == sorted(places)


def test_a_treatment_is_printed_once_with_its_code_safety_and_basis() -> None:
    trace = float16_run(framework="huggingface")
    html = page.render([(diagnose(trace), trace)])
    said = Structure(html).said
    code = "TrainingArguments(adam_epsilon=0.0001)"
    assert said.count(code) == 1
    assert "risky · with a restart" in said
    assert "Basis: measured: " in said
    assert "param_groups" not in html
    shared = Structure(page.render([CASES["float16 throughout"]])).said
    assert shared.count(code) == 1
    assert "risky · with a restart · for 1, 2" in shared
    assert '["eps"]' in Structure(page.render([CASES["float16"]])).said


def test_a_healthy_page_is_short_and_has_no_empty_heading() -> None:
    trace = make_trace(loss=falling_loss(480))
    html = page.render([(diagnose(trace), trace)])
    said = Structure(html).said
    assert "HEALTHYNothing found in 480 steps" in said
    assert "What to do" not in said
    assert "Could it be" not in said
    assert "not examined" in said.lower()
    assert not re.search(r"</h\d></section>|<table[^>]*><thead>.{0,400}<tbody></tbody>", html)


def test_several_runs_are_one_page_with_the_worst_first() -> None:
    names = ["short", "nan-pulse healthy", "counted log", "float16"]
    runs = [CASES[name] for name in names]
    html = page.render(runs, [("/home/annabella/logs/bad.log", "it is <empty>", "give a log")])
    found = Structure(html)
    assert "2 of 4 runs are sick, 1 healthy, 1 unknown." in found.said
    assert "Could not be read" in found.said
    assert "logs/bad.log it is <empty> give a log" in " ".join(found.words).replace("  ", " ")
    assert "annabella" not in html
    assert {"#r1", "#r2", "#r3", "#r4"} <= set(found.links)
    places = [html.index(f'<article id="r{i}">') for i in (1, 2, 3, 4)]
    verdicts = [html[at:].split("</svg> ")[1][:7] for at in places]
    assert [verdict.split("<")[0] for verdict in verdicts] == ["SICK", "SICK", "UNKNOWN", "HEALTHY"]
    assert len(set(found.ids)) == len(found.ids)
    assert all(b - a <= 1 for a, b in pairwise(found.headings))


def test_no_run_at_all_is_still_a_page() -> None:
    found = Structure(page.render([], [("x", "it is empty", "give a log")]))
    assert "No run was read" in found.said
    assert "it is empty" in found.said
    Structure(page.render([]))


# figures


def path_of(html: str, kind: str) -> str:
    match = re.search(rf'<path class="{kind}" d="([^"]*)"', html)
    assert match is not None
    return match[1]


def series(values: object) -> Series:
    return make_trace(loss=values).series["loss"]


def test_the_curve_stops_where_the_loss_is_not_finite_and_says_the_word() -> None:
    loss = falling_loss(400)
    loss[300:] = np.nan
    html = svg.curve(series(loss), (1, 400), name="Loss", mark=Mark(301))
    assert "NaN<br>100 steps" in html
    assert re.search(r'<rect class="span" x="751.9" width="248.1"', html)
    for kind in ("raw", "ln"):
        places = [float(x) for x in re.findall(r"[ML]([\d.]+) ", path_of(html, kind))]
        assert max(places) == pytest.approx(299 / 399 * 1000, abs=0.1)
    inf = np.where(np.isnan(loss), np.inf, loss)
    assert "Inf<br>100 steps" in svg.curve(series(inf), (1, 400), name="Loss")


def test_one_bad_row_breaks_the_line() -> None:
    loss = falling_loss(40)
    loss[20] = np.nan
    assert path_of(svg.curve(series(loss), (1, 40), name="Loss"), "ln").count("M") == 2


def test_a_single_spike_of_a_long_run_is_drawn() -> None:
    loss = falling_loss(50_000)
    loss[33_333] = 9.0
    raw = path_of(svg.curve(series(loss), (1, 50_000), name="Loss"), "raw")
    strokes = [tuple(map(float, s)) for s in re.findall(r"M([\d.]+) ([\d.]+)V([\d.]+)", raw)]
    assert len(strokes) <= svg.COLUMNS
    x, _, _ = min(strokes, key=lambda stroke: stroke[1])
    assert x == pytest.approx(33_333 / 50_000 * 1000, abs=2)
    assert len(raw) < 20_000


def test_values_that_are_never_finite_have_no_axis_and_no_zero() -> None:
    html = svg.curve(series([np.nan] * 50), (1, 50), name="Loss")
    assert '<div class="y" aria-hidden="true"></div>' in html
    assert "NaN<br>50 steps" in html


@pytest.mark.parametrize(
    "values",
    [
        [3.0],
        [0.0] * 50,
        [-1e308, 1e308] * 40,
        [5e-324, 1e308] * 40,
        [1e9, 1e9 + 1] * 40,
        [np.inf, 1.0, -np.inf],
        [np.nan, 1.0] * 100,
    ],
)
def test_odd_numbers_are_drawn_inside_the_figure(values: list[float]) -> None:
    html = svg.curve(series(values), (1, len(values)), name="Loss", mark=Mark(1), until=2)
    Structure(f"<div>{html}</div>")
    shapes = "".join(re.findall(r' d="([^"]*)"', html))
    assert "nan" not in shapes
    assert "inf" not in shapes
    assert all(0 <= float(y) <= 100.5 for y in re.findall(r"[ML][\d.]+ ([-\d.]+)", shapes))


def test_the_scale_is_logarithmic_only_where_values_span_more_than_twenty_times() -> None:
    for factor, log in ((20.0, False), (20.1, True)):
        loss = series(np.geomspace(1, factor, 100))
        assert axes.frame_of([loss], (1, 100)).log is log
        assert ("log scale" in svg.caption(loss, None, "step")) is log


@pytest.mark.parametrize("length", [1, 2, 7, 100, 9_999, 12_345_678])
def test_labels_of_the_axis_do_not_overlap(length: int) -> None:
    for share in (0.0, 0.01, 0.3, 0.5, 0.97, 1.0):
        mark = Mark(1 + round((length - 1) * share))
        html = axes.x_axis((1, length), "step", mark)
        for letter, narrow in zip(axes.LETTER, (False, True), strict=True):
            places = []
            for kind, at, words in re.findall(
                r'<span(?: class="([^"]*)")? style="left:([\d.]+)%">([^<]*)', html
            ):
                if narrow and "narrowhide" in kind:
                    continue
                size = len(words) * letter
                start = float(at) - size * (
                    0 if "s" in kind.split() else 1 if "end" in kind else 0.5
                )
                places.append((start, start + size))
            places.sort()
            assert all(a[1] <= b[0] for a, b in pairwise(places))


def first_map(diagnosis: Diagnosis, trace: Trace) -> heat.Map:
    found = heat.heat_map(slots.ordered(diagnosis), trace)
    assert found is not None
    return found[1]


def test_the_last_colour_begins_at_the_limit_of_the_finding() -> None:
    found = first_map(*CASES["float16"])
    assert (found.channel, found.scale.limit, found.scale.edges[-1]) == (
        "moment2_zero",
        0.002,
        0.002,
    )
    values = np.array([[0.0, 0.002, np.nextafter(0.002, 1), 1.0, np.inf, np.nan]])
    assert found.scale.classes(values)[0, 1:].tolist() == [6, 7, 7, 7, -1]
    assert found.scale.classes(values)[0, 0] < 6
    assert len(found.scale.edges) == heat.CLASSES - 1


def test_a_count_whose_limit_is_zero_has_two_colours() -> None:
    scale = heat._scale(np.array([[0.0, 4.0]]), 0.0, True, "elements")
    assert scale.classes(np.array([[0.0, 1.0]])).tolist() == [[0, 7]]


def test_below_a_limit_the_colours_run_the_other_way() -> None:
    values = np.geomspace(1e-3, 10, 50)[None]
    scale = heat._scale(values, 0.01, False, "1")
    classes = scale.classes(values)[0]
    assert (classes[values[0] < 0.01] == 7).all()
    assert (classes[values[0] >= 0.01] < 7).all()
    assert (np.diff(classes) <= 0).all()
    assert classes[-1] == 0


def test_tensors_stand_in_order_of_depth_and_only_where_they_were_measured() -> None:
    names = [TensorInfo(n, order=o) for n, o in (("last", 9), ("first", 1), ("never", 5))]
    share = np.tile([0.5, 0.1, np.nan], (20, 1))
    trace = make_trace(moment2_zero=share, tensors=names)
    finding = Finding(
        Severity.WARN, "s", (1, 20), (Evidence("moment2_zero", "e", 0.5, 0.2, "share"),)
    )
    found = heat.heat_map([finding], trace)
    assert found is not None
    assert [tensor.name for tensor in found[1].tensors] == ["first", "last"]
    assert found[1].cells[:, 0].tolist() == [0, 7]


def test_of_several_samples_in_one_column_the_worst_is_seen() -> None:
    share = np.zeros((5000, 1))
    share[2500] = 0.9
    trace = make_trace(moment2_zero=share, tensors=[TensorInfo("t")])
    finding = Finding(
        Severity.WARN, "s", (1, 9), (Evidence("moment2_zero", "e", 0.5, 0.2, "share"),)
    )
    found = heat.heat_map([finding], trace)
    assert found is not None
    assert found[1].worst[0] == np.float32(0.9)
    share[4990] = 0.9  # among the newest samples, all of which are kept
    trace = make_trace(moment2_zero=share, tensors=[TensorInfo("t")])
    found = heat.heat_map([finding], trace)
    assert found is not None
    assert np.flatnonzero(found[1].cells[0] == 7).tolist() == [239]


def test_nothing_is_drawn_between_samples_that_are_far_apart() -> None:
    cells = first_map(*CASES["float16"]).cells
    column = int((200 - 1) / 479 * heat.COLUMNS)
    assert (cells[:, column] == -1).all()
    assert (cells[:, 0] >= 0).all()


def test_a_single_sample_beyond_the_limit_is_wide_enough_to_be_seen() -> None:
    share = np.zeros((240, 1))
    share[0] = 0.9
    trace = make_trace(moment2_zero=share, tensors=[TensorInfo("t")])
    finding = Finding(
        Severity.WARN, "s", (1, 1), (Evidence("moment2_zero", "e", 0.9, 0.2, "share"),)
    )
    found = heat.heat_map([finding], trace)
    assert found is not None
    assert np.flatnonzero(found[1].cells[0] == 7).tolist() == [0, 1, 2]


def few_samples(steps: Sequence[int], span: int = 600) -> tuple[Diagnosis, Trace]:
    """A run of `span` steps with samples at `steps` only."""
    tensors = small_gpt("float16")
    share = np.full((len(steps), len(tensors)), 0.5, np.float32)
    share[:-1, 0] = 0
    finding = Finding(
        Severity.WARN, "s", (steps[-1], span), (Evidence("moment2_zero", "e", 0.9, 0.2, "share"),)
    )
    rule = Rule("ill", ("moment2_zero",), lambda *_: [finding], Limits(1), Trace, Trace, "T.")
    trace = make_trace(
        moment2_zero=share,
        loss=falling_loss(span),
        lr=np.linspace(1e-3, 1e-5, span),
        grad_norm=np.geomspace(1, 900, span),
        tensors=tensors,
        steps={"moment2_zero": steps},
    )
    return diagnose(trace, [rule]), trace


@pytest.mark.parametrize("count", [1, 3, heat.FEW])
def test_few_samples_have_a_column_each_that_is_named(count: int) -> None:
    steps = [1, 2, 3, *range(50, 550, 50)][:count]
    run = few_samples(steps)
    found = first_map(*run)
    assert found.columns == tuple(steps)
    assert (found.cells >= 0).all()
    assert (found.cells[0] == 0).sum() == heat.COLUMNS // count * (count - 1)
    foot = page.render([run]).partition('class="heat foot"')[2].partition("</figure>")[0]
    assert f">step {steps[0]}<" in foot
    assert count == 1 or f">{steps[-1]}<" in foot
    assert "by sample, at its step" in page.render([run])
    assert f"{count} sample{'s' if count > 1 else ''}." in foot


def test_many_samples_stand_at_their_steps() -> None:
    steps = list(range(1, heat.FEW + 2))
    assert first_map(*few_samples(steps)).columns == ()
    assert "by sample" not in page.render([few_samples(steps)])


def test_the_mark_stands_before_the_sample_that_shows_it() -> None:
    found = first_map(*few_samples([1, 2, 3, 400]))
    assert heat_figure._line(found, (1, 600), Mark(400)) == heat.COLUMNS * 3 / 4
    assert heat_figure._line(found, (1, 600), None) is None


def test_labels_of_a_map_are_names_of_one_tensor() -> None:
    names = ("0.weight", "0.bias", "4.weight")
    assert heat_figure._labels([TensorInfo(name) for name in names]) == list(names)
    names = ("model.head.weight", "model.head.bias")
    assert heat_figure._labels([TensorInfo(name) for name in names]) == ["head", "head.bias"]


def test_rate_and_norm_have_a_low_curve_under_the_loss_with_the_same_axis() -> None:
    html = page.render([few_samples([1, 2, 3])])
    titles = re.findall(r"<figcaption><b>([^<:]*)</b>([^<]*)<", html)
    assert [title for title, _ in titles] == ["Loss", "Learning rate", "Gradient norm"]
    assert "median" not in titles[1][1]
    assert all("log scale" in caption for _, caption in titles[1:])
    axes_ = re.findall(r'<div class="x" aria-hidden="true">.*?</div>', html)[:3]
    assert len(set(axes_)) == 1
    bare = page.render([CASES["float16"]])
    assert "<b>Learning rate</b>" not in bare
    assert 'plot low"' not in bare


def test_a_name_of_usual_length_is_not_broken_and_a_long_one_may_be() -> None:
    assert markup.code("first_nonfinite_step").startswith('<code class="w">')
    assert markup.code("x" * 31).startswith("<code><bdi>")


def test_a_finding_without_a_tensor_channel_has_no_map() -> None:
    diagnosis, trace = CASES["nan-pulse sick"]
    assert heat.heat_map(diagnosis.findings, trace) is None
    assert 'class="map"' not in page.render([(diagnosis, trace)])


def test_above_forty_rows_layers_are_folded_and_those_of_the_finding_open() -> None:
    for layers, folded in ((10, False), (11, True)):
        trace = large_run(layers, 4, 30)
        html = page.render([(diagnose(trace), trace)])
        drawn = html[html.index('class="map"') : html.index('class="key"')]
        assert ("<summary>" in drawn) is folded
    opened = re.findall(r"<details( open)?><summary>.*?<bdi>([^<]*)</bdi>", drawn)
    assert [layer for is_open, layer in opened if is_open] == ["layers.0", "layers.9"]
    assert len(opened) == 11


@pytest.fixture(scope="module")
def large_page() -> str:
    trace = large_run()
    return page.render([(diagnose(trace), trace)])


def test_a_record_of_1200_tensors_stays_small(large_page: str) -> None:
    assert len(large_page.encode()) < 4e6
    Structure(large_page)
    assert "layers.1 to 8" in large_page
    assert "1,000 more are in the record" in large_page


def test_what_is_open_at_first_is_bounded(large_page: str) -> None:
    drawn = large_page[large_page.index('class="map"') :]
    assert drawn.count("<details open>") == heat_figure.UNFOLDED // 4


# the units and the words


@pytest.mark.parametrize("name", CASES)
def test_every_measured_number_has_its_limit_beside_it(name: str) -> None:
    diagnosis, trace = CASES[name]
    html = page.render([(diagnosis, trace)])
    rows = html.count('<td data-l="Limit"')
    assert rows == sum(len(finding.evidence) for finding in diagnosis.findings)
    for finding in diagnosis.findings:
        assert all(channel(row.channel).axis in Axis for row in finding.evidence)


def test_a_limit_says_on_which_side_of_it_a_run_is_well() -> None:
    trace = make_trace(loss=falling_loss(50))
    rows = [Evidence("loss", "loss", value, 2.0, "1") for value in (3.0, 1.0, 2.0)]
    assert [_measured(row, trace).limit for row in rows] == ["at most 2", "at least 2", "2"]


def test_what_was_not_measured_in_time_says_what_measures_it() -> None:
    often = slots.lack(NotExamined("rule", unsampled=(2, 400)))
    assert often.startswith("what it needs was not measured from step 2 to 400: watch(")
    assert "interval=1" in often
    first = slots.lack(NotExamined("rule", unsampled=(1, 2)))
    assert first == "what it needs was not yet measured at step 1"


def test_facts_keep_their_digits() -> None:
    trace = make_trace(loss=falling_loss(50), beta2=0.9999, total_steps=1_234_567, eps=1e-8)
    said = Structure(page.render([(diagnose(trace), trace)])).said
    assert "beta20.9999" in said.replace(" ", "")
    assert "total_steps1,234,567" in said.replace(" ", "")


def test_a_path_in_the_terminal_is_printed_as_it_is() -> None:
    shown = text.render(*CASES["float16"], page="runs/lr1e-05/report.html")
    assert "page           runs/lr1e-05/report.html" in shown


# in a browser

needs_browser = pytest.mark.skipif(PROGRAM is None, reason="needs chromium on PATH")
WIDE, NARROW = 1000, 360


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory):
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


def shown(tab: Browser, folder: Path, html: str, **how: object) -> Path:
    path = folder / "page.html"
    path.write_text(html, "utf-8")
    tab.open(path, **how)
    return path


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", [*PAGES, "many", "large"])
def test_a_browser_shows_it_without_a_request_and_without_a_complaint(
    name: str, tab: Browser, tmp_path: Path, large_page: str
) -> None:
    html = large_page if name == "large" else page.render([PAGES.get(name, CASES["float16"])])
    html = page.render(list(PAGES.values())) if name == "many" else html
    for width in (WIDE, NARROW):
        path = shown(tab, tmp_path, html, width=width)
        assert tab.requests() == [path.as_uri()]
        assert tab.complaints() == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate("document.readyState") == "complete"


@pytest.mark.slow
@needs_browser
def test_a_browser_would_tell_of_a_script_an_image_and_a_wide_page(
    tab: Browser, tmp_path: Path
) -> None:
    html = page.render([CASES["float16"]])
    script = html.replace("</body>", "<script>1</script></body>")
    shown(tab, tmp_path, script)
    assert any("Content Security Policy" in words for words in tab.complaints())
    free = re.sub(r'<meta http-equiv="Content[^>]*>', "", html)
    shown(tab, tmp_path, free.replace("</body>", '<img src="http://127.0.0.1:9/x"></body>'))
    assert "http://127.0.0.1:9/x" in tab.requests()
    assert tab.complaints()
    shown(tab, tmp_path, html.replace("<h1>", '<h1 style="white-space:pre">'), width=NARROW)
    assert tab.evaluate("document.documentElement.scrollWidth") > NARROW


@pytest.mark.slow
@needs_browser
def test_no_two_labels_of_a_figure_lie_on_each_other(tab: Browser, tmp_path: Path) -> None:
    overlaps = """(() => {
      const out = [];
      for (const line of document.querySelectorAll('.x, .y, .rt, .lab')) {
        const boxes = [...line.children].filter(e => e.offsetWidth > 0)
          .map(e => [e.getBoundingClientRect(), e.textContent]);
        for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
          const [a, b] = [boxes[i][0], boxes[j][0]];
          if (a.left < b.right - 1 && b.left < a.right - 1
              && a.top < b.bottom - 1 && b.top < a.bottom - 1)
            out.push(boxes[i][1] + ' / ' + boxes[j][1]);
        }
      }
      return out;
    })()"""
    names = ("float16", "counted log", "second-moment-underflow sick", "few")
    runs = [CASES[name] for name in names]
    runs += [few_samples([1]), few_samples([1, 2, 3, *range(100, 600, 60)], 123_456)]
    for run in runs:
        for width in (WIDE, NARROW):
            shown(tab, tmp_path, page.render([run]), width=width)
            assert tab.evaluate(overlaps) == []


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_cells_of_a_folded_map_stand_over_their_axis_and_bars_are_not_cut(
    width: int, tab: Browser, tmp_path: Path
) -> None:
    trace = large_run(12, 4, 30)
    shown(tab, tmp_path, page.render([(diagnose(trace), trace)]), width=width)
    edges = """[...document.querySelectorAll('.map .cells, .map .x')].filter(e => e.offsetWidth)
      .map(e => [e.getBoundingClientRect().left, e.getBoundingClientRect().right])"""
    lefts, rights = zip(*tab.evaluate(edges), strict=True)
    assert max(lefts) - min(lefts) <= 1
    assert max(rights) - min(rights) <= 1
    cut = (
        "[...document.querySelectorAll('.bars > span')].filter(e => e.scrollWidth > e.offsetWidth)"
    )
    assert tab.evaluate(f"{cut}.length") == 0


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_the_page_in_both_schemes(
    dark: bool, tab: Browser, tmp_path: Path
) -> None:
    colours = """[...document.querySelectorAll('h1, p, td, th, dt, dd, .tag, .ann, .x span, pre')]
      .map(e => getComputedStyle(e).color)"""
    shown(tab, tmp_path, page.render([CASES["float16"]]), dark=dark)
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(background) < 0.05) is dark
    for colour in set(tab.evaluate(colours)):
        assert contrast(colour, background) >= 4.5


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)` as WCAG 2 defines it."""
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
