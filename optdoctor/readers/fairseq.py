"""fairseq since 0.10: means since the last line, tagged `train_inner`, as JSON or as words.

The loss is in bits. JSON holds its numbers as strings. A line tagged `train` is the mean of an
epoch and no new step.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="fairseq",
    lines=(
        # A bar (`--log-format tqdm`) has no tag; before 0.10 there was a `|` in front of it.
        Line(
            r'(?:\btrain_inner\b.{0,20}?\{"epoch": \d+,|(?:^|\btrain_inner \|) epoch <epoch>:)'
            r'(?=.{0,1000}\bnum_updates"?[:=] "?<step>[",])',
            pairs=":",
            mark="num_updates",
        ),
        Line(
            r'\{"epoch": \d+,(?=.{0,1000}"valid_num_updates": "?<step>[",}])',
            pairs=":",
            mark='"valid_num_updates"',
            claims=False,
        ),
        Line(
            r"\bvalid on '\w*' subset \|(?=.{0,1000}\bnum_updates <step>)",
            pairs=" ",
            mark=" subset | ",
            names={"loss": "eval_loss", "nll_loss": "valid_nll_loss", "ppl": "valid_ppl"},
            claims=False,
        ),
        Line(r'"train_loss"|\bepoch \d+ \||Stopping training', mark="num_updates", claims=False),
    ),
    aliases={"gnorm": "grad_norm", "update": "epoch"}
    | dict.fromkeys(("num_updates", "valid_num_updates", "best_loss", "valid_best_loss"), "")
    | dict.fromkeys(("wps", "ups", "wpb", "bsz", "oom", "wall", "train_wall", "gb_free"), "")
    | dict.fromkeys(("valid_wps", "valid_wpb", "valid_bsz"), ""),
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_base": "bits"},
    from_zero=False,
    is_window_mean=True,
    sample="""2026-01-02 03:04:05 | INFO | train_inner | {"epoch": 1, "update": 0.125, "loss": \
"12.25", "ppl": "4871.0", "wps": "9000", "ups": "5", "wpb": "2000", "bsz": "64", "oom": "0", \
"gb_free": "9", "num_updates": "100", "lr": "1.25e-05", "gnorm": "3.5", \
"clip": "0", "loss_scale": "64", "train_wall": "20", "wall": "25"}
2026-01-02 03:04:25 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring \
gradient, setting loss scale to: 32.0
2026-01-02 03:04:35 | INFO | train_inner | {"epoch": 1, "update": 0.25, "loss": \
"11.5", "ppl": "2896.3", "wps": "9000", "num_updates": "200", "lr": "2.5e-05", "gnorm": "2.5", \
"clip": "0", "loss_scale": "32", "train_wall": "40", "wall": "50"}
2026-01-02 03:04:45 | INFO | valid | {"epoch": 1, "valid_loss": "11.25", "valid_ppl": "2435.5", \
"valid_nll_loss": "11", "valid_wps": "9000", "valid_wpb": "2000", "valid_bsz": "64", \
"valid_num_updates": "200", "valid_best_loss": "11.25"}
""",
).reader
